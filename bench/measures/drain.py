"""No-op jobs a second from a backlog, at the defaults and tuned, with one and two processes.

The clock runs from the first job's start to the last row that is finished in the database (for a
subject that cannot count its rows cheaply, and for a drain that is cut off: to the last job's
start). Beside it, on a clone of the same backlog, pgbench drains by our own two statements.
"""

from __future__ import annotations

import time

import psycopg

from bench import pgbench
from bench.arena import scalar
from bench.contestant import Contestant, Turn
from bench.environments import UnavailableError
from bench.run import OURS, Run

NAME = "drain"
_START_SECONDS = 40.0


def run(run: Run) -> None:
    """Everybody in every round; the limit in our turn."""
    for number, contestant in run.rounds():
        for profile, processes in (("defaults", 1), ("tuned", 1), ("tuned", 2)):
            name = profile if processes == 1 else f"{profile}, two processes"
            _measure(run, number, contestant, name, profile, processes)
        if contestant.name == OURS:
            _ours(run, number, contestant)


def _measure(
    run: Run,
    number: int,
    contestant: Contestant,
    name: str,
    profile: str,
    processes: int,
    kind: str = "noop",
) -> None:
    with run.attempt(NAME, name, contestant.name, "jobs/s", number) as take:
        backlog = contestant.subject.backlog
        count = run.sizes.scaled(backlog.get(profile, backlog["tuned"]))
        with contestant.turn(contestant.load(kind, count)) as turn:
            run.arena.reset()
            rate, finished = drain(turn, profile, processes, count, run.sizes.cap)
            counts = run.arena.counts(turn.database)
            take(
                rate,
                jobs=count,
                finished=finished,
                settings=contestant.subject.settings.get(profile, profile),
                statements_a_job=counts.statements / finished,
                statements_without_begin_commit_a_job=counts.without_begin_commit / finished,
                buffers_a_job=counts.buffers / finished,
                wal_bytes_a_job=counts.wal_bytes / finished,
            )


def drain(turn: Turn, profile: str, processes: int, count: int, cap: float) -> tuple[float, int]:
    """Drain a loaded turn; return jobs a second, and how many were run."""
    unfinished = turn.contestant.subject.unfinished
    with psycopg.connect(turn.dsn, autocommit=True) as conn:
        for _ in range(processes):
            turn.work(profile)
        if not turn.until(1, _START_SECONDS):
            raise UnavailableError(f"no job was started within {_START_SECONDS:g} s")
        whole = turn.until(count, cap)
        deadline = time.monotonic() + 10
        while whole and unfinished and scalar(conn, unfinished):
            if time.monotonic() > deadline:
                raise UnavailableError("jobs that have run are not finished in the database")
            time.sleep(0.005)
        end = time.monotonic()
    marks = turn.marks()
    if not whole or not unfinished:
        end = marks[-1]
    if len(marks) < 3:
        raise UnavailableError(f"only {len(marks)} jobs were run within {cap:g} s")
    return len(marks) / (end - marks[0]), len(marks)


def _ours(run: Run, number: int, contestant: Contestant) -> None:
    """What is only measured of ours: other batches, handlers that wait, and the limit."""
    _measure(run, number, contestant, "100 slots", "batch100", 1)
    _measure(run, number, contestant, "waiting 1 ms", "tuned", 1, "nap")
    _measure(run, number, contestant, "waiting 1 ms, two processes", "tuned", 2, "nap")
    for processes in (1, 2):
        name = "waiting 1 ms at the defaults" + (", two processes" if processes == 2 else "")
        _measure(run, number, contestant, name, "defaults", processes, "nap")
    count = run.sizes.scaled(contestant.subject.backlog["tuned"])
    template = contestant.load("noop", count)
    for clients in (1, 2):
        for batch in run.sizes.batches:
            subject = f"pgbench batch {batch}"
            name = "tuned" if clients == 1 else "tuned, two processes"
            with (
                run.attempt(NAME, name, subject, "jobs/s", number) as take,
                contestant.turn(template) as turn,
            ):
                take(pgbench.drain(run.arena, turn.dsn, count, batch, clients), jobs=count)
