"""Deadlines of attempts, and runs whose lease is lost."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

import jobs
from tests.runtime.working import Input, Table, execute, job, logged, make, serving, until

SOON = timedelta(milliseconds=150)
ONCE = jobs.Retry(attempts=1)


async def end_of(database: str, handle: Any) -> Any:
    """Run one job to its end; its row, with the errors of its attempts."""
    table = Table(database)
    (one,) = table.enqueue(handle)
    await make(database, handle).run_until_idle()
    return table.settled(one), [attempt.error_type for attempt in table.attempts(one)]


async def test_an_asynchronous_function_is_cancelled(database: str) -> None:
    told: list[bool] = []

    @job(timeout=SOON)
    async def long(_: Input, run: jobs.Run) -> None:
        try:
            await asyncio.sleep(60)
        finally:
            told.append(run.cancelled)

    row, errors = await end_of(database, long)
    assert errors == ["JobTimeout"] * 3
    assert (row.state, row.stop_reason) == ("dead", "exhausted")
    assert "[JOB_TIMEOUT]" in row.last_error
    assert told == [True] * 3, "the run is told before the function is cancelled"


async def test_one_that_ends_in_time_is_left_alone(database: str) -> None:
    told: list[bool] = []

    @job(timeout=timedelta(seconds=30))
    async def short(_: Input, run: jobs.Run) -> None:
        told.append(run.cancelled)

    @job(timeout=timedelta(seconds=30))
    def short_in_thread(_: Input, run: jobs.Run) -> None:
        told.append(run.cancelled)

    for handle in (short, short_in_thread):
        row, errors = await end_of(database, handle)
        assert (row.state, errors) == ("completed", [])
    assert told == [False, False]


async def test_swallowing_the_cancellation_does_not_complete(database: str) -> None:
    @job(timeout=SOON, retry=ONCE)
    async def swallows(_: Input) -> None:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(60)

    row, errors = await end_of(database, swallows)
    assert (row.state, errors) == ("dead", ["JobTimeout"])
    assert "ignored its deadline" in row.last_error


async def test_turning_the_cancellation_into_an_error_is_a_timeout(database: str) -> None:
    @job(timeout=SOON, retry=ONCE)
    async def turns(_: Input) -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            raise OSError("the connection was closed") from None

    row, errors = await end_of(database, turns)
    assert (row.state, errors) == ("dead", ["JobTimeout"])


async def test_a_timeout_of_the_functions_own_is_its_own(database: str) -> None:
    @job(timeout=timedelta(seconds=30), retry=ONCE)
    async def inner(_: Input) -> None:
        async with asyncio.timeout(0.01):
            await asyncio.sleep(60)

    row, errors = await end_of(database, inner)
    assert (row.state, errors) == ("dead", ["TimeoutError"])


async def test_tasks_of_a_group_end_with_it(database: str) -> None:
    ended: list[str] = []

    async def child() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            ended.append("child")

    @job(timeout=SOON, retry=ONCE)
    async def parent(_: Input) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(child())
            group.create_task(child())

    row, errors = await end_of(database, parent)
    assert (row.state, errors) == ("dead", ["JobTimeout"])
    assert ended == ["child", "child"]


async def test_one_that_goes_on_is_named_and_keeps_its_slot(
    database: str, caplog: pytest.LogCaptureFixture
) -> None:
    let_go = asyncio.Event()
    starts: list[int] = []

    @job(timeout=SOON, retry=ONCE)
    async def deaf(input: Input) -> None:
        starts.append(input.n)
        while not let_go.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await let_go.wait()

    table = Table(database)
    ids = table.enqueue(deaf, 2)
    async with serving(database, deaf, queues={"default": 1}):
        with caplog.at_level(logging.WARNING, "jobs.worker"):
            (named,) = await until(lambda: logged(caplog, "jobs.timeout.abandoned"), "the warning")
        assert f"job {ids[0]} (deaf) goes on after its deadline of 0.15 s" in named
        assert starts == [0]
        let_go.set()
        await until(lambda: not table.count_live(), "the end")
    assert [table.settled(one).state for one in ids] == ["dead", "completed"]


async def test_a_thread_that_overruns_is_told_named_and_waited_for(
    database: str, caplog: pytest.LogCaptureFixture
) -> None:
    let_go = threading.Event()
    told: list[bool] = []
    starts: list[int] = []

    @job(timeout=SOON, retry=ONCE)
    def slow(input: Input, run: jobs.Run) -> None:
        starts.append(input.n)
        let_go.wait()
        told.append(run.cancelled)

    table = Table(database)
    ids = table.enqueue(slow, 2)
    options: dict[str, Any] = {"queues": {"default": 1}, "lease": timedelta(seconds=1)}
    async with serving(database, slow, **options), make(database, slow, **options) as other:
        with caplog.at_level(logging.WARNING, "jobs.worker"):
            await until(lambda: len(logged(caplog, "jobs.timeout.abandoned")) == 2, "both named")
        await asyncio.sleep(1)
        assert sorted(starts) == [0, 1], "each keeps its slot and its lease, and is started once"
        let_go.set()
        await until(lambda: not table.count_live(), "the end")
        assert other.stats().lost == 0
    assert "in a thread, which cannot be stopped" in logged(caplog, "jobs.timeout.abandoned")[0]
    assert told == [True, True]
    assert [a.error_type for one in ids for a in table.attempts(one)] == ["JobTimeout"] * 2


async def test_a_thread_is_timed_by_its_own_clock(database: str) -> None:
    """It was done in time, and a blocked event loop heard of it late."""

    begun = threading.Event()

    @job(timeout=timedelta(milliseconds=400), retry=ONCE)
    def short(_: Input) -> None:
        begun.set()
        time.sleep(0.05)

    table = Table(database)
    (one,) = table.enqueue(short)
    async with serving(database, short):
        await until(begun.is_set, "the start")
        time.sleep(0.8)  # noqa: ASYNC251  (on purpose)
    assert table.settled(one).state == "completed"


async def test_a_deadline_and_a_drain_at_once_hand_the_job_back(database: str) -> None:
    @job(timeout=SOON)
    async def long(_: Input) -> None:
        await asyncio.sleep(60)

    table = Table(database)
    for _ in range(8):
        (one,) = table.enqueue(long)
        began = time.monotonic()
        async with make(database, long, drain=timedelta(0)) as worker:
            await until(lambda w=worker: w.stats().claimed, "the start")
            await asyncio.sleep(began + 0.14 - time.monotonic())
        row = table.live(one)
        failed = len(table.attempts(one))
        assert (row.state, row.attempt) == ("ready", failed), "one or the other, never half of both"
        execute(database, "delete from jobs.job")


def take_away(database: str, one: UUID) -> None:
    """What a rescue by another worker does to the row."""
    execute(
        database,
        "update jobs.job set claims = claims + 1, revoked = claims, worker = 'another',"
        " lease_expires_at = now() + interval '1 hour', rescue_at = now() + interval '1 hour'"
        " where id = %s",
        one,
    )


@pytest.mark.parametrize("how", ["obeys", "swallows", "fails", "thread"])
async def test_a_run_whose_lease_is_lost_is_stopped_and_leaves_no_trace(
    database: str, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    told: list[bool] = []

    @job()
    async def robbed(_: Input, run: jobs.Run) -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            told.append(run.cancelled)
            if how == "fails":
                raise ValueError("while it was cancelled") from None
            if how == "obeys":
                raise

    @job()
    def robbed_in_thread(_: Input, run: jobs.Run) -> None:
        while not run.cancelled:
            time.sleep(0.01)
        told.append(True)

    handle = robbed_in_thread if how == "thread" else robbed
    table = Table(database)
    (one,) = table.enqueue(handle)
    async with serving(database, handle, lease=timedelta(seconds=1)) as worker:
        await until(lambda: worker.stats().claimed, "the start")
        take_away(database, one)
        with caplog.at_level(logging.WARNING, "jobs"):
            await until(lambda: told, "the cancellation")
            await until(lambda: not len(worker._crew), "its end")
        assert worker._lanes["default"].held == 0
    assert told == [True]
    stats = worker.stats()
    assert (stats.lost, stats.completed, stats.retried, stats.released) == (1, 0, 0, 0)
    row = table.live(one)
    assert (row.worker, row.claims, row.attempt, row.last_error) == ("another", 2, 1, None)
    assert table.attempts(one) == []
    assert table.counters() == {}
    (message,) = logged(caplog, "jobs.worker.lease_lost")
    said = f"job {one} ({handle.name}) lost its lease and is cancelled: the database has given"
    assert said in message


async def test_a_job_that_ended_before_it_was_missed_is_refused(
    database: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Its settle meets the fence."""

    @job()
    async def short(_: Input, run: jobs.Run) -> None:
        take_away(database, run.id)

    table = Table(database)
    (one,) = table.enqueue(short)
    with caplog.at_level(logging.ERROR, "jobs.worker"):
        stats = await make(database, short).run_until_idle()
    assert (stats.lost, stats.completed) == (1, 0)
    assert table.live(one).worker == "another"
    (message,) = logged(caplog, "jobs.settle.unowned")
    assert f"job {one} (short) was not recorded: its lease had been lost" in message


