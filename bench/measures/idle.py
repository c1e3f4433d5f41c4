"""Statements a minute of one idle worker at its defaults, all subjects side by side."""

from __future__ import annotations

import time
from contextlib import ExitStack

from bench.run import Run

NAME = "idle"


def run(run: Run) -> None:
    """One round: the count hardly varies. Each subject has a database of its own."""
    sizes = run.sizes
    with ExitStack() as stack:
        turns = [stack.enter_context(each.turn()) for each in run.contestants]
        for turn in turns:
            turn.work("defaults")
        time.sleep(2 * sizes.settle_seconds)
        run.arena.reset()
        time.sleep(sizes.idle)
        for turn in turns:
            counts = run.arena.counts(turn.database)
            name = turn.contestant.name
            with run.attempt(NAME, "statements", name, "a minute", 0) as take:
                turn.check()
                take(
                    counts.statements * 60 / sizes.idle,
                    without_begin_commit=counts.without_begin_commit * 60 / sizes.idle,
                )
