"""The deadline of an attempt: it cancels, then fails; a thread keeps its place until it ends."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from datetime import timedelta
from typing import Any

import pytest

import jobs
from tests.runtime.working import Input, Table, job, make, serving, until

SOON = timedelta(milliseconds=100)
ONCE: dict[str, Any] = {"retry": jobs.Retry(attempts=1)}

events: list[str] = []
gate = threading.Event()


@job(timeout=SOON, **ONCE)
async def sleeps(_: Input, run: jobs.Run) -> None:
    try:
        await asyncio.sleep(3600)
    except asyncio.CancelledError:
        events.append(f"cancelled {run.attempt}")
        raise


@job(timeout=SOON, **ONCE)
async def ignores(_: Input) -> None:
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.sleep(3600)
    await until(gate.is_set, "the end of the test")


@job(timeout=SOON, **ONCE)
def threaded(_: Input, run: jobs.Run) -> None:
    events.append("begun")
    gate.wait(30)
    events.append(f"ended, told {run.cancelled}")


@job()
def neighbour(_: Input) -> None:
    events.append("neighbour")


@job()
async def unbounded(_: Input) -> None:
    """Has no timeout."""
    await asyncio.sleep(0.3)


@job(timeout=timedelta(hours=1))
async def in_time(_: Input) -> None:
    """Has plenty."""


@pytest.fixture(autouse=True)
def _nothing_happened() -> None:
    events.clear()
    gate.clear()


async def test_it_cancels_the_attempt_and_then_fails_it(database: str) -> None:
    table = Table(database)
    (id,) = table.enqueue(sleeps)
    stats = await make(database, sleeps).run_until_idle()
    assert events == ["cancelled 1"]
    assert stats.ended == 1
    row = table.settled(id)
    assert (row.state, row.stop_reason) == ("dead", "exhausted")
    (attempt,) = table.attempts(id)
    assert attempt.error_type == "JobTimeout"
    assert "[JOB_TIMEOUT]" in attempt.error_message


async def test_an_attempt_in_time_and_one_without_a_deadline_complete(database: str) -> None:
    table = Table(database)
    table.enqueue(unbounded)
    table.enqueue(in_time)
    stats = await make(database, unbounded, in_time).run_until_idle()
    assert (stats.completed, stats.retried, stats.ended) == (2, 0, 0)


def overruns(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What the log says of attempts that go on after their deadline."""
    return [
        record.getMessage()
        for record in caplog.records
        if getattr(record, "event", None) == "jobs.timeout.abandoned"
    ]


async def test_a_body_that_ignores_it_is_named_in_the_log_and_has_failed(
    database: str, caplog: pytest.LogCaptureFixture
) -> None:
    table = Table(database)
    (id,) = table.enqueue(ignores)
    with caplog.at_level(logging.WARNING, "jobs.worker"):
        async with serving(database, ignores):
            (said,) = await until(lambda: overruns(caplog), "the log")
            assert str(id) in said
            assert "ignores" in said
            assert table.live(id).state == "running"
            gate.set()
            await until(lambda: table.settled(id), "its end")
    assert table.settled(id).last_error.startswith("JobTimeout: ")


async def test_a_thread_that_overruns_it_keeps_slot_and_lease_until_it_ends(
    database: str, caplog: pytest.LogCaptureFixture
) -> None:
    table = Table(database)
    (id,) = table.enqueue(threaded)
    lease = timedelta(seconds=1)
    with caplog.at_level(logging.WARNING, "jobs.worker"):
        async with serving(database, threaded, neighbour, queues={"default": 1}, lease=lease):
            await until(lambda: "begun" in events, "the thread")
            (other,) = table.enqueue(neighbour)
            first = table.live(id).lease_expires_at
            await until(
                lambda: table.live(id).lease_expires_at > first + 2 * lease,
                "renewals long after the deadline",
            )
            (said,) = overruns(caplog)
            assert str(id) in said
            assert (table.live(id).state, table.live(id).claims) == ("running", 1)
            assert table.live(other).claims == 0, "its slot is not given to anybody"
            gate.set()
            await until(lambda: table.settled(other), "the neighbour, once the thread has ended")
    assert events == ["begun", "ended, told True", "neighbour"]
    row = table.settled(id)
    assert (row.state, row.claims) == ("dead", 1)
    assert row.last_error.startswith("JobTimeout: ")
