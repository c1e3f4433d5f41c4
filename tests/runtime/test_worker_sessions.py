"""What a worker asks of its own sessions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import psycopg
import pytest
from psycopg import AsyncConnection, Connection

from jobs.service.link import Link, Target
from tests.runtime.working import Input, Table, execute, job, make

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
