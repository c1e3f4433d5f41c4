"""The effect of a job in the tests of run.complete: a row in a table of its own."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import psycopg
from psycopg import AsyncConnection, Connection

import jobs
from tests.runtime.working import rows


def make_table(database: str) -> None:
    """Where the effects go."""
    with psycopg.connect(database, autocommit=True) as conn:
        conn.execute("create table public.effect (job uuid not null, claims bigint not null)")


def effects(database: str) -> list[UUID]:
    """Whose effects have been committed."""
    return [row.job for row in rows(database, "select job from public.effect")]


async def write(conn: AsyncConnection[Any], run: jobs.Run) -> None:
    """The effect of an asynchronous job."""
    await conn.execute("insert into public.effect values (%s, %s)", (run.id, run.claims))


def write_sync(conn: Connection[Any], run: jobs.Run) -> None:
    """The effect of a synchronous job."""
    conn.execute("insert into public.effect values (%s, %s)", (run.id, run.claims))
