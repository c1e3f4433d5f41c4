"""A connection that fails around a settle or a renewal: who is told what, and what is repeated."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from psycopg import Connection
from psycopg.conninfo import conninfo_to_dict

import jobs
from devkit.proxy import Proxy
from jobs.worker import renewer
from tests.runtime.working import Input, Table, job, make, serving, until
from tests.support.server import Clones

calls: list[int] = []
cancelled_at: list[float] = []


@job()
async def counted(_: Input, run: jobs.Run) -> None:
    calls.append(run.attempt)


@job()
async def lasts(_: Input) -> None:
    """Goes on until it is cancelled or told to end."""
    try:
        await until(lambda: calls, "the end of the test")
    except asyncio.CancelledError:
        cancelled_at.append(time.monotonic())
        raise


@pytest.fixture(autouse=True)
def _nothing_happened() -> None:
    calls.clear()
    cancelled_at.clear()


@pytest.fixture
def proxy(clones: Clones) -> Iterator[Proxy]:
    with Proxy(Path(clones.host)) as proxy:
        yield proxy


@pytest.fixture
def dsn(proxy: Proxy, database: str) -> str:
    """The way to the database through the proxy."""
    name = str(conninfo_to_dict(database)["dbname"])
    return f"{proxy.dsn(name)}?sslmode=disable&gssencmode=disable"


def said(caplog: pytest.LogCaptureFixture, event: str) -> list[str]:
    """Levels of the log records of an event."""
    return [r.levelname for r in caplog.records if getattr(r, "event", None) == event]


@pytest.mark.parametrize("way", ["up", "down"])
async def test_a_connection_lost_around_a_settle_repeats_neither_job_nor_effect(
    database: str, dsn: str, proxy: Proxy, caplog: pytest.LogCaptureFixture, way: Any
) -> None:
    """O-10: cut before the server has seen it, and after it has committed."""
    table = Table(database)
    lease = timedelta(seconds=30)
    id = jobs.uuid7()
    with caplog.at_level(logging.WARNING, "jobs.worker"):
        async with serving(database, counted, dsn=dsn, lease=lease) as worker:
            table.enqueue(counted)
            await until(lambda: worker.stats().completed == 1, "the statements to be prepared")
            # From now on a settle is a message with the id in it, and its answer.
            proxy.cut(way, on=id.hex.encode())
            with Connection[Any].connect(database, autocommit=True) as conn:
                counted.enqueue(conn, Input(), id=id)
            await until(proxy.was_cut.is_set, "the cut")
            assert (table.settled(id) is None) == (way == "up")
            await until(lambda: worker.stats().completed == 2, "the answer to the second send")
            stats = worker.stats()
    assert said(caplog, "jobs.worker.settle_failed") == ["WARNING"]
    assert calls == [1, 1]
    assert (stats.claimed, stats.retried, stats.ended, stats.lost) == (2, 0, 0, 0)
    row = table.settled(id)
    assert (row.state, row.attempt, row.claims) == ("completed", 1, 1)
    assert table.attempts(id) == []
    assert table.counters() == {"completed": 2}


async def test_one_failed_renewal_is_a_warning(
    database: str, dsn: str, proxy: Proxy, caplog: pytest.LogCaptureFixture
) -> None:
    table = Table(database)
    lease = timedelta(seconds=3)
    with caplog.at_level(logging.WARNING, "jobs.worker"):
        async with serving(database, lasts, dsn=dsn, lease=lease) as worker:
            (id,) = table.enqueue(lasts)
            await until(lambda: worker.stats().in_flight == 1, "the job")
            proxy.cut("down", on=b"jobs:renew_leases")
            first = table.live(id).lease_expires_at
            await until(proxy.was_cut.is_set, "a renewal to be cut off")
            await until(
                lambda: table.live(id).lease_expires_at > first + lease, "renewals after it"
            )
            calls.append(1)
            await until(lambda: worker.stats().completed == 1, "the end")
            assert worker.stats().lost == 0
    assert said(caplog, "jobs.worker.renewal_failed") == ["WARNING"]
    assert said(caplog, "jobs.worker.lease_lost") == []
    assert (table.settled(id).state, table.settled(id).claims) == ("completed", 1)


async def test_a_whole_lease_without_one_is_a_lost_lease(
    database: str, dsn: str, proxy: Proxy, caplog: pytest.LogCaptureFixture
) -> None:
    table = Table(database)
    lease = timedelta(seconds=2)
    with caplog.at_level(logging.WARNING, "jobs.worker"):
        async with serving(database, lasts, dsn=dsn, lease=lease) as worker:
            (id,) = table.enqueue(lasts)
            await until(lambda: worker.stats().in_flight == 1, "the job")
            (held,) = worker._holding.snapshot()
            claimed = held.renewed_at
            await until(lambda: held.renewed_at > claimed, "a renewal that lands")
            proxy.drop()
            await until(lambda: cancelled_at, "the run to be cancelled")
            assert worker.stats().lost == 1
            proxy.ok()
            calls.append(1)
            await until(lambda: table.settled(id), "somebody to run it again")
    assert "WARNING" in said(caplog, "jobs.worker.renewal_failed")
    assert said(caplog, "jobs.worker.lease_lost") == ["ERROR"]
    # From the last renewal that landed, not from the claim, by the clock of this process.
    assert cancelled_at[0] - held.renewed_at >= lease.total_seconds()
    assert (table.settled(id).state, table.settled(id).claims) == ("completed", 2)
    assert [attempt.error_type for attempt in table.attempts(id)] == ["LeaseLapsed"]


async def test_one_renewal_at_a_time_and_none_reports_a_job_that_has_ended(
    database: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The renewal has been asked for when the job ends, and is answered `lost` after that."""
    table = Table(database)
    real, inside, answers = renewer.renew_leases, threading.Lock(), []

    def slow(*arguments: Any, **named: Any) -> Any:
        assert inside.acquire(blocking=False), "a second one in flight"
        try:
            if not calls:
                calls.append(1)  # ends the job
                deadline = time.monotonic() + 20
                while table.count_live() and time.monotonic() < deadline:
                    time.sleep(0.01)
            rows = real(*arguments, **named)
            answers.extend(row.verdict for row in rows)
            return rows
        finally:
            inside.release()

    monkeypatch.setattr(renewer, "renew_leases", slow)
    table.enqueue(lasts)
    with caplog.at_level(logging.WARNING, "jobs.worker"):
        async with make(database, lasts) as worker:
            await until(lambda: worker.stats().in_flight == 1, "the job")
            for _ in range(20):
                worker._renewer.hurry()
                await asyncio.sleep(0.01)
            await until(lambda: answers, "the late answer")
    assert answers[0] == "lost"
    assert worker.stats().completed == 1
    assert worker.stats().lost == 0
    assert [r.getMessage() for r in caplog.records] == []
