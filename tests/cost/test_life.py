"""What a worker sends for a job from its enqueue to its end keeps the budget.

The batches of a worker depend on its event loop, so these counts vary a little from run to run; the
budget of the statements leaves room for that.
"""

from __future__ import annotations

import logging
import sys
from typing import Any

import psycopg
import pytest
from pydantic import BaseModel

import jobs
from tests.cost.budget import limits, verdict

pytestmark = pytest.mark.lone

_JOBS, _SLOTS = 1_000, 100
# As clients send them.
_TOTALS = """
    select sum(s.calls), sum(s.shared_blks_hit + s.shared_blks_read), sum(s.wal_bytes)
    from pg_stat_statements as s
    inner join pg_database as d on d.oid = s.dbid and d.datname = current_database()
    where s.toplevel and s.query not like '%pg_stat_statements%'
"""
_RESET = """
    select pg_stat_statements_reset(0, d.oid, 0)
    from pg_database as d
    where d.datname = current_database()
"""


class Number(BaseModel):
    """A payload of a few bytes."""

    n: int


@jobs.job(queue="mail", tenant=jobs.NO_TENANT, idempotency_key=jobs.NO_KEY)
async def send(input: Number) -> None:
    """Nothing."""


async def test_of_a_thousand_jobs_in_a_hundred_slots(
    database: str, conn: psycopg.Connection[Any], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    conn.execute("create extension if not exists pg_stat_statements")
    conn.execute(_RESET)
    for start in range(0, _JOBS, _SLOTS):
        send.enqueue_many(conn, [Number(n=start + i) for i in range(_SLOTS)])
    worker = jobs.Worker(database, jobs.Registry.of(sys.modules[__name__]), queues={"mail": _SLOTS})
    stats = await worker.run_until_idle()
    assert stats.completed == _JOBS
    row = conn.execute(_TOTALS).fetchone()
    assert row is not None
    statements, buffers, wal_bytes = map(float, row)
    table = limits("life")
    found = [
        # A settle takes what has ended while the one before was under way.
        verdict("statements", statements, table["statements"]),
        verdict("buffers a job", buffers / _JOBS, table["buffers_a_job"]),
        verdict("WAL bytes a job", wal_bytes / _JOBS, table["wal_bytes_a_job"]),
    ]
    assert not any(found), found


async def test_one_by_one_is_one_statement_each(
    database: str, conn: psycopg.Connection[Any]
) -> None:
    conn.execute("create extension if not exists pg_stat_statements")
    async with await psycopg.AsyncConnection.connect(database, autocommit=True) as mine:
        await send.enqueue(mine, Number(n=0))
        conn.execute(_RESET)
        for n in range(10):
            await send.enqueue(mine, Number(n=n))
    row = conn.execute(_TOTALS).fetchone()
    assert row is not None
    assert row[0] == 10 * limits("life")["enqueue_statements"]