async def test_a_job_that_its_own_worker_claims_again_runs_once_at_a_time(database: str) -> None:
    """After a pause of the whole process, say: the claim may come before the renewal."""
    running: list[int] = []
    ended: list[int] = []

    @job()
    async def long(_: Input, run: jobs.Run) -> None:
        running.append(run.claims)
        try:
            await asyncio.sleep(60 if run.claims == 1 else 0.2)
        finally:
            running.remove(run.claims)
            ended.append(run.claims)

    table = Table(database)
    (one,) = table.enqueue(long)
    async with serving(database, long, lease=timedelta(seconds=1)) as worker:
        worker._renewer._renew = lambda _: True  # type: ignore[method-assign]
        await until(lambda: running, "the start")
        await until(lambda: table.settled(one), "the end")
        assert running == []
    assert ended == [1, 2], "the older one was cancelled when the other began"
    assert worker.stats().lost == 1
    assert table.settled(one).claims == 2
    assert [a.error_type for a in table.attempts(one)] == ["LeaseLapsed"]


async def test_a_job_removed_by_hand_is_lost(database: str) -> None:
    gone = asyncio.Event()

    @job()
    async def long(_: Input) -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            gone.set()
            raise

    table = Table(database)
    table.enqueue(long)
    async with serving(database, long, lease=timedelta(seconds=1)) as worker:
        await until(lambda: worker.stats().claimed, "the start")
        execute(database, "delete from jobs.job")
        await asyncio.wait_for(gone.wait(), 10)
    assert worker.stats().lost == 1


@pytest.mark.serial
async def test_thousands_of_leases_are_renewed(database: str) -> None:
    """In batches of one statement each."""
    gate = asyncio.Event()
    starts: list[int] = []

    @job()
    async def waits(input: Input) -> None:
        starts.append(input.n)
        await gate.wait()

    table = Table(database)
    table.enqueue(waits, 2_500)
    options: dict[str, Any] = {"lease": timedelta(seconds=3)}
    async with serving(database, waits, queues={"default": 2_500}, **options) as worker:
        await until(lambda: len(starts) == 2_500, "all to start")
        async with make(database, waits, **options) as other:
            await asyncio.sleep(4)
            assert other.stats().claimed == 0
        gate.set()
        await until(lambda: worker.stats().completed == 2_500, "all to end")
    assert worker.stats().lost == 0
    assert table.counters() == {"completed": 2_500}
