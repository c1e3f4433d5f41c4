"""The results as JSON and as Markdown.

Every measurement has a file of its own, so that one can be repeated without the others; the report
is made of all files that are there.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from bench.bars import BARS
from bench.figures import Figure, Summary, by_round, ratios
from bench.run import OURS

_DETAILS = (
    "statements_a_job",
    "buffers_a_job",
    "wal_bytes_a_job",
    "claim_buffers_a_job",
    "without_begin_commit",
    "jobs",
    "idle",
    "kib_a_job",
)


def save(out: Path, measure: str, figures: list[Figure], context: dict[str, Any]) -> None:
    """Write the file of one measurement."""
    out.mkdir(parents=True, exist_ok=True)
    body = context | {"measure": measure, "figures": [each.as_json() for each in figures]}
    (out / f"{measure}.json").write_text(json.dumps(body, indent=1) + "\n")


def load(out: Path, names: Iterable[str]) -> list[dict[str, Any]]:
    """The files of those measurements that are there, in that order."""
    paths = [out / f"{name}.json" for name in names]
    return [json.loads(path.read_text()) for path in paths if path.exists()]


def figures_of(parts: list[dict[str, Any]]) -> list[Figure]:
    """All figures of some files."""
    return [Figure(**each) for part in parts for each in part["figures"]]


def number(value: float) -> str:
    """Three or four digits that matter."""
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    if abs(value) >= 100:
        return f"{value:.0f}"
    return f"{value:.3g}"


def _spread(summary: Summary) -> str:
    if summary.count == 1:
        return number(summary.median)
    return f"{number(summary.median)} ({number(summary.low)}..{number(summary.high)})"


def markdown(parts: list[dict[str, Any]]) -> str:
    """The whole report."""
    figures = figures_of(parts)
    lines = ["# Results", "", *_context(parts), "", "## Bars", "", *_bars(figures), ""]
    for part in parts:
        own = [each for each in figures if each.measure == part["measure"]]
        lines += [f"## {part['measure']}", "", *_table(own), "", *_reasons(own, part), ""]
    return "\n".join(lines) + "\n"


def _context(parts: list[dict[str, Any]]) -> Iterator[str]:
    for part in parts[:1]:
        machine = part["machine"]
        settings = ", ".join(f"{key} {value}" for key, value in machine["settings"].items())
        yield (
            f"{machine['cores']} cores ({machine['processor']}), {machine['memory_gib']} GiB, "
            f"{machine['system']}, Python {machine['python']}, psycopg {machine['psycopg']}. "
            f"Server: {settings}."
        )
        yield ""
        for name, versions in part["versions"].items():
            known = ", ".join(f"{key} {value}" for key, value in versions.items())
            yield f"- {name}: {known}"
        yield ""
    for part in parts:
        load = part["load"]
        yield (
            f"- {part['measure']}: {part['machine']['at']}, {part['seconds']:.0f} s, load average "
            f"{load['load_average_before']} to {load['load_average_after']}"
        )


def _bars(figures: list[Figure]) -> Iterator[str]:
    yield "| bar | aim | median (min..max) | reached |"
    yield "| --- | --- | --- | --- |"
    for bar in BARS:
        summary = bar.found(figures)
        aim = f"{'≥' if bar.more else '≤'} {number(bar.aim)}"
        if summary is None:
            yield f"| {bar.text} | {aim} | not measured | |"
        else:
            answer = "yes" if bar.reached(summary) else "**no**"
            yield f"| {bar.text} | {aim} | {_spread(summary)} | {answer} |"


def _table(figures: list[Figure]) -> Iterator[str]:
    """A line for each figure and subject, the figure's order and then the subjects' as measured."""
    yield "| figure | subject | unit | median (min..max) | rounds | ratio to ours | beside it |"
    yield "| --- | --- | --- | --- | --- | --- | --- |"
    for name in dict.fromkeys(each.name for each in figures):
        ours = by_round(figures, name, OURS)
        same = [each for each in figures if each.name == name]
        for subject in dict.fromkeys(each.subject for each in same):
            own = [each for each in same if each.subject == subject]
            values = by_round(own, name, subject)
            summary = Summary.of(values.values())
            if summary is None:
                yield f"| {name} | {subject} | | {own[-1].reason} | 0 | | |"
                continue
            ratio = ratios(values, ours) if subject != OURS else None
            yield (
                f"| {name} | {subject} | {own[0].unit} | {_spread(summary)} | {summary.count} "
                f"| {_spread(ratio) if ratio else ''} | {_beside(own)} |"
            )


def _beside(figures: list[Figure]) -> str:
    """What else was counted, of the last round that has it."""
    seen: dict[str, str] = {}
    for each in figures:
        for key in _DETAILS:
            value = each.detail.get(key)
            if isinstance(value, int | float):
                seen[key] = f"{key.replace('_', ' ')} {number(value)}"
    return ", ".join(seen.values())


def _reasons(figures: list[Figure], part: dict[str, Any]) -> Iterator[str]:
    for name, reason in part["absent"].items():
        yield f"- {name} took no part: {reason}"
    for each in figures:
        if each.value is None:
            yield f"- {each.subject}, {each.name}, round {each.round + 1}: {each.reason}"
