"""What a worker asks of its own sessions."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from psycopg import AsyncConnection, Connection

import jobs
import jobs.control as control
from jobs.connecting import session
from jobs.service.link import Link, Target
from tests.runtime.ticking import fired, scheduling, store, work
from tests.runtime.working import Input, Table, execute, job, make, until

_LEVEL = "show transaction_isolation"


@pytest.fixture
def strict(database: str) -> str:
    """A database whose sessions begin with a stricter isolation level than READ COMMITTED."""
    name = psycopg.conninfo.conninfo_to_dict(database)["dbname"]
    execute(database, f'alter database "{name}" set default_transaction_isolation = serializable')
    with psycopg.connect(database) as conn:
        assert conn.execute(_LEVEL).fetchone() == ("serializable",), "else this tests nothing"
    return database


def level(row: Any) -> str:
    return str(row[0])


async def test_the_statements_run_at_the_level_they_were_made_for(strict: str) -> None:
    with Target.of(strict, "test").open() as conn:
        assert level(conn.execute(_LEVEL).fetchone()) == "read committed"
    async with await Target.of(strict, "test").open_async() as aconn:
        assert level(await (await aconn.execute(_LEVEL)).fetchone()) == "read committed"


async def test_a_session_that_could_not_be_checked_is_not_used(
    database: str, conn: Connection[Any]
) -> None:
    """A migration that holds the table of versions, say. It would be used unprepared for ever."""
    target = Target.of(database, "test")
    impatient = target.options.replace("lock_timeout=5s", "lock_timeout=100ms")
    link = Link(replace(target, options=impatient))
    with conn.transaction():
        conn.execute("lock table jobs.migration")
        with pytest.raises(psycopg.errors.LockNotAvailable):
            await link.open()
        assert not link.connected
    try:
        await link.open()
        assert await link.call(threshold, 10) == 0
    finally:
        await link.close()


async def threshold(conn: AsyncConnection[Any]) -> int | None:
    """After how many calls a statement is prepared."""
    return conn.prepare_threshold


async def test_a_worker_serves_a_database_with_a_stricter_default(strict: str) -> None:
    @job()
    async def plain(_: Input) -> None:
        pass

    ids = Table(strict).enqueue(plain, 20)
    stats = await make(strict, plain).run_until_idle()
    assert stats.completed == len(ids)
    assert {Table(strict).settled(id).state for id in ids} == {"completed"}


@pytest.mark.parametrize(
    "setting",
    [
        "datestyle = 'German'",
        "datestyle = 'SQL, DMY'",
        "intervalstyle = 'iso_8601'",
        "intervalstyle = 'sql_standard'",
        "array_nulls = off",
    ],
)
async def test_what_a_database_shows_otherwise_is_read_all_the_same(
    database: str, setting: str
) -> None:
    name = psycopg.conninfo.conninfo_to_dict(database)["dbname"]

    @job()
    async def plain(_: Input) -> None:
        pass

    Table(database).enqueue(plain)
    with psycopg.connect(database) as conn:
        plain.stage(conn, Input())
    store(database, "each second")
    execute(database, f'alter database "{name}" set {setting}')
    assert (await make(database, plain).run_until_idle()).completed == 1
    assert (await jobs.Relay(database).run_until_idle()).published == 1
    async with scheduling(database):
        await until(lambda: fired(database, "each second"), "a fire")
    with session(database) as conn:
        assert control.get_schedule(conn, "each second").every == timedelta(seconds=1)


async def test_a_limit_on_idle_sessions_is_not_for_those_that_listen(
    database: str, caplog: pytest.LogCaptureFixture
) -> None:
    """They would be ended between two looks, and each such look would fail first."""
    caplog.set_level(logging.WARNING, "jobs")
    name = psycopg.conninfo.conninfo_to_dict(database)["dbname"]
    execute(database, f'alter database "{name}" set idle_session_timeout = 300')
    async with make(database, work), jobs.Relay(database):
        await asyncio.sleep(1.5)
    assert [record.getMessage() for record in caplog.records] == []
