"""run.complete against everything else that happens to a job at the same time."""

from __future__ import annotations

import asyncio
import threading
from datetime import timedelta
from uuid import UUID

import psycopg
import pytest
from psycopg_pool import AsyncConnectionPool, ConnectionPool

import jobs
from tests.runtime.effects import effects, make_table, write, write_sync
from tests.runtime.working import Input, Table, job, make, serving, until

Raised = list[BaseException]


@pytest.fixture(autouse=True)
def _effects(database: str) -> None:
    make_table(database)


async def test_completing_twice_does_not_commit_the_effect_twice(
    database: str, pool: AsyncConnectionPool
) -> None:
    """A commit that was durable and not answered, and a function that tries again by itself."""
    raised: Raised = []

    @job()
    async def again(_: Input, run: jobs.Run) -> None:
        for _ in range(2):
            try:
                async with pool.connection() as conn, conn.transaction():
                    await write(conn, run)
                    await run.complete(conn)
            except jobs.LeaseLost as error:
                raised.append(error)

    table = Table(database)
    (one,) = table.enqueue(again)
    stats = await make(database, again).run_until_idle()
    assert "settled by this run already" in str(raised[0])
    assert effects(database) == [one]
    assert table.settled(one).state == "completed"
    assert stats.completed == 1
    assert table.counters() == {"completed": 1}


async def test_a_task_left_behind_cannot_complete_a_job_that_was_given_back(
    database: str, pool: AsyncConnectionPool
) -> None:
    """Its attempt has failed, and the job waits for the next one."""
    raised: Raised = []
    left: list[asyncio.Task[None]] = []

    @job(retry=jobs.Retry(attempts=3, delay=timedelta(hours=1)))
    async def leaves(_: Input, run: jobs.Run) -> None:
        async def behind() -> None:
            await until(lambda: table.live(run.id).state == "ready", "the retry")
            try:
                async with pool.connection() as conn, conn.transaction():
                    await write(conn, run)
                    await run.complete(conn)
            except jobs.LeaseLost as error:
                raised.append(error)

        left.append(asyncio.create_task(behind()))
        raise ValueError("the attempt fails")

    table = Table(database)
    (one,) = table.enqueue(leaves)
    async with serving(database, leaves):
        await until(lambda: left, "the start")
        await left[0]
    assert len(raised) == 1
    assert effects(database) == []
    assert table.live(one).state == "ready"


async def test_a_cancel_in_the_middle_of_a_completion(
    database: str, pool: AsyncConnectionPool
) -> None:
    """A drain at every moment of it: the effect is there exactly where the job is completed."""
    begun = asyncio.Event()

    @job()
    async def effective(_: Input, run: jobs.Run) -> None:
        begun.set()
        async with pool.connection() as conn, conn.transaction():
            await write(conn, run)
            await run.complete(conn)

    table = Table(database)
    cancelled = 0
    for moment in range(0, 40, 2):
        begun.clear()
        (one,) = table.enqueue(effective)
        async with make(database, effective, drain=timedelta(0)) as worker:
            await begun.wait()
            for _ in range(moment):
                await asyncio.sleep(0)
        done = table.settled(one) is not None
        assert (one in effects(database)) == done, f"after {moment} steps"
        cancelled += not done
        assert worker.stats().completed == done
        await make(database, effective).run_until_idle()
        assert effects(database).count(one) == 1
    assert 0 < cancelled < 20, "else the moments were not spread over it"


async def test_a_timeout_after_the_commit_leaves_the_job_completed(
    database: str, pool: AsyncConnectionPool
) -> None:
    @job(timeout=timedelta(milliseconds=200))
    async def lingers(_: Input, run: jobs.Run) -> None:
        async with pool.connection() as conn, conn.transaction():
            await write(conn, run)
            await run.complete(conn)
        await asyncio.sleep(60)

    table = Table(database)
    (one,) = table.enqueue(lingers)
    stats = await make(database, lingers).run_until_idle()
    assert stats.completed == 1
    assert table.settled(one).state == "completed"
    assert table.attempts(one) == []


async def test_what_follows_a_commit_is_not_cut_off_by_the_end_of_the_lease(
    database: str, pool: AsyncConnectionPool
) -> None:
    """There is no lease any more; the rest of the function may take its time."""
    ended: list[bool] = []

    @job()
    async def lingers(_: Input, run: jobs.Run) -> None:
        async with pool.connection() as conn, conn.transaction():
            await run.complete(conn)
        await asyncio.sleep(2.5)
        ended.append(run.cancelled)

    table = Table(database)
    table.enqueue(lingers)
    stats = await make(database, lingers, lease=timedelta(seconds=1)).run_until_idle()
    assert ended == [False]
    assert (stats.completed, stats.lost) == (1, 0)


async def test_many_completions_beside_renewals(database: str) -> None:
    """A renewal that holds the row for a moment is waited for, not taken for a loss."""
    pool = ConnectionPool(database, min_size=1, max_size=8, open=True)
    ends: list[UUID] = []
    lock = threading.Lock()

    @job()
    def effective(_: Input, run: jobs.Run) -> None:
        with pool.connection() as conn, conn.transaction():
            write_sync(conn, run)
            run.complete(conn)
        with lock:
            ends.append(run.id)

    table = Table(database)
    ids = table.enqueue(effective, 300)
    worker = make(database, effective, queues={"default": 16})
    async with worker:
        while table.count_live():
            worker._renewer.hurry()
            await asyncio.sleep(0.005)
        await until(lambda: worker.stats().completed == 300, "the answers")
    pool.close()
    assert worker.stats().lost == 0
    assert worker.stats().retried == 0
    assert sorted(effects(database)) == sorted(ids)
    assert sorted(ends) == sorted(ids)


async def test_a_stricter_transaction_fails_like_any_update_would(
    database: str, pool: AsyncConnectionPool
) -> None:
    """A renewal has touched the row since its snapshot; nothing is committed, and it is retried."""

    @job()
    async def strict(_: Input, run: jobs.Run) -> None:
        async with pool.connection() as conn:
            level = psycopg.IsolationLevel.REPEATABLE_READ if run.attempt == 1 else None
            await conn.set_isolation_level(level)
            async with conn.transaction():
                await write(conn, run)
                before = table.live(run.id).lease_expires_at
                if run.attempt == 1:
                    await until(lambda: table.live(run.id).lease_expires_at > before, "a renewal")
                await run.complete(conn)

    table = Table(database)
    (one,) = table.enqueue(strict)
    await make(database, strict, lease=timedelta(seconds=1)).run_until_idle()
    assert [attempt.error_type for attempt in table.attempts(one)] == ["SerializationFailure"]
    assert table.settled(one).state == "completed"
    assert effects(database) == [one]
