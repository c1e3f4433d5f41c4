"""How a worker ends: what it waits for, what it hands back, what it leaves to a lease."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import threading
import time
from collections import Counter
from datetime import timedelta
from typing import Any

import pytest

import jobs
from jobs.service.link import Link
from jobs.worker.demand import Ask
from jobs.worker.held import Held
from tests.runtime.working import (
    Gate,
    Input,
    Table,
    job,
    leaving_nothing,
    logged,
    make,
    rows,
    serving,
    sessions,
    tasks,
    threads,
    until,
)

NO_TIME = timedelta(0)


async def test_leaving_a_block_that_was_stopped_inside_does_not_hurry(database: str) -> None:
    gate = Gate()
    table = Table(database)
    (one,) = table.enqueue(gate.job)
    async with serving(database, gate.job) as worker:
        await until(lambda: gate.started, "the start")
        worker.stop()
        asyncio.get_running_loop().call_later(0.3, gate.open.set)
    assert table.settled(one).state == "completed"


async def test_stopping_twice_hurries(database: str) -> None:
    gate = Gate()
    table = Table(database)
    (one,) = table.enqueue(gate.job)
    async with leaving_nothing(database):
        worker = make(database, gate.job, drain=timedelta(hours=1))
        await worker.start()
        await until(lambda: gate.started, "the start")
        worker.stop()
        await asyncio.sleep(0.1)
        assert worker.stats().state == "draining"
        assert worker.stats().in_flight == 1
        worker.stop()
        await worker.wait()
    row = table.live(one)
    assert (row.state, row.attempt, row.claims) == ("ready", 0, 1)
    assert worker.stats().released == 1
    worker.stop()  # and once more, as late as can be
    await worker.wait()


async def test_cancelling_run_hands_back_and_closes(database: str) -> None:
    gate = Gate()
    table = Table(database)
    (one,) = table.enqueue(gate.job)
    async with leaving_nothing(database):
        worker = make(database, gate.job, drain=timedelta(hours=1))
        running = asyncio.create_task(worker.run(signals=False))
        await until(lambda: gate.started, "the start")
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert worker.stats().state == "stopped"
    assert table.live(one).state == "ready"
    assert table.live(one).attempt == 0


async def test_cancelling_the_block_while_it_drains_hurries(database: str) -> None:
    gate = Gate()
    table = Table(database)
    (one,) = table.enqueue(gate.job)

    async def application() -> None:
        async with make(database, gate.job, drain=timedelta(hours=1)):
            await until(lambda: gate.started, "the start")

    async with leaving_nothing(database):
        running = asyncio.create_task(application())
        await until(lambda: gate.started, "the start")
        await asyncio.sleep(0.1)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
    assert table.live(one).state == "ready"


async def test_an_error_in_the_block_drains_first(database: str) -> None:
    gate = Gate()
    table = Table(database)
    (one,) = table.enqueue(gate.job)

    async def application() -> None:
        async with serving(database, gate.job, drain=NO_TIME):
            await until(lambda: gate.started, "the start")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await application()
    assert table.live(one).state == "ready"


async def test_a_job_may_stop_its_worker(database: str) -> None:
    workers: list[jobs.Worker] = []

    @job()
    async def stops(_: Input) -> None:
        workers[0].stop()
        await asyncio.sleep(0.1)

    table = Table(database)
    (one,) = table.enqueue(stops)
    async with leaving_nothing(database):
        workers.append(make(database, stops))
        await workers[0].run(signals=False)
    assert table.settled(one).state == "completed"


async def test_what_does_not_stop_is_named_and_left_to_its_lease(
    database: str, caplog: pytest.LogCaptureFixture
) -> None:
    let_go = threading.Event()
    deaf: list[asyncio.Task[Any] | None] = []

    @job()
    async def stubborn(_: Input) -> None:
        deaf.append(asyncio.current_task())
        while not let_go.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(0.05)

    @job()
    def in_thread(_: Input) -> None:
        let_go.wait()
        raise ValueError("when nobody listens any more")

    table = Table(database)
    ids = [table.enqueue(handle)[0] for handle in (stubborn, in_thread)]
    worker = make(database, stubborn, in_thread, drain=NO_TIME)
    await worker.start()
    await until(lambda: worker.stats().claimed == 2 and deaf, "the starts")
    asked = time.monotonic()
    worker.stop()
    with caplog.at_level(logging.ERROR, "jobs.worker"):
        await worker.wait()
    assert time.monotonic() - asked < 10, "a drain is bounded"
    assert worker.stats().abandoned == 2
    named = logged(caplog, "jobs.worker.abandoned")
    assert len(named) == 2
    assert any(f"{ids[0]} (stubborn) does not stop and is left to its lease" in m for m in named)
    assert any(f"{ids[1]} (in_thread)" in m and "thread is still running" in m for m in named)
    assert [table.live(one).state for one in ids] == ["running", "running"]
    assert not sessions(database), "and nobody renews it"
    assert tasks() == [f"job:stubborn:{ids[0]}"], "the thread does not keep the loop"
    let_go.set()
    await until(lambda: not tasks() and not threads(), "them to end")
    assert [table.live(one).state for one in ids] == ["running", "running"], "and write nothing"
    gc.collect()
    assert not [record for record in caplog.records if record.name == "asyncio"]


async def test_what_ends_late_in_the_drain_still_settles(database: str) -> None:
    """It swallows the cancellation, and is done before the worker is."""

    @job()
    async def finishes(_: Input) -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            await asyncio.sleep(0.5)

    table = Table(database)
    (one,) = table.enqueue(finishes)
    async with serving(database, finishes, drain=NO_TIME) as worker:
        await until(lambda: worker.stats().claimed, "the start")
    assert table.settled(one).state == "completed", "returning says that the work is done"


async def test_the_budget_is_all_the_time_there_is(database: str) -> None:
    gate = Gate()
    table = Table(database)
    (one,) = table.enqueue(gate.job)
    async with serving(database, gate.job, drain=timedelta(milliseconds=500)):
        await until(lambda: gate.started, "the start")
        asked = time.monotonic()
    took = time.monotonic() - asked
    assert took >= 0.5
    assert table.live(one).state == "ready"


async def test_jobs_cancelled_before_their_first_step_are_handed_back(database: str) -> None:
    """Claimed, and the stop comes before the loop came to them."""
    gate = Gate()
    table = Table(database)
    ids = table.enqueue(gate.job, 20)
    async with leaving_nothing(database):
        worker = make(database, gate.job, queues={"default": 20}, drain=NO_TIME)
        await worker.start()
        begin = worker._crew.begin

        def begin_and_stop(held: Any) -> None:
            begin(held)
            assert held.task is None
            if len(worker._crew) == 20:
                worker.stop()

        worker._crew.begin = begin_and_stop  # type: ignore[method-assign]
        await worker.wait()
    assert gate.started == []
    assert worker.stats().released == 20
    assert {(table.live(one).state, table.live(one).attempt) for one in ids} == {("ready", 0)}


async def test_a_task_that_somebody_else_cancels_costs_an_attempt_at_most(database: str) -> None:
    gate = Gate()
    table = Table(database)
    (one,) = table.enqueue(gate.job)
    async with serving(database, gate.job):
        await until(lambda: gate.started, "the start")
        (task,) = [t for t in asyncio.all_tasks() if t.get_name() == f"job:gated:{one}"]
        task.cancel()
        await until(lambda: len(gate.started) == 2, "the next attempt")
        gate.open.set()
        await until(lambda: table.settled(one), "the end")
    (attempt,) = table.attempts(one)
    assert attempt.error_message == "the job function was cancelled from within"


async def test_a_function_that_cancels_its_own_task_and_returns(database: str) -> None:
    """The cancellation comes when nothing is left to cancel: the work is done."""

    @job()
    async def odd(_: Input) -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()

    table = Table(database)
    (one,) = table.enqueue(odd)
    await make(database, odd).run_until_idle()
    assert table.settled(one).state == "completed"


async def test_until_idle_runs_what_is_due_and_leaves_the_rest(database: str) -> None:
    calls: list[int] = []

    @job()
    async def fails_once(_: Input, run: jobs.Run) -> None:
        calls.append(run.attempt)
        if run.attempt == 1:
            raise ValueError

    @job(retry=jobs.Retry(attempts=2, delay=timedelta(hours=1)))
    async def retries_later(_: Input) -> None:
        raise ValueError

    table = Table(database)
    table.enqueue(fails_once, 30)
    (later,) = table.enqueue(fails_once, delay=timedelta(hours=1))
    (retrying,) = table.enqueue(retries_later)
    async with leaving_nothing(database):
        stats = await make(database, fails_once, retries_later).run_until_idle()
    assert (stats.state, stats.completed, stats.retried) == ("stopped", 30, 31)
    assert sorted(calls) == [1] * 30 + [2] * 30
    assert table.live(later).claims == 0
    assert table.live(retrying).attempt == 1


async def test_idle_is_not_what_a_claim_saw_before_the_last_job_failed(database: str) -> None:
    """Its retry is due now, and the claim that was on its way cannot have seen it."""
    slow = asyncio.Event()

    @job()
    async def fails_once(_: Input, run: jobs.Run) -> None:
        if run.attempt == 1:
            await slow.wait()
            raise ValueError

    table = Table(database)
    (one,) = table.enqueue(fails_once)
    worker = make(database, fails_once)
    worker._until_idle = True
    async with worker:
        claim = worker._claimer._claim

        async def late_answer(ask: Ask) -> list[Any]:
            found = await claim(ask)
            if worker.stats().claimed and not found:
                slow.set()
                await until(lambda: not worker.stats().in_flight, "the retry to land")
            return found

        worker._claimer._claim = late_answer  # type: ignore[method-assign]
        await worker.wait()
    assert table.settled(one).state == "completed"


async def test_the_executor_of_the_application_may_be_full(database: str) -> None:
    """Stopping needs no thread of it."""
    loop = asyncio.get_running_loop()
    let_go = threading.Event()
    gate = Gate()
    async with leaving_nothing(database):
        worker = make(database, gate.job)
        await worker.start()
        full = [loop.run_in_executor(None, let_go.wait) for _ in range(64)]
        worker.stop()
        try:
            async with asyncio.timeout(10):
                await worker.wait()
        finally:
            let_go.set()
            await asyncio.gather(*full)


async def test_nothing_of_a_job_is_kept(database: str, caplog: pytest.LogCaptureFixture) -> None:
    """A worker may run for months."""
    caplog.set_level(logging.CRITICAL, "jobs.worker")  # a record keeps the error, and that its run

    @job()
    async def fails_once(_: Input, run: jobs.Run) -> None:
        if run.attempt == 1:
            raise ValueError

    @job()
    def in_thread(_: Input) -> None:
        pass

    table = Table(database)
    for handle in (fails_once, in_thread):
        table.enqueue(handle, 200)
    async with serving(database, fails_once, in_thread) as worker:
        await until(lambda: worker.stats().completed == 400, "all to end")
        await asyncio.sleep(0.05)
        gc.collect()
        kept = [one for one in gc.get_objects() if isinstance(one, Held | jobs.Run)]
        assert len(kept) <= 2 * 5, "at most what each slot has in hand"


async def test_a_drain_sends_one_statement_at_a_time_on_each_connection(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was handed back and who was let out of a line is told at the same time."""
    under_way: Counter[Link] = Counter()
    most = 0
    call = Link.call

    async def counted(self: Link, statement: Any, seconds: float) -> Any:
        nonlocal most
        under_way[self] += 1
        most = max(most, under_way[self])
        try:
            return await call(self, statement, seconds)
        finally:
            under_way[self] -= 1

    gate = asyncio.Event()

    @job(concurrency=1)
    async def keyed(_: Input) -> None:
        gate.set()
        await asyncio.Event().wait()

    table = Table(database)
    table.enqueue(keyed, 3)
    monkeypatch.setattr(Link, "call", counted)
    async with serving(database, keyed, drain=timedelta(0)):
        await gate.wait()
        line = "select id from jobs.job where state = 'blocked'"
        await until(lambda: len(rows(database, line)) == 2, "the line")
    assert most == 1
