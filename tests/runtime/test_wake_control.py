"""What operators do reaches a worker that listens at once: a cancel it runs, a job they requeue.

Leases are so long, and polls so far apart, that nothing but a message brings them within a test's
patience.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from psycopg import Connection

import jobs
from jobs.control import cancel, cancel_many, requeue
from jobs.worker import renewer
from tests.runtime.test_wake import FAR, hearing, live
from tests.runtime.working import Input, Table, execute, job, leaving_nothing, make, serving, until

LONG: dict[str, Any] = {"lease": timedelta(hours=1)}
stopped: list[str] = []


@pytest.fixture(autouse=True)
def _nothing_happened() -> None:
    stopped.clear()


@job()
async def sleeps(_: Input, run: jobs.Run) -> None:
    try:
        await asyncio.sleep(3600)
    except asyncio.CancelledError:
        stopped.append(run.worker)
        raise


@job()
def in_thread(_: Input, run: jobs.Run) -> None:
    deadline = time.monotonic() + 60
    while not run.cancelled and time.monotonic() < deadline:
        time.sleep(0.01)
    stopped.append(run.worker)
    raise RuntimeError("told to stop")


@job(queue="default", retry=jobs.Retry(attempts=1))
async def fails(_: Input) -> None:
    if not stopped:
        stopped.append("the first time")
        raise ValueError("on purpose")


def ask(database: str, *ids: UUID) -> list[str]:
    """Cancel jobs; the outcomes."""
    with Connection[Any].connect(database, autocommit=True) as conn:
        return [one.outcome for one in cancel_many(conn, ids)]


@pytest.mark.parametrize("handle", [sleeps, in_thread], ids=["async", "thread"])
async def test_a_cancel_does_not_wait_for_the_next_renewal(database: str, handle: Any) -> None:
    table = Table(database)
    async with hearing(database, handle, **LONG) as worker:
        ids = table.enqueue(handle, 3)
        await until(lambda: worker.stats().in_flight == 3, "the jobs")
        assert ask(database, *ids) == ["requested"] * 3
        await until(lambda: worker.stats().cancelled == 3, "their ends")
    assert stopped == [worker.name] * 3
    assert {table.settled(id).state for id in ids} == {"cancelled"}


async def test_only_the_worker_that_runs_it_renews(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    renewed: list[str] = []
    real = renewer.renew_leases

    def noted(*arguments: Any, **named: Any) -> Any:
        renewed.append(named["worker"])
        return real(*arguments, **named)

    monkeypatch.setattr(renewer, "renew_leases", noted)
    table = Table(database)
    options: dict[str, Any] = FAR | LONG | {"queues": {"default": 1}, "drain": timedelta(0)}
    async with (
        leaving_nothing(database),
        make(database, sleeps, name="one", **options) as one,
        make(database, sleeps, name="other", **options) as other,
    ):
        await until(lambda: live(one) and live(other), "the probes to arrive")
        table.enqueue(sleeps, 2)
        await until(lambda: one.stats().in_flight == other.stats().in_flight == 1, "both")
        (held,) = one._holding.snapshot()
        ask(database, held.row.id)
        await until(lambda: one.stats().cancelled == 1, "the end")
        assert other.stats().in_flight == 1
        assert renewed == ["one"]


async def test_a_cancel_that_nobody_heard_comes_with_the_renewal(database: str) -> None:
    """O-12: the listener is cut off and kept away while the cancel is asked for."""
    table = Table(database)
    options: dict[str, Any] = FAR | {"lease": timedelta(seconds=2)}
    async with serving(database, sleeps, **options) as worker:
        await until(lambda: live(worker), "the probe to arrive")
        (id,) = table.enqueue(sleeps)
        await until(lambda: worker.stats().in_flight == 1, "the job")
        assert worker._listener is not None
        await worker._listener.stop()
        assert ask(database, id) == ["requested"]
        await until(lambda: worker.stats().cancelled == 1, "the end")


async def test_many_cancels_are_few_renewals(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[float] = []
    real = renewer.renew_leases

    def noted(*arguments: Any, **named: Any) -> Any:
        sent.append(time.monotonic())
        return real(*arguments, **named)

    monkeypatch.setattr(renewer, "renew_leases", noted)
    table = Table(database)
    async with hearing(database, sleeps, **LONG, queues={"default": 100}) as worker:
        ids = table.enqueue(sleeps, 60)
        await until(lambda: worker.stats().in_flight == 60, "the jobs")
        with Connection[Any].connect(database, autocommit=True) as conn:
            for id in ids:
                await asyncio.to_thread(cancel, conn, id)
        await until(lambda: worker.stats().cancelled == 60, "their ends")
    gaps = [after - before for before, after in itertools.pairwise(sent)]
    assert all(gap >= renewer._HURRY_GAP for gap in gaps), "a pause between any two"


async def test_a_requeued_job_starts_before_the_next_poll(database: str) -> None:
    table = Table(database)
    async with hearing(database, fails) as worker:
        (id,) = table.enqueue(fails)
        await until(lambda: worker.stats().ended == 1, "the failure")
        await asyncio.sleep(1)  # the looks that follow a find are over
        execute(database, "delete from jobs.wake")
        with Connection[Any].connect(database, autocommit=True) as conn:
            requeue(conn, id)
        await until(lambda: worker.stats().completed == 1, "the second life")
