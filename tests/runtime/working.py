"""What the tests of a worker in this process share. Every worker is checked for what it leaves."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from types import ModuleType
from typing import Any
from uuid import UUID

import psycopg
import pytest
from psycopg import Connection
from psycopg.rows import namedtuple_row
from pydantic import BaseModel

import jobs
from jobs.declare import JobHandle
from tests.support.waiting import PATIENCE_SECONDS

QUICK: dict[str, Any] = {
    "lease": timedelta(seconds=2),
    "poll": timedelta(milliseconds=20),
    "idle_poll": timedelta(milliseconds=100),
    "drain": timedelta(seconds=5),
}


class Input(BaseModel):
    """A number, or nothing."""

    n: int = 0


def job(**options: Any) -> Any:
    """A job without key and tenant that is tried three times without delay."""
    retry = jobs.Retry(attempts=3, backoff="fixed", delay=timedelta(0), jitter=False)
    settings = {"tenant": jobs.NO_TENANT, "idempotency_key": jobs.NO_KEY, "retry": retry}
    return jobs.job(**(settings | options))


def registry(*handles: JobHandle[Any]) -> jobs.Registry:
    """A registry of just these."""
    module = ModuleType("made_for_a_test")
    for handle in handles:
        setattr(module, f"job_{handle.name}", handle)
    return jobs.Registry.of(module)


def make(database: object, *handles: JobHandle[Any], **options: Any) -> jobs.Worker:
    """A quick worker that knows these jobs."""
    return jobs.Worker(database, registry(*handles), **(QUICK | options))


@asynccontextmanager
async def leaving_nothing(database: str) -> AsyncIterator[None]:
    """Check that no task, thread or session of a worker is there after the block."""
    yield
    await until(lambda: not tasks(), "tasks to end")
    await until(lambda: not threads(), "threads to end")
    await until(lambda: not sessions(database), f"sessions to end: {sessions(database)}")


def tasks() -> list[str]:
    """Names of the tasks of workers; all of theirs have one."""
    names = [task.get_name() for task in asyncio.all_tasks()]
    return [name for name in names if name.startswith("job")]


def threads() -> list[str]:
    """Names of the threads of workers."""
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("job")]


def sessions(database: str) -> list[Any]:
    """Sessions of workers on a database."""
    return rows(
        database,
        "select pid, state, query from pg_stat_activity"
        " where datname = current_database() and application_name like 'jobs:%%'",
    )


@asynccontextmanager
async def serving(
    database: str, *handles: JobHandle[Any], dsn: object = None, **options: Any
) -> AsyncIterator[jobs.Worker]:
    """A worker that serves during the block, then drains and leaves nothing behind.

    dsn: what it connects to, where that is not the database itself.
    """
    async with leaving_nothing(database), make(dsn or database, *handles, **options) as worker:
        yield worker


def logged(caplog: pytest.LogCaptureFixture, event: str) -> list[str]:
    """Messages of an event."""
    return [r.getMessage() for r in caplog.records if getattr(r, "event", "") == event]


class Gate:
    """An asynchronous job that waits until it is let through."""

    def __init__(self) -> None:
        self.open = asyncio.Event()
        self.started: list[int] = []
        self.ended: list[int] = []

        @job(name="gated")
        async def gated(input: Input) -> None:
            self.started.append(input.n)
            await self.open.wait()
            self.ended.append(input.n)

        self.job = gated


async def until(condition: Callable[[], Any], what: str) -> Any:
    """The first true value of ``condition()``, while the event loop goes on."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"not in time: {what} (last seen: {value!r})")
        await asyncio.sleep(0.01)
    return value


def rows(database: str, statement: str, *values: object) -> list[Any]:
    """Rows with names."""
    with psycopg.connect(database, autocommit=True, row_factory=namedtuple_row) as conn:
        return conn.execute(statement, values or None).fetchall()


def execute(database: str, statement: str, *values: object) -> None:
    """Run a statement that has no rows."""
    with psycopg.connect(database, autocommit=True) as conn:
        conn.execute(statement, values or None)


class Table:
    """The tables of jobs, for a look."""

    def __init__(self, database: str) -> None:
        self.database = database

    def enqueue(self, handle: JobHandle[Any], count: int = 1, **options: Any) -> list[UUID]:
        """Enqueue some."""
        with Connection[Any].connect(self.database, autocommit=True) as conn:
            made = handle.enqueue_many(conn, [Input(n=n) for n in range(count)], **options)
        return [one.id for one in made]

    def insert(self, name: str, payload: str, *, max_attempts: int = 3) -> UUID:
        """Insert a row that our own enqueue would refuse."""
        made = jobs.uuid7()
        with psycopg.connect(self.database, autocommit=True) as conn:
            conn.execute(
                "insert into jobs.job (id, run_id, name, queue, input, max_attempts)"
                " values (%s, %s, %s, 'default', %s::json, %s)",
                (made, made, name, payload, max_attempts),
            )
        return made

    def live(self, job: UUID) -> Any:
        """The row of a live job, or None."""
        found = rows(
            self.database,
            # all but the input, which is not always JSON that can be decoded
            "select id, queue, state, attempt, claims, revoked, worker, last_error, available_at,"
            " created_at, lease_expires_at from jobs.job where id = %s",
            job,
        )
        return found[0] if found else None

    def settled(self, job: UUID) -> Any:
        """The row of a finished job, or None."""
        found = rows(
            self.database,
            "select id, queue, state, attempt, claims, revoked, worker, last_error, settled_at,"
            " created_at, stop_reason from jobs.settled where id = %s",
            job,
        )
        return found[0] if found else None

    def attempts(self, job: UUID) -> list[Any]:
        """Its failed attempts in order."""
        return rows(
            self.database, "select * from jobs.attempt where job_id = %s order by claims", job
        )

    def counters(self) -> dict[str, int]:
        """How often each outcome was counted."""
        found = rows(
            self.database,
            "select outcome, sum(amount)::int as times from jobs.counter group by outcome",
        )
        return {row.outcome: row.times for row in found}

    def count_live(self) -> int:
        """How many jobs are live."""
        return int(rows(self.database, "select count(*) as live from jobs.job")[0].live)
