"""Jobs enqueued a second: one by one, in bulk, by COPY; beside bare inserts into the same table."""

from __future__ import annotations

from bench import pgbench
from bench.contestant import Contestant
from bench.run import OURS, Run

NAME = "enqueue"
_COPIED = 100_000


def run(run: Run) -> None:
    """Everybody in every round, then the limit."""
    for number, contestant in run.rounds():
        _one(run, number, contestant)
        _many(run, number, contestant)
        if contestant.name == OURS:
            _copy(run, number, contestant)
            _limit(run, number, contestant)


def _one(run: Run, number: int, contestant: Contestant) -> None:
    count = run.sizes.scaled(contestant.subject.one)
    with (
        run.attempt(NAME, "one by one", contestant.name, "jobs/s", number) as take,
        contestant.turn() as turn,
    ):
        run.arena.reset()
        seconds = contestant.call(turn.dsn, "one", count=count)["seconds"]
        counts = run.arena.counts(turn.database)
        take(
            count / seconds,
            jobs=count,
            statements_a_job=counts.statements / count,
            wal_bytes_a_job=counts.wal_bytes / count,
        )


def _many(run: Run, number: int, contestant: Contestant) -> None:
    count = run.sizes.scaled(contestant.subject.bulk)
    with (
        run.attempt(NAME, "bulk", contestant.name, "jobs/s", number) as take,
        contestant.turn() as turn,
    ):
        seconds = contestant.call(turn.dsn, "many", count=count)["seconds"]
        take(count / seconds, jobs=count, call=contestant.subject.bulk_call)


def _copy(run: Run, number: int, contestant: Contestant) -> None:
    count = run.sizes.scaled(_COPIED)
    with (
        run.attempt(NAME, "copy", contestant.name, "jobs/s", number) as take,
        contestant.turn() as turn,
    ):
        seconds = contestant.call(turn.dsn, "copy", count=count)["seconds"]
        take(count / seconds, jobs=count)


def _limit(run: Run, number: int, contestant: Contestant) -> None:
    for name, rows in (("one by one", 1), ("bulk", 1000)):
        count = run.sizes.scaled(2_000 if rows == 1 else 100_000)
        with (
            run.attempt(NAME, name, "pgbench", "jobs/s", number) as take,
            contestant.turn() as turn,
        ):
            take(pgbench.insert(run.arena, turn.dsn, rows, max(1, count // rows)), jobs=count)
