"""A task that runs job after job: nothing of one job reaches the next."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
import threading
from datetime import timedelta
from typing import Any

import pytest

import jobs
from jobs.worker.lane import Lane
from tests.runtime.working import Input, Table, job, make, rows, serving, until


@job()
async def short(_: Input) -> None:
    """Does nothing."""


async def test_jobs_do_not_see_context_variables_of_others(database: str) -> None:
    own: contextvars.ContextVar[int] = contextvars.ContextVar("own")
    outer: contextvars.ContextVar[str] = contextvars.ContextVar("outer")
    outer.set("the application's")
    seen: list[tuple[int | None, str]] = []

    async def deep() -> None:
        own.set(own.get() + 1_000)

    @job()
    async def sets(input: Input) -> None:
        seen.append((own.get(None), outer.get()))
        own.set(input.n)
        if input.n % 3 == 0:
            await asyncio.sleep(0)
        if input.n % 5 == 0:
            outer.set("a job's")
        await asyncio.create_task(deep())
        assert own.get() == input.n

    @job()
    async def resets(_: Input) -> None:
        token = outer.set("for a moment")
        await asyncio.sleep(0)
        outer.reset(token)

    table = Table(database)
    for handle in (sets, resets, sets, short):
        table.enqueue(handle, 60)
    stats = await make(database, sets, resets, short).run_until_idle()
    assert stats.completed == 240
    assert seen == [(None, "the application's")] * 120


async def test_a_cancellation_meets_no_other_job(database: str) -> None:
    """Asked for in every way, and left behind in the task."""

    @job(retry=jobs.Retry(attempts=1))
    async def odd(input: Input) -> None:
        task = asyncio.current_task()
        assert task is not None
        if input.n % 3 == 0:
            task.cancel()
        elif input.n % 3 == 1:
            task.cancel()
            task.uncancel()
        else:
            raise asyncio.CancelledError

    @job(retry=jobs.Retry(attempts=1))
    async def awaits(_: Input) -> None:
        await asyncio.sleep(0)

    table = Table(database)
    for _ in range(10):
        table.enqueue(odd, 9)
        table.enqueue(awaits, 20)
    async with serving(database, odd, awaits, queues={"default": 2}):
        await until(lambda: not table.count_live(), "the end")
    ended = rows(database, "select name, state, count(*)::int as n from jobs.settled group by 1, 2")
    found = {(row.name, row.state): row.n for row in ended}
    assert found == {("odd", "completed"): 60, ("odd", "dead"): 30, ("awaits", "completed"): 200}


async def test_nor_does_one_that_a_job_has_left_for_later(database: str) -> None:
    """A timer that nobody stops, a timeout that nobody leaves, a registry with an entry a task."""
    keyed: dict[asyncio.Task[object], int] = {}

    @job(retry=jobs.Retry(attempts=1))
    async def leaves(input: Input) -> None:
        task = asyncio.current_task()
        assert task is not None
        assert task not in keyed
        if input.n % 3 == 0:
            asyncio.get_running_loop().call_later(0.01, task.cancel)
        elif input.n % 3 == 1:
            await asyncio.timeout(0.01).__aenter__()
        else:
            keyed[task] = input.n

    @job(retry=jobs.Retry(attempts=1))
    async def awaits(_: Input) -> None:
        await asyncio.sleep(0.02)

    table = Table(database)
    for _ in range(5):
        table.enqueue(leaves, 6)
        table.enqueue(awaits, 4)
    async with serving(database, leaves, awaits, queues={"default": 2}) as worker:
        await until(lambda: not table.count_live(), "the end")
        assert (worker.stats().completed, worker.stats().ended) == (50, 0)


async def test_a_task_is_used_again_by_jobs_that_keep_nothing_of_it(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    @job()
    async def tidy(_: Input) -> None:
        async with asyncio.timeout(1):
            await asyncio.sleep(0)

    @job()
    async def fails(_: Input, run: jobs.Run) -> None:
        if run.attempt == 1:
            raise ValueError

    table = Table(database)
    hired = 0
    async with serving(database, tidy, fails, queues={"default": 1}) as worker:
        hire = worker._crew._hire

        def counted(lane: Lane) -> None:
            nonlocal hired
            hired += 1
            hire(lane)

        monkeypatch.setattr(worker._crew, "_hire", counted)
        table.enqueue(tidy, 50)
        table.enqueue(fails, 10)
        await until(lambda: worker.stats().completed == 60, "the end")
    assert hired == 1


async def test_one_that_is_cancelled_while_it_waits_for_a_job_loses_none(
    database: str, caplog: pytest.LogCaptureFixture
) -> None:
    """By somebody who cancels every task, in the moment when a claim is answered."""
    table = Table(database)
    async with serving(database, short) as worker:
        table.enqueue(short)
        await until(lambda: worker.stats().completed == 1, "a runner that waits")
        take = worker._claimer._take

        def cancelling(*what: Any) -> None:
            for runner in worker._crew._runners:
                runner.cancel()
            take(*what)

        worker._claimer._take = cancelling
        table.enqueue(short)
        await until(lambda: worker.stats().completed == 2, "the next")
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


async def test_the_tools_of_asyncio_work_in_job_after_job(database: str) -> None:
    ends: list[int] = []

    @job()
    async def uses(input: Input) -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.001):
                await asyncio.sleep(60)
        async with asyncio.TaskGroup() as group:
            group.create_task(asyncio.sleep(0))
        with contextlib.suppress(ExceptionGroup):
            async with asyncio.TaskGroup() as group:
                group.create_task(fails())
                await asyncio.sleep(60)
            raise AssertionError
        assert asyncio.current_task() is not None
        ends.append(input.n)

    async def fails() -> None:
        raise ValueError

    table = Table(database)
    table.enqueue(uses, 30)
    stats = await make(database, uses, queues={"default": 2}).run_until_idle()
    assert (stats.completed, stats.retried) == (30, 0)
    assert sorted(ends) == list(range(30))


async def test_the_event_loop_has_its_turn_between_jobs_that_wait_for_nothing(
    database: str,
) -> None:
    turns = 0
    seen: list[int] = []

    @job()
    async def busy(_: Input) -> None:
        seen.append(turns)
        deadline = asyncio.get_running_loop().time() + 0.0005
        while asyncio.get_running_loop().time() < deadline:
            pass

    def turn() -> None:
        nonlocal turns
        turns += 1
        if worker.stats().completed < 200:
            asyncio.get_running_loop().call_soon(turn)

    table = Table(database)
    table.enqueue(busy, 200)
    async with serving(database, busy, queues={"default": 200}) as worker:
        turn()
        await until(lambda: worker.stats().completed == 200, "the end")
    assert len(set(seen)) >= 200 * 0.0005 / 0.002 / 2


async def test_a_function_in_a_thread_waits_for_its_cancellation(database: str) -> None:
    told: list[bool] = []
    begun = threading.Event()

    @job()
    def waits(_: Input, run: jobs.Run) -> None:
        told.append(run.wait_cancelled(0.001))
        begun.set()
        told.append(run.wait_cancelled())
        told.append(run.wait_cancelled(0))
        told.append(run.cancelled)
        raise OSError("as it was told")

    table = Table(database)
    (one,) = table.enqueue(waits)
    async with serving(database, waits, drain=timedelta(0)):
        await until(begun.is_set, "the start")
    assert told == [False, True, True, True]
    assert (table.live(one).state, table.live(one).attempt) == ("ready", 0)
