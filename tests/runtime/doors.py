"""Either flavour of connection behind one awaitable surface, and the jobs that tests enqueue."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

from psycopg import AsyncConnection, Connection
from pydantic import BaseModel

import jobs


class Payload(BaseModel):
    """What the jobs of these tests carry."""

    key: str = "k"
    tenant: str = "t"
    note: str = ""
    number: float = 0.0


@jobs.job(queue="plain", tenant=jobs.NO_TENANT, idempotency_key=jobs.NO_KEY)
def plain(input: Payload) -> None:
    """A job without tenant and key."""


@jobs.job(
    queue="keyed",
    tenant=lambda input: input.tenant,
    idempotency_key=lambda input: input.key,
    retry=jobs.Retry(attempts=7, dead_letter=False),
    priority=2,
)
async def keyed(input: Payload) -> None:
    """A job with everything."""


@jobs.job(
    queue="waiting",
    tenant=jobs.NO_TENANT,
    idempotency_key=lambda input: input.key,
    idempotency_scope="waiting",
)
async def waiting(input: Payload) -> None:
    """A job of which one more may wait behind a running one."""


class Stored(NamedTuple):
    """A row of jobs.job, as far as an enqueue decides it."""

    id: UUID
    run_id: UUID
    queue: str
    name: str
    tenant: str
    priority: int
    available_at: datetime
    max_attempts: int
    dead_letter: bool
    idempotency_scope: str
    idempotency_key: str | None
    traceparent: str | None
    enqueued_by: str | None
    input: str


_STORED = """
    select id, run_id, queue, name, tenant, priority, available_at, max_attempts, dead_letter,
        idempotency_scope, idempotency_key, traceparent, enqueued_by, input::text
    from jobs.job
    order by id
"""


class Door:
    """A connection of either flavour, used the same way by a test."""

    def __init__(self, conn: Connection[Any] | AsyncConnection[Any]) -> None:
        self.conn: Any = conn
        self.is_async = isinstance(conn, AsyncConnection)

    async def enqueue(self, handle: jobs.JobHandle[Any], input: Any, **options: Any) -> Any:
        """``handle.enqueue`` on this connection."""
        return await settled(handle.enqueue(self.conn, input, **options))

    async def enqueue_many(
        self, handle: jobs.JobHandle[Any], items: Iterable[Any], **options: Any
    ) -> Any:
        """``handle.enqueue_many`` on this connection."""
        return await settled(handle.enqueue_many(self.conn, items, **options))

    async def copy_many(
        self, handle: jobs.JobHandle[Any], inputs: Iterable[Any], **options: Any
    ) -> Any:
        """``handle.copy_many`` on this connection."""
        return await settled(handle.copy_many(self.conn, inputs, **options))

    async def execute(self, statement: str, *params: Any) -> list[Any]:
        """Run a statement and return its rows, none for one without a result."""
        cursor = await settled(self.conn.execute(statement, params or None))
        return await settled(cursor.fetchall()) if cursor.description else []

    async def set_autocommit(self, on: bool) -> None:
        """Switch autocommit mode."""
        await settled(self.conn.set_autocommit(on))

    async def commit(self) -> None:
        """Commit the transaction."""
        await settled(self.conn.commit())

    async def rollback(self) -> None:
        """Roll the transaction back."""
        await settled(self.conn.rollback())


async def settled(value: Any) -> Any:
    """Return a value, awaited if it is an awaitable."""
    return await value if inspect.isawaitable(value) else value


def stored(conn: Connection[Any]) -> list[Stored]:
    """Return all live jobs as another session sees them, in order of their ids."""
    with conn.cursor() as cursor:
        return [Stored._make(row) for row in cursor.execute(_STORED).fetchall()]
