"""Our drain beside jobs that are blocked on one key, against the same without them.

One job with the key hangs, the others line up behind it, due before everything else. The clock runs
from the first other job to the last one. Buffers a claimed job come from pg_stat_statements, the
parking included.
"""

from __future__ import annotations

import psycopg

from bench.contestant import Contestant
from bench.environments import UnavailableError
from bench.measures.backlog import claim_buffers
from bench.run import OURS, Run

NAME = "blocked"
_BLOCKED = """
    insert into jobs.job (
        id, run_id, queue, name, max_attempts, available_at, concurrency_key, concurrency_limit,
        when_busy, input
    )
    select gen_random_uuid(), gen_random_uuid(), 'bench', 'hang', 3,
        now() - interval '1 hour', 'hang:one', 1, 'wait', '{"v": 1}'
    from generate_series(1, %(rows)s::integer)
"""


def run(run: Run) -> None:
    """Ours alone: the bar is about our own claim."""
    for number in range(run.sizes.rounds):
        pair = [("fresh", 0), ("beside them", run.sizes.blocked)]
        for name, rows in pair if number % 2 else pair[::-1]:
            with run.attempt(NAME, name, OURS, "jobs/s", number) as take:
                rate, buffers = _drain(run, run.ours, rows)
                take(rate, claim_buffers_a_job=buffers, rows=rows)
            with run.attempt(NAME, f"claim, {name}", OURS, "buffers/job", number) as take:
                take(buffers)


def _drain(run: Run, ours: Contestant, rows: int) -> tuple[float, float]:
    count = run.sizes.history_drain
    with ours.turn(ours.load("noop", count)) as turn:
        with psycopg.connect(turn.dsn, autocommit=True) as conn:
            conn.execute(_BLOCKED, {"rows": rows})
        run.arena.settle(turn.dsn)
        run.arena.reset()
        turn.work("batch100")
        if not turn.until(count, 60):
            raise UnavailableError(f"only {turn.count()} of {count} jobs were run in 60 s")
        marks = turn.marks()
        buffers = claim_buffers(run.arena, turn)
        return count / (marks[-1] - marks[0]), buffers / count
