"""Seconds from the start of a worker process to its first job, and to import the library."""

from __future__ import annotations

import time

from bench.contestant import Contestant
from bench.environments import UnavailableError
from bench.run import Run

NAME = "startup"
_WAITING = 10
_SECONDS = 60.0


def run(run: Run) -> None:
    """Everybody in every round, with files in the page cache."""
    for number, contestant in run.rounds():
        with run.attempt(NAME, "import", contestant.name, "s", number) as take:
            contestant.call("", "import")
            take(contestant.call("", "import")["seconds"])
        _first_job(run, number, contestant)


def _first_job(run: Run, number: int, contestant: Contestant) -> None:
    with (
        run.attempt(NAME, "first job", contestant.name, "s", number) as take,
        contestant.turn(contestant.load("noop", _WAITING)) as turn,
    ):
        began = time.monotonic()
        turn.work("defaults")
        if not turn.until(1, _SECONDS):
            raise UnavailableError(f"no job was started within {_SECONDS:g} s")
        take(turn.marks()[0] - began)
