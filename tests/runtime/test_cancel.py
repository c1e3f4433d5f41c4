"""An operator cancels what a worker runs: the function stops, and the job ends as cancelled."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from datetime import timedelta
from typing import Any
from uuid import UUID

import psycopg
import pytest
from psycopg import AsyncConnection, Connection

import jobs
from jobs.control import cancel, requeue
from jobs.worker.held import Held
from jobs.worker.settler import Settler
from tests.runtime.working import Input, Table, execute, job, rows, serving, until

LEASE = timedelta(seconds=1.5)

events: list[str] = []
gate = threading.Event()


@pytest.fixture(autouse=True)
def _nothing_happened() -> None:
    events.clear()
    gate.clear()


@job()
async def sleeps(_: Input, run: jobs.Run) -> None:
    events.append(f"begun {run.attempt}")
    try:
        await asyncio.sleep(3600)
    except asyncio.CancelledError:
        events.append(f"cancelled, told {run.cancelled}")
        raise


@job()
async def turns_it_into_an_error(_: Input) -> None:
    events.append("begun")
    try:
        await asyncio.sleep(3600)
    except asyncio.CancelledError:
        raise ValueError("interrupted") from None


@job()
async def finishes_all_the_same(_: Input) -> None:
    events.append("begun")
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.sleep(3600)
    events.append("finished")


@job(timeout=timedelta(seconds=2))
def polite(_: Input, run: jobs.Run) -> None:
    events.append("begun")
    while not run.cancelled:
        gate.wait(0.01)
    raise RuntimeError("told to stop")


@job()
def thread_that_returns(_: Input) -> None:
    events.append("begun")
    gate.wait(30)


@job()
async def neighbour(_: Input) -> None:
    events.append("neighbour")


def ask(database: str, id: UUID, **options: Any) -> str:
    """Cancel a job: the outcome."""
    with Connection[Any].connect(database, autocommit=True) as conn:
        return cancel(conn, id, **options).outcome


async def begun() -> None:
    """Wait until a function has begun."""
    await until(lambda: events, "the function to begin")


async def ends(table: Table, id: UUID) -> Any:
    """The row of a job once it has ended."""
    return await until(lambda: table.settled(id), "its end")


async def test_an_asynchronous_function_is_cancelled_within_a_renewal(
    database: str, caplog: pytest.LogCaptureFixture
) -> None:
    """O-12 too: nobody listens to anything here."""
    table = Table(database)
    (id,) = table.enqueue(sleeps)
    with caplog.at_level(logging.INFO, "jobs.worker"):
        async with serving(database, sleeps, neighbour, lease=LEASE, listen=False) as worker:
            await begun()
            assert ask(database, id, reason="why not") == "requested"
            row = await ends(table, id)
            assert (row.state, row.stop_reason) == ("cancelled", "cancel requested")
            assert (row.claims, row.attempt, row.last_error) == (1, 1, None)
            await until(lambda: worker.stats().cancelled, "the figure")
            assert (worker.stats().lost, worker.stats().ended, worker.stats().retried) == (0, 0, 0)
            # The slot is free again, and the worker goes on.
            table.enqueue(neighbour)
            await until(lambda: "neighbour" in events, "another job")
    assert events == ["begun 1", "cancelled, told True", "neighbour"]
    assert table.attempts(id) == []
    assert table.counters() == {"cancelled": 1, "completed": 1}
    said = [getattr(record, "event", "") for record in caplog.records]
    assert said.count("jobs.worker.cancelling") == 1
    assert said.count("jobs.worker.cancelled") == 1
    assert not [record for record in caplog.records if record.levelno > logging.INFO]


@pytest.mark.parametrize("handle", [turns_it_into_an_error, polite])
async def test_what_the_function_raises_then_is_no_failed_attempt(
    database: str, handle: Any
) -> None:
    table = Table(database)
    (id,) = table.enqueue(handle)
    async with serving(database, handle, lease=LEASE):
        await begun()
        ask(database, id)
        row = await ends(table, id)
    assert (row.state, row.stop_reason, row.claims) == ("cancelled", "cancel requested", 1)
    assert table.attempts(id) == []


async def test_the_worker_itself_says_that_it_was_cancelled(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not that it is handed back, which the database would turn into the same."""
    table = Table(database)
    asked: list[str | None] = []
    submit = Settler.submit

    def note(self: Settler, job: Held) -> None:
        asked.append(job.outcome and job.outcome.kind)
        submit(self, job)

    monkeypatch.setattr(Settler, "submit", note)
    (id,) = table.enqueue(sleeps)
    async with serving(database, sleeps, lease=LEASE):
        await begun()
        ask(database, id)
        await ends(table, id)
    assert asked == ["cancelled"]


async def test_a_function_that_finishes_its_work_all_the_same_has_completed(
    database: str,
) -> None:
    table = Table(database)
    (id,) = table.enqueue(finishes_all_the_same)
    async with serving(database, finishes_all_the_same, lease=LEASE) as worker:
        await begun()
        ask(database, id)
        row = await ends(table, id)
        assert (row.state, row.stop_reason) == ("completed", None)
        await until(lambda: worker.stats().completed, "the figure")
        assert worker.stats().cancelled == 0
    assert events == ["begun", "finished"]


