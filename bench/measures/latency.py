"""Milliseconds from the moment before the enqueue call to the job's start in another process.

Near: jobs 25 ms apart, one subject after the other. Far: jobs a second apart, so that the worker
goes idle between them; all subjects side by side, since a round would take minutes otherwise.
Workers are at their defaults.
"""

from __future__ import annotations

import math
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

from bench.contestant import Turn
from bench.environments import UnavailableError
from bench.run import Run

NAME = "latency"
_GRACE = 30.0


def run(run: Run) -> None:
    """Near in turn, far together."""
    sizes = run.sizes
    for number, contestant in run.rounds():
        with (
            run.attempt(NAME, "25 ms apart, p50", contestant.name, "ms", number) as take,
            contestant.turn() as turn,
        ):
            turn.work("defaults")
            time.sleep(sizes.settle_seconds)
            values = _stamped(turn, sizes.near, 0.025)
            take(percentile(values, 50), p99=percentile(values, 99), worst=values[-1])
            with run.attempt(NAME, "25 ms apart, p99", contestant.name, "ms", number) as second:
                second(percentile(values, 99))
    for number in range(sizes.rounds):
        _far(run, number)


def _far(run: Run, number: int) -> None:
    with ExitStack() as stack, ThreadPoolExecutor() as pool:
        turns = [stack.enter_context(each.turn()) for each in run.contestants]
        for turn in turns:
            turn.work("defaults")
        time.sleep(run.sizes.settle_seconds)
        waiting = [pool.submit(_stamped, turn, run.sizes.far, 1.0) for turn in turns]
        for turn, future in zip(turns, waiting, strict=True):
            name = turn.contestant.name
            for share in (50, 99):
                figure = f"1 s apart, p{share}"
                with run.attempt(NAME, figure, name, "ms", number) as take:
                    values = future.result()
                    take(percentile(values, share), worst=values[-1])


def _stamped(turn: Turn, count: int, gap: float) -> list[float]:
    """Milliseconds of each job, sorted."""
    turn.contestant.call(turn.dsn, "stamps", count=count, gap=gap)
    if not turn.until(count, _GRACE, "latencies"):
        seen = turn.count("latencies")
        raise UnavailableError(f"only {seen} of {count} jobs were started within {_GRACE:g} s")
    return [1000 * seconds for seconds in turn.marks("latencies")]


def percentile(values: list[float], share: float) -> float:
    """The smallest of the sorted values that at least `share` per cent of them do not exceed."""
    return values[max(0, math.ceil(len(values) * share / 100) - 1)]
