"""Seconds from SIGKILL of a worker that runs 20 jobs until another one has started each again.

Ours alone, at the default lease. The peers were measured once: from 34 s to never.
"""

from __future__ import annotations

import time

from bench.environments import UnavailableError
from bench.run import OURS, Run

NAME = "rescue"
_JOBS = 20
_SECONDS = 60.0


def run(run: Run) -> None:
    """One round: it lasts as long as a lease."""
    ours = run.ours
    with run.attempt(NAME, "all again", OURS, "s", 0) as take, ours.turn() as turn:
        ours.call(turn.dsn, "many", kind="hang", count=_JOBS)
        first = turn.work("wide")
        if not turn.until(_JOBS, 10, "begun"):
            raise UnavailableError("the jobs were not started")
        turn.let_go()
        killed = time.monotonic()
        turn.kill(first)
        turn.work("wide")
        if not turn.until(_JOBS, _SECONDS):
            raise UnavailableError(f"{turn.count()} of {_JOBS} were rescued in {_SECONDS:g} s")
        marks = turn.marks()
        take(marks[-1] - killed, first=marks[0] - killed, again=len(marks))
