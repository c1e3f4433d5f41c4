"""What the tests of a scheduler in this process share."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from types import ModuleType
from typing import Any

import psycopg
from psycopg import sql
from psycopg.types.json import Json
from pydantic import BaseModel

import jobs
from tests.runtime.working import execute, leaving_nothing, rows, until

SECOND = timedelta(seconds=1)
QUICK: dict[str, Any] = {"lease": SECOND, "refresh": timedelta(milliseconds=200)}


class Input(BaseModel):
    """A number."""

    n: int = 0


@jobs.job(tenant=jobs.NO_TENANT, idempotency_key=jobs.NO_KEY)
def work(input: Input) -> None:
    """What the tasks of these tests enqueue."""


@jobs.job(tenant=jobs.NO_TENANT, idempotency_key=lambda _: "one for all", queue="another")
def keyed(input: Input) -> None:
    """The same, with one key for all, and in another queue."""


def registry(*handles: Any) -> jobs.Registry:
    """A registry of these, and of the two jobs above."""
    module = ModuleType("made_for_a_test")
    for handle in (work, keyed, *handles):
        kind = type(handle).__name__.lower()
        setattr(module, f"{kind}_{handle.name}", handle)
    return jobs.Registry.of(module)


def yearly(**options: Any) -> Any:
    """Declare a task that is not due during a test."""
    return jobs.task(**({"cron": "0 0 1 1 *", "tz": "UTC"} | options))


def each_second(**options: Any) -> Any:
    """Declare a task that is due each second, and misses none."""
    return jobs.task(**({"every": SECOND, "catch_up": "run_all", "max_catch_up": 1000} | options))


def make(database: object, *handles: Any, **options: Any) -> jobs.Scheduler:
    """A quick scheduler that knows these."""
    return jobs.Scheduler(database, registry(*handles), **(QUICK | options))


@asynccontextmanager
async def scheduling(database: str, *handles: Any, **options: Any) -> AsyncIterator[jobs.Scheduler]:
    """A scheduler that leads during the block and leaves nothing behind."""
    async with leaving_nothing(database), make(database, *handles, **options) as scheduler:
        await until(lambda: scheduler.stats().leading, "the scheduler to lead")
        yield scheduler


def store(database: str, name: str, **columns: Any) -> None:
    """Write the row of a schedule that is due each second, bypassing every check of ours."""
    row = {
        "source": "stored",
        "cron": None,
        "every": SECOND,
        "tz": "UTC",
        "catch_up": "run_all",
        "max_catch_up": 1000,
        "job": "work",
        "input": Json({"n": 1}),
    } | columns
    places = sql.SQL(", ").join([sql.Placeholder()] * (len(row) + 1))
    names = sql.SQL(", ").join(map(sql.Identifier, ("name", *row)))
    with psycopg.connect(database, autocommit=True) as conn:
        conn.execute(
            sql.SQL("insert into jobs.schedule ({}) values ({})").format(names, places),
            [name, *row.values()],
        )


def set_back(database: str, name: str, by: timedelta) -> datetime:
    """Move a watermark back to a full second in the past."""
    execute(
        database,
        "update jobs.schedule set watermark = date_trunc('second', clock_timestamp() - %s)"
        " where name = %s",
        by,
        name,
    )
    found: datetime = schedule(database, name).watermark
    return found


def schedule(database: str, name: str) -> Any:
    """The row of a schedule, or None."""
    found = rows(database, "select * from jobs.schedule where name = %s", name)
    return found[0] if found else None


def fired(database: str, task: str) -> list[str]:
    """Occurrences for which jobs of a task are there, by their keys, in order."""
    found = rows(
        database,
        "select idempotency_key as key from jobs.job where enqueued_by = %s order by 1",
        f"task {task}",
    )
    return [row.key.partition("@")[2].rpartition("#")[0] for row in found]
