"""What has to be reached, as ratios inside one run, so that a slow machine does not decide."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from bench.figures import Figure, Summary, by_round, ratios
from bench.run import OURS

Figures = list[Figure]


@dataclass(frozen=True)
class Bar:
    """One aim.

    Attributes:
        text: What is compared.
        aim: The number to reach.
        more: Whether more is better.
        found: Computes it from the figures; None when something was not measured.
    """

    text: str
    aim: float
    more: bool
    found: Callable[[Figures], Summary | None]

    def reached(self, summary: Summary) -> bool:
        """Whether the median reaches the aim."""
        return summary.median >= self.aim if self.more else summary.median <= self.aim


def _of(figures: Figures, measure: str) -> Figures:
    return [each for each in figures if each.measure == measure]


def _share(
    measure: str, over: str, under: str, other: str = OURS
) -> Callable[[Figures], Summary | None]:
    """Our figure `over`, divided by `under` of another subject (or of ours) in the same round."""

    def found(figures: Figures) -> Summary | None:
        seen = _of(figures, measure)
        return ratios(by_round(seen, over, OURS), by_round(seen, under, other))

    return found


def _best(measure: str, name: str, *, more: bool) -> Callable[[Figures], Summary | None]:
    """Our figure divided by the best peer's of the same round."""

    def found(figures: Figures) -> Summary | None:
        seen = _of(figures, measure)
        peers = {f.subject for f in seen if f.subject != OURS and "pgbench" not in f.subject}
        best: dict[int, float] = {}
        for peer in peers:
            for number, value in by_round(seen, name, peer).items():
                known = best.get(number, value)
                best[number] = max(known, value) if more else min(known, value)
        return ratios(by_round(seen, name, OURS), best)

    return found


def _plain(measure: str, name: str) -> Callable[[Figures], Summary | None]:
    """Our figure as it is."""

    def found(figures: Figures) -> Summary | None:
        return Summary.of(by_round(_of(figures, measure), name, OURS).values())

    return found


_TWO = "tuned, two processes"
# With as many slots as jobs the processor is the limit, and not the wait.
_NAP = "waiting 1 ms at the defaults"

BARS = (
    Bar("drain tuned / best peer", 2.0, True, _best("drain", "tuned", more=True)),
    Bar(
        "drain tuned / procrastinate",
        15.0,
        True,
        _share("drain", "tuned", "tuned", "procrastinate"),
    ),
    Bar(
        "drain with 500 slots / pgbench at batch 500",
        0.6,
        True,
        _share("drain", "tuned", "tuned", "pgbench batch 500"),
    ),
    Bar(
        "drain with 100 slots / pgbench at batch 100",
        0.6,
        True,
        _share("drain", "100 slots", "tuned", "pgbench batch 100"),
    ),
    Bar(
        "drain, two processes / pgbench with two clients at batch 500",
        0.75,
        True,
        _share("drain", _TWO, _TWO, "pgbench batch 500"),
    ),
    Bar(
        "jobs that wait 1 ms, at the defaults: two processes / one",
        1.6,
        True,
        _share("drain", f"{_NAP}, two processes", _NAP),
    ),
    Bar("drain at the defaults / tuned", 0.8, True, _share("drain", "defaults", "tuned")),
    Bar("bulk enqueue / best peer", 1.0, True, _best("enqueue", "bulk", more=True)),
    Bar(
        "drain beside finished and scheduled rows / fresh",
        0.95,
        True,
        _share("backlog", "beside them", "fresh"),
    ),
    Bar(
        "buffers of a claim a job, beside them / fresh",
        1.05,
        False,
        _share("backlog", "claim, beside them", "claim, fresh"),
    ),
    Bar("drain under a held snapshot / fresh", 0.8, True, _share("snapshot", "held", "fresh")),
    Bar(
        "buffers of a claim a job at the end of it, held / fresh",
        1.25,
        False,
        _share("snapshot", "claim at the end, held", "claim at the end, fresh"),
    ),
    Bar(
        "buffers of a claim a job beside 10,000 blocked on one key / fresh",
        1.4,
        False,
        _share("blocked", "claim, beside them", "claim, fresh"),
    ),
    Bar("statements a minute of an idle worker", 30.0, False, _plain("idle", "statements")),
    Bar("latency 1 s apart, p50, ms", 5.0, False, _plain("latency", "1 s apart, p50")),
    Bar("latency 1 s apart, p99, ms", 15.0, False, _plain("latency", "1 s apart, p99")),
    Bar(
        "latency 25 ms apart, p50 / best peer",
        1.2,
        False,
        _best("latency", "25 ms apart, p50", more=False),
    ),
    Bar(
        "latency 25 ms apart, p99 / best peer",
        1.2,
        False,
        _best("latency", "25 ms apart, p99", more=False),
    ),
    Bar("rescue after SIGKILL, s (lease 30, poll 2)", 32.0, False, _plain("rescue", "all again")),
)
