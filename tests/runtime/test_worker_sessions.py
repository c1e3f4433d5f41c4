"""What a worker asks of its own sessions."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import psycopg
import pytest
from psycopg import AsyncConnection, Connection

from jobs.control import pause, pauses
from jobs.service.link import Link, Target
from tests.runtime.working import Input, Table, execute, job, logged, make, serving, until

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
        assert link._conn is None
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


FOREIGN = [
    "datestyle = 'SQL, DMY'",
    "datestyle = 'German'",
    "datestyle = 'Postgres, MDY'",
    "intervalstyle = 'iso_8601'",
    "array_nulls = off",
    "client_encoding = 'SQL_ASCII'",
    "bytea_output = 'escape'",
    "standard_conforming_strings = off",
    "timezone = 'America/St_Johns'",
]


@pytest.mark.parametrize(
    ("setting", "dropped"),
    [
        (setting, dropped)
        for setting in FOREIGN
        for dropped in (False, True)
        # Nothing but the setting tells how to read an array.
        if not (dropped and setting.startswith("array_nulls"))
    ],
)
async def test_a_worker_serves_a_database_that_spells_values_its_own_way(
    database: str, setting: str, dropped: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where a pooler drops what the worker asks of its sessions."""
    if dropped:
        monkeypatch.setattr(Target, "with_options", lambda target: target.conninfo)
    name = psycopg.conninfo.conninfo_to_dict(database)["dbname"]
    ids = Table(database).enqueue(echo, 3)
    Table(database).enqueue(mute, 2)
    execute(database, f'alter database "{name}" set {setting}')
    stats = await make(database, echo, mute).run_until_idle()
    assert (stats.completed, stats.unsettled) == (5, 0)
    with psycopg.connect(database, autocommit=True) as conn:
        assert [echo.result(conn, id) for id in ids] == ["0", "1", "2"]
        assert pause(conn, "q")
        (paused,) = pauses(conn)
        assert paused.paused_at.utcoffset() is not None


@job()
async def echo(input: Input) -> str:
    """Answer with the number."""
    return str(input.n)


@job()
async def mute(input: Input) -> None:
    """Answer nothing."""


async def test_sessions_that_wait_are_not_ended_for_it(
    database: str, caplog: pytest.LogCaptureFixture
) -> None:
    name = psycopg.conninfo.conninfo_to_dict(database)["dbname"]
    execute(database, f'alter database "{name}" set idle_session_timeout = 100')
    async with serving(database, echo) as worker:
        await asyncio.sleep(0.5)
        execute(database, f'alter database "{name}" reset idle_session_timeout')
        Table(database).enqueue(echo)
        await until(lambda: worker.stats().completed, "the job")
    assert not logged(caplog, "jobs.worker.settle_failed")
    assert not logged(caplog, "jobs.worker.deaf")
