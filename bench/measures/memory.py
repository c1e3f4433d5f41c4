"""Resident memory of a worker while many jobs wait in it, and before they came."""

from __future__ import annotations

import time
from pathlib import Path

from bench.contestant import Contestant
from bench.environments import UnavailableError
from bench.run import Run

NAME = "memory"
_START_SECONDS = 60.0


def run(run: Run) -> None:
    """Everybody in every round."""
    for number, contestant in run.rounds():
        _measure(run, number, contestant)


def _measure(run: Run, number: int, contestant: Contestant) -> None:
    wanted = min(run.sizes.waiting, contestant.subject.reach)
    with (
        run.attempt(NAME, "waiting", contestant.name, "MiB", number) as take,
        contestant.turn() as turn,
    ):
        worker = turn.work("wide")
        time.sleep(run.sizes.settle_seconds)
        turn.check()
        idle = resident(worker.pid)
        contestant.call(turn.dsn, "many", kind="hang", count=wanted)
        if not turn.until(wanted, _START_SECONDS, "begun"):
            seen = turn.count("begun")
            raise UnavailableError(f"only {seen} of {wanted} jobs ran at the same time")
        full = resident(worker.pid)
        take(full, jobs=wanted, idle=idle, kib_a_job=(full - idle) * 1024 / wanted)


def resident(group: int) -> float:
    """MiB of all processes of a process group."""
    total = 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
            if int(fields[2]) == group:
                status = (stat.parent / "status").read_text()
                total += int(status.partition("VmRSS:")[2].split()[0])
        except (OSError, IndexError):  # it has ended meanwhile
            continue
    return total / 1024