async def test_a_thread_keeps_lease_and_slot_until_it_ends(database: str) -> None:
    table = Table(database)
    (id,) = table.enqueue(thread_that_returns)
    one = {"default": 1}
    async with serving(database, thread_that_returns, neighbour, lease=LEASE, queues=one):
        await begun()
        ask(database, id)
        (other,) = table.enqueue(neighbour)
        first = table.live(id).lease_expires_at
        await until(lambda: table.live(id).lease_expires_at > first + 2 * LEASE, "renewals")
        assert table.live(other).claims == 0
        gate.set()
        assert (await ends(table, id)).state == "completed"
        await ends(table, other)


async def test_one_that_was_asked_before_it_failed_is_not_tried_again(database: str) -> None:
    """The request comes while the function fails, so that only the settle meets it."""
    table = Table(database)

    @job()
    async def fails(_: Input, run: jobs.Run) -> None:
        events.append("begun")
        ask(database, run.id)
        raise ValueError("by itself")

    (id,) = table.enqueue(fails)
    async with serving(database, fails) as worker:
        row = await ends(table, id)
        await until(lambda: worker.stats().cancelled, "the figure")
    assert (row.state, row.stop_reason) == ("cancelled", "cancel requested")
    assert row.last_error == "ValueError: by itself"
    assert [attempt.error_type for attempt in table.attempts(id)] == ["ValueError"]
    assert events == ["begun"]
    assert worker.stats().retried == 0


async def test_a_drain_hands_back_nothing_that_was_asked_to_end(database: str) -> None:
    table = Table(database)
    (id,) = table.enqueue(sleeps)
    async with serving(database, sleeps, lease=timedelta(minutes=1), drain=timedelta(0)):
        await begun()
        ask(database, id)  # no renewal will tell before the stop
    row = table.settled(id)
    assert (row.state, row.stop_reason) == ("cancelled", "cancel requested")


async def test_a_stop_does_not_wait_for_a_cancelled_one_that_goes_on(database: str) -> None:
    """Its lease ends it."""
    table = Table(database)

    @job()
    async def deaf(_: Input) -> None:
        events.append("begun")
        while not gate.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(0.05)

    (id,) = table.enqueue(deaf)
    async with serving(database, deaf, lease=LEASE, drain=timedelta(0)) as worker:
        await begun()
        ask(database, id)
        task = next(t for t in asyncio.all_tasks() if t.get_name().startswith("job:"))
        await until(lambda: task.cancelling(), "the cancel")
        worker.stop()
        await worker.wait()
        gate.set()
    assert worker.stats().abandoned == 1
    execute(database, "update jobs.job set rescue_at = now(), lease_expires_at = now()")
    async with serving(database, sleeps) as other:
        row = await ends(table, id)
        await until(lambda: other.stats().buried, "the figure")
    assert (row.state, row.stop_reason, row.claims) == ("cancelled", "cancel requested", 1)


async def test_a_completion_that_is_open_is_waited_for_and_stands(database: str) -> None:
    table = Table(database)
    execute(database, "create table public.effect (job uuid)")

    @job()
    async def completes(_: Input, run: jobs.Run) -> None:
        async with await AsyncConnection.connect(database) as conn:
            await conn.execute("insert into public.effect values (%s)", (run.id,))
            await run.complete(conn)
            events.append("open")
            await until(gate.is_set, "the gate")
            await conn.commit()

    (id,) = table.enqueue(completes)
    async with serving(database, completes, lease=LEASE) as worker:
        await begun()
        with pytest.raises(jobs.JobBusy):
            ask(database, id, patience=timedelta(0))
        gate.set()
        assert (await ends(table, id)).state == "completed"
        with pytest.raises(jobs.JobNotCancellable):
            ask(database, id)
        await until(lambda: worker.stats().completed, "the figure")
    assert len(rows(database, "select job from public.effect")) == 1


async def test_a_cancel_during_a_transaction_leaves_no_effect(database: str) -> None:
    table = Table(database)
    execute(database, "create table public.effect (job uuid)")

    @job()
    async def writes(_: Input, run: jobs.Run) -> None:
        async with await AsyncConnection.connect(database) as conn:
            await conn.execute("insert into public.effect values (%s)", (run.id,))
            events.append("open")
            await asyncio.sleep(3600)
            await run.complete(conn)

    (id,) = table.enqueue(writes)
    async with serving(database, writes, lease=LEASE):
        await begun()
        ask(database, id)
        assert (await ends(table, id)).state == "cancelled"
    assert rows(database, "select job from public.effect") == []


async def test_a_job_that_waits_is_never_begun(database: str) -> None:
    table = Table(database)
    first, second = table.enqueue(neighbour, 2, delay=timedelta(milliseconds=200))
    assert ask(database, first) == "cancelled"
    async with serving(database, neighbour):
        await ends(table, second)
    assert events == ["neighbour"]
    assert table.settled(first).claims == 0


async def test_a_cancelled_job_that_is_requeued_runs_once_more(database: str) -> None:
    table = Table(database)
    (id,) = table.enqueue(sleeps)
    async with serving(database, sleeps, lease=LEASE):
        await begun()
        ask(database, id)
        await ends(table, id)
        with psycopg.connect(database, autocommit=True) as conn:
            assert requeue(conn, id).outcome == "requeued"
        await until(lambda: events.count("begun 1") == 2, "the second run")
        assert table.live(id).claims == 2
        ask(database, id)
        assert (await ends(table, id)).state == "cancelled"
