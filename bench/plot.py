"""Draw the medians of a report: ``python plot.py FIGURES.json OUT.png``.

Runs in an environment of its own that holds matplotlib, and imports nothing of ours.
"""

from __future__ import annotations

import json
import statistics
import sys
from typing import Any

PANELS = (
    ("drain", "tuned", "drain, one process, tuned (jobs/s)", True),
    ("drain", "defaults", "drain, one process, defaults (jobs/s)", True),
    ("enqueue", "bulk", "enqueue in bulk (jobs/s)", True),
    ("latency", "25 ms apart, p50", "latency, jobs 25 ms apart, p50 (ms)", False),
    ("idle", "statements", "statements a minute, idle", False),
    ("memory", "waiting", "memory with jobs waiting (MiB)", False),
)


def medians(figures: list[dict[str, Any]], measure: str, name: str) -> dict[str, list[float]]:
    """Subject -> values of its rounds."""
    found: dict[str, list[float]] = {}
    for each in figures:
        if (each["measure"], each["name"]) == (measure, name) and each["value"] is not None:
            found.setdefault(each["subject"], []).append(each["value"])
    return found


def main() -> None:
    """Draw one panel for each figure that was measured."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    with open(sys.argv[1]) as file:
        figures = json.load(file)
    panels = [(p, found) for p in PANELS if (found := medians(figures, p[0], p[1]))]
    rows = max(1, (len(panels) + 1) // 2)
    canvas, axes = pyplot.subplots(rows, 2, figsize=(12, 2.8 * rows), squeeze=False)
    for axis in axes.flat:
        axis.set_visible(False)
    for axis, ((_, _, title, more), found) in zip(axes.flat, panels, strict=False):
        axis.set_visible(True)
        order = sorted(found, key=lambda s: statistics.median(found[s]), reverse=not more)
        middle = [statistics.median(found[subject]) for subject in order]
        low = [m - min(found[s]) for s, m in zip(order, middle, strict=True)]
        high = [max(found[s]) - m for s, m in zip(order, middle, strict=True)]
        colours = [
            "#1f6f8b" if s == "sql-jobs" else "#999999" if "pgbench" in s else "#d9a441"
            for s in order
        ]
        bars = axis.barh(order, middle, xerr=[low, high], color=colours, ecolor="#333333")
        axis.bar_label(
            bars, labels=[f" {m:,.0f}" if m >= 100 else f" {m:.3g}" for m in middle], fontsize=8
        )
        axis.set_title(f"{title}, {'more' if more else 'less'} is better", fontsize=9)
        if min(middle) > 0 and max(middle) > 50 * min(middle):
            axis.set_xscale("log")
        axis.margins(x=0.18)
        axis.tick_params(labelsize=8)
    canvas.tight_layout()
    canvas.savefig(sys.argv[2], dpi=110)


if __name__ == "__main__":
    main()
