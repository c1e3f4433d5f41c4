"""What the schedulers of these tests serve: two tasks of one job, and one of each minute."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from datetime import datetime, timedelta

from pydantic import BaseModel

import jobs


class Slot(BaseModel):
    """What a task wants done."""

    task: str
    second: int


# One key for all: that a job of it is live must not hide the next occurrence.
@jobs.job(tenant=jobs.NO_TENANT, idempotency_key=lambda _: "the same")
async def note(input: Slot) -> None:
    """Ends at once."""


@jobs.job(tenant=jobs.NO_TENANT, idempotency_key=jobs.NO_KEY, queue="another")
async def elsewhere(input: Slot) -> None:
    """Ends at once, in another queue."""


@jobs.task(cron="* * * * *", tz="America/New_York", catch_up="run_all", max_catch_up=1000)
def minutely(at: datetime) -> Iterator[jobs.Entry]:
    """Each minute."""
    yield note, Slot(task="minutely", second=at.minute)


@jobs.task(every=timedelta(seconds=1), catch_up="run_all", max_catch_up=1000)
def first(at: datetime) -> Iterator[jobs.Entry]:
    """Each second."""
    yield note, Slot(task="first", second=at.second)


@jobs.task(every=timedelta(seconds=1), catch_up="run_all", max_catch_up=1000)
def second(at: datetime) -> Iterator[jobs.Entry]:
    """Each second, the same job and another."""
    yield note, Slot(task="second", second=at.second)
    yield elsewhere, Slot(task="second", second=at.second)


registry = jobs.Registry.of(sys.modules[__name__])
