"""O-28: behind PgBouncer in transaction mode everything works, by polling."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict
from psycopg_pool import AsyncConnectionPool, ConnectionPool

import jobs
from devkit import pgbouncer
from devkit.rundir import run_dir
from tests.runtime.working import Input, Table, execute, job, make, until
from tests.support.server import Clones

pytestmark = pytest.mark.skipif(
    pgbouncer.find() is None,
    reason="pgbouncer is not installed (Debian: apt-get install pgbouncer)",
)

REFUSED = {"ignore_startup_parameters": "extra_float_digits"}
DROPPED = {"ignore_startup_parameters": "extra_float_digits,options"}


@contextmanager
def pooled(clones: Clones, database: str, settings: dict[str, str]) -> Iterator[str]:
    """DSN of a database through a pooler with two sessions."""
    name = str(conninfo_to_dict(database)["dbname"])
    with (
        run_dir("sql-jobs-pooler") as place,
        pgbouncer.running(place / "b", Path(clones.host), settings=settings) as pooler,
    ):
        yield pooler.dsn(name)


@pytest.mark.parametrize("settings", [REFUSED, DROPPED], ids=["refused", "dropped"])
@pytest.mark.parametrize("trap", [False, True], ids=["plain", "trap"])
async def test_every_job_runs_once(
    clones: Clones,
    database: str,
    settings: dict[str, str],
    trap: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Whether the pooler refuses our session settings or drops them in silence.

    In the trap the database has one of them itself, so that they seem to have got through.
    """
    ran: list[tuple[str, int]] = []
    if trap:
        name = conninfo_to_dict(database)["dbname"]
        execute(database, f'alter database "{name}" set plan_cache_mode = force_generic_plan')
    with pooled(clones, database, settings) as dsn:
        options: dict[str, Any] = {"prepare_threshold": None}
        threads_pool = ConnectionPool(dsn, min_size=0, max_size=4, kwargs=options, open=True)
        loop_pool = AsyncConnectionPool(dsn, min_size=0, max_size=4, kwargs=options, open=False)

        @job()
        async def plain(input: Input, run: jobs.Run) -> None:
            ran.append((run.name, input.n))
            if input.n % 10 == 0 and run.attempt == 1:
                ran.pop()
                raise ValueError("again")

        @job()
        async def completes(input: Input, run: jobs.Run) -> None:
            async with loop_pool.connection() as conn, conn.transaction():
                await run.complete(conn)
            ran.append((run.name, input.n))

        @job()
        def completes_in_thread(input: Input, run: jobs.Run) -> None:
            with threads_pool.connection() as conn:
                run.complete(conn)
            ran.append((run.name, input.n))

        handles = (plain, completes, completes_in_thread)
        table = Table(database)
        for handle in handles:
            table.enqueue(handle, 60)
        caplog.set_level(logging.INFO, "jobs")
        async with loop_pool:
            workers = [make(dsn, *handles) for _ in range(3)]
            for worker in workers:
                await worker.start()
            await until(lambda: not table.count_live(), "all to end")
            await until(lambda: sum(w.stats().completed for w in workers) == 180, "the answers")
            for worker in workers:
                worker.stop()
            await asyncio.gather(*(worker.wait() for worker in workers))
        threads_pool.close()
    assert sorted(ran) == sorted((handle.name, n) for handle in handles for n in range(60))
    assert table.counters() == {"completed": 180, "retried": 6}
    odd = [
        record.getMessage()
        for record in caplog.records
        if record.levelno >= logging.WARNING
        and getattr(record, "event", "") != "jobs.run.attempt_failed"
    ]
    assert odd == []
    assert "connected through a pooler" in caplog.text


async def test_leases_hold_through_a_pooler(clones: Clones, database: str) -> None:
    gate = asyncio.Event()
    starts: list[int] = []

    @job()
    async def waits(input: Input) -> None:
        starts.append(input.n)
        await gate.wait()

    table = Table(database)
    table.enqueue(waits, 5)
    with pooled(clones, database, REFUSED) as dsn:
        async with make(dsn, waits, name="one"), make(dsn, waits, name="two") as two:
            await until(lambda: len(starts) == 5, "the starts")
            await asyncio.sleep(3)
            assert sorted(starts) == list(range(5))
            gate.set()
            await until(lambda: not table.count_live(), "the end")
    assert two.stats().lost == 0
    assert table.counters() == {"completed": 5}


async def test_statements_are_prepared_where_no_pooler_is_between(database: str) -> None:
    async with make(database, listen=False) as worker:
        await until(lambda: worker._links[0]._conn is not None, "the session")
        await asyncio.sleep(0.3)
        conn = worker._links[0]._conn
        assert isinstance(conn, psycopg.AsyncConnection)
        assert conn.prepare_threshold == 0
        assert len(conn._prepared._names) == 2, "a claim and a sign of life: one plan each"
