"""Our drain beside finished and scheduled rows, against the same in a fresh database.

Both databases live through all rounds, in turn, each beginning every second round. The jobs are
enqueued by COPY into the queue that holds the scheduled rows as well. Buffers a claimed job come
from pg_stat_statements.
"""

from __future__ import annotations

from contextlib import ExitStack

import psycopg

from bench.arena import Arena
from bench.contestant import Contestant, Turn
from bench.measures.drain import drain
from bench.run import OURS, Run

NAME = "backlog"
_SCHEDULED = """
    insert into jobs.job (id, run_id, queue, name, max_attempts, available_at, input)
    select gen_random_uuid(), gen_random_uuid(), 'bench', 'noop', 3,
        now() + interval '1 day' + i * interval '1 second', '{"v": 1}'
    from generate_series(1, %(rows)s::integer) as s (i)
"""
_FINISHED = """
    insert into jobs.settled (
        id, settled_at, claims, revoked, attempt, state, run_id, created_at, claimed_at,
        max_attempts, priority, dead_letter, queue, name, tenant, idempotency_scope, input
    )
    select gen_random_uuid(), now() - i * interval '1 second', 1, 0, 1, 'completed',
        gen_random_uuid(), now(), now(), 3, 0, true, 'bench', 'noop', '', 'live', '{"v": 1}'
    from generate_series(1, %(rows)s::integer) as s (i)
"""


def run(run: Run) -> None:
    """Ours alone: the bar is about our own table."""
    ours = run.ours
    with ExitStack() as stack:
        fresh = run.arena.create(f"{ours.template}_fresh", ours.template)
        full = run.arena.create(f"{ours.template}_full", ours.template)
        for name in ("fresh", "full"):
            stack.callback(run.arena.drop, f"{ours.template}_{name}")
        with psycopg.connect(full, autocommit=True) as conn:
            for statement in (_SCHEDULED, _FINISHED):
                conn.execute(statement, {"rows": run.sizes.rows})
        for number in range(run.sizes.history_rounds):
            pair = [("fresh", fresh, 0), ("beside them", full, run.sizes.rows)]
            for name, dsn, scheduled in pair if number % 2 else pair[::-1]:
                with run.attempt(NAME, name, OURS, "jobs/s", number) as take:
                    rate, buffers = _drain(run, ours, dsn)
                    take(rate, claim_buffers_a_job=buffers, rows=scheduled)
                with run.attempt(NAME, f"claim, {name}", OURS, "buffers/job", number) as take:
                    take(buffers)


def _drain(run: Run, ours: Contestant, dsn: str) -> tuple[float, float]:
    count = run.sizes.history_drain
    ours.call(dsn, "copy", count=count)
    run.arena.settle(dsn)
    with ours.beside(dsn) as turn:
        run.arena.reset()
        rate = drain(turn, "tuned", 1, count, run.sizes.cap)[0]
        return rate, claim_buffers(run.arena, turn) / count


def claim_buffers(arena: Arena, turn: Turn) -> float:
    """Buffers that claims have touched since the reset."""
    return arena.counts(turn.database, "jobs:claim_jobs").buffers
