"""The defaults, each read where it takes effect. Changing one changes what users rely on."""

from __future__ import annotations

import random
import sys
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from psycopg import Connection
from pydantic import BaseModel

import jobs
from jobs.inspect import get_job, list_jobs, outcome_counts
from jobs.service.pace import Pace

MODULE = sys.modules[__name__]


class Nothing(BaseModel):
    pass


class Seen(BaseModel):
    dsn: str


class Fixed(random.Random):
    """A source of jitter that always gives the same number."""

    def __init__(self, value: float) -> None:
        super().__init__()
        self.value = value

    def random(self) -> float:
        return self.value


@jobs.job(tenant=jobs.NO_TENANT, idempotency_key=jobs.NO_KEY)
def nothing(input: Nothing) -> None:
    """Does nothing."""


@jobs.job(tenant=jobs.NO_TENANT, idempotency_key=lambda _: "the key")
def keyed(input: Nothing) -> None:
    """Does nothing, one at a time."""


@jobs.job(tenant=jobs.NO_TENANT, idempotency_key=jobs.NO_KEY)
def look(input: Seen, run: jobs.Run) -> None:
    """Note the lease of its own running job."""
    with Connection[Any].connect(input.dsn) as conn:
        record = get_job(conn, run.id)
    assert record.lease_expires_at is not None
    assert record.claimed_at is not None
    leases.append(record.lease_expires_at - record.claimed_at)


leases: list[timedelta] = []
registry = jobs.Registry.of(MODULE)
known_to_nobody = jobs.Registry.of()


def test_a_job() -> None:
    assert nothing.queue == "default"
    assert nothing.priority == 0
    assert nothing.timeout is None
    assert keyed.idempotency_scope == "live"
    assert nothing.retry == jobs.Retry()


def test_a_retry() -> None:
    assert jobs.Retry() == jobs.Retry(
        attempts=3,
        backoff="exponential",
        delay=timedelta(seconds=1),
        max_delay=timedelta(hours=1),
        jitter=True,
        dead_letter=True,
    )
    assert jobs.Retry().schedule() == [timedelta(seconds=1), timedelta(seconds=2)]
    # Equal jitter: half of the delay is kept, up to the whole of it is added by chance.
    assert jobs.Retry().delay_for(3, Fixed(0.0)) == timedelta(seconds=2)
    assert jobs.Retry().delay_for(3, Fixed(1.0)) == timedelta(seconds=4)
    assert jobs.Retry().delay_for(10_000, Fixed(1.0)) == timedelta(hours=1)


def test_a_worker(database: str) -> None:
    config = jobs.Worker(database, registry).config
    assert config.queues == {"default": 5}
    assert config.lease == timedelta(seconds=30)
    assert config.poll == timedelta(milliseconds=250)
    assert config.idle_poll == timedelta(seconds=2)
    assert config.drain == timedelta(seconds=30)
    assert config.unknown_delay == timedelta(seconds=30)


def test_queues_that_are_only_named_have_five_slots(database: str) -> None:
    worker = jobs.Worker(database, registry, queues=["a", "b"])
    assert worker.config.queues == {"a": 5, "b": 5}


async def test_leases_are_renewed_every_third(database: str) -> None:
    async with jobs.Worker(database, registry) as worker:
        assert worker._renewer._every == pytest.approx(10)
    async with jobs.Worker(database, registry, lease=timedelta(seconds=6)) as worker:
        assert worker._renewer._every == pytest.approx(2)


def test_an_idle_worker_waits_from_a_quarter_second_to_two(database: str) -> None:
    config = jobs.Worker(database, registry).config
    pace = Pace(config.poll.total_seconds(), config.idle_poll.total_seconds())
    assert [pace.nothing() for _ in range(6)] == [0.25, 0.5, 1.0, 2.0, 2.0, 2.0]


async def test_a_lease(database: str, conn: Connection[Any]) -> None:
    leases.clear()
    look.enqueue(conn, Seen(dsn=database))
    await jobs.Worker(database, registry).run_until_idle()
    assert leases == [timedelta(seconds=30)]


async def test_a_job_that_nobody_knows_is_parked(database: str, conn: Connection[Any]) -> None:
    id = nothing.enqueue(conn, Nothing()).id
    stats = await jobs.Worker(database, known_to_nobody).run_until_idle()
    record = get_job(conn, id)
    assert (stats.claimed, stats.released) == (1, 1)
    assert (record.state, record.attempt) == ("delayed", 0)
    assert record.claimed_at is not None
    assert record.available_at is not None
    assert record.available_at - record.claimed_at >= timedelta(seconds=30)
    parked_again = conn.execute("select clock_timestamp()").fetchone()
    assert parked_again is not None
    assert record.available_at - parked_again[0] <= timedelta(seconds=30)


def test_a_page(conn: Connection[Any]) -> None:
    nothing.enqueue_many(conn, [Nothing()] * 101)
    page = list_jobs(conn)
    assert len(page.jobs) == 100
    rest = list_jobs(conn, cursor=page.next_cursor)
    assert (len(rest.jobs), rest.next_cursor) == (1, None)


async def test_outcomes_are_counted_by_the_minute(database: str, conn: Connection[Any]) -> None:
    nothing.enqueue(conn, Nothing())
    await jobs.Worker(database, registry).run_until_idle()
    assert [tuple(row) for row in outcome_counts(conn, timedelta(minutes=1))] == [
        ("nothing", "completed", 1)
    ]
    row = conn.execute("select bucket from jobs.counter").fetchone()
    assert row is not None
    bucket: datetime = row[0].astimezone(UTC)
    settled_at = list_jobs(conn, state="completed").jobs[0].settled_at
    assert settled_at is not None
    assert (bucket.second, bucket.microsecond) == (0, 0)
    assert timedelta() <= settled_at - bucket < timedelta(minutes=2)


def test_a_scheduler() -> None:
    scheduler = jobs.Scheduler("", jobs.Registry.of())
    assert scheduler._lease == timedelta(seconds=30)
    assert scheduler._refresh == 10
    assert scheduler._patience == 30
    assert scheduler._grace == 10
    task = jobs.task(cron="@daily", tz="UTC")(lambda: [])
    assert (task.catch_up, task.max_catch_up) == ("skip", 10)
