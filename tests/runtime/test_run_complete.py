"""run.complete: the effect of a job and its end are one commit, or neither is."""

from __future__ import annotations

import asyncio
import logging
import threading
from contextlib import suppress
from datetime import timedelta
from typing import Any
from uuid import UUID

import psycopg
import pytest
from psycopg import AsyncConnection, Connection
from psycopg_pool import AsyncConnectionPool, ConnectionPool

import jobs
from tests.runtime.working import Input, Table, job, make, rows, serving, until

Raised = list[BaseException]


@pytest.fixture(autouse=True)
def _effects(database: str) -> None:
    with psycopg.connect(database, autocommit=True) as conn:
        conn.execute("create table public.effect (job uuid not null, claims bigint not null)")


def effects(database: str) -> list[UUID]:
    """Whose effects have been committed."""
    return [row.job for row in rows(database, "select job from public.effect")]


async def write(conn: AsyncConnection[Any], run: jobs.Run) -> None:
    """The effect of an asynchronous job."""
    await conn.execute("insert into public.effect values (%s, %s)", (run.id, run.claims))


def write_sync(conn: Connection[Any], run: jobs.Run) -> None:
    """The effect of a synchronous job."""
    conn.execute("insert into public.effect values (%s, %s)", (run.id, run.claims))


async def test_effect_and_end_are_one_commit(database: str, pool: AsyncConnectionPool) -> None:
    @job()
    async def effective(_: Input, run: jobs.Run) -> None:
        async with pool.connection() as conn, conn.transaction():
            await write(conn, run)
            await run.complete(conn)
            assert effects(database) == [], "not before the commit"
            assert table.live(run.id).state == "running"

    table = Table(database)
    (one,) = table.enqueue(effective)
    stats = await make(database, effective).run_until_idle()
    assert (stats.completed, stats.lost, stats.retried) == (1, 0, 0)
    assert effects(database) == [one]
    end = table.settled(one)
    assert (end.state, end.claims, end.attempt, end.last_error) == ("completed", 1, 1, None)
    assert table.attempts(one) == []
    assert table.counters() == {"completed": 1}


@pytest.mark.parametrize("autocommit", [False, True])
async def test_in_a_thread(database: str, autocommit: bool) -> None:
    @job()
    def effective(_: Input, run: jobs.Run) -> None:
        with psycopg.connect(database, autocommit=autocommit) as conn, conn.transaction():
            write_sync(conn, run)
            run.complete(conn)

    table = Table(database)
    ids = table.enqueue(effective, 20)
    stats = await make(database, effective).run_until_idle()
    assert stats.completed == 20
    assert sorted(effects(database)) == sorted(ids)
    assert table.counters() == {"completed": 20}


async def test_a_transaction_that_psycopg_opens_by_itself(database: str) -> None:
    @job()
    async def effective(_: Input, run: jobs.Run) -> None:
        async with await AsyncConnection.connect(database) as conn:
            await run.complete(conn)
            await write(conn, run)

    table = Table(database)
    (one,) = table.enqueue(effective)
    await make(database, effective).run_until_idle()
    assert effects(database) == [one]
    assert table.settled(one).state == "completed"


async def test_a_rollback_whose_exception_leaves(database: str, pool: AsyncConnectionPool) -> None:
    """The attempt fails with that exception, and the next one may complete."""

    @job()
    async def effective(_: Input, run: jobs.Run) -> None:
        async with pool.connection() as conn, conn.transaction():
            await write(conn, run)
            await run.complete(conn)
            if run.attempt == 1:
                raise ValueError("second thoughts")

    table = Table(database)
    (one,) = table.enqueue(effective)
    stats = await make(database, effective).run_until_idle()
    assert (stats.completed, stats.retried) == (1, 1)
    (attempt,) = table.attempts(one)
    assert (attempt.claims, attempt.error_type) == (1, "ValueError")
    assert effects(database) == [one]
    assert table.settled(one).claims == 2
    assert table.counters() == {"completed": 1, "retried": 1}


@pytest.mark.parametrize("in_thread", [False, True])
async def test_a_rollback_that_is_swallowed(
    database: str, pool: AsyncConnectionPool, in_thread: bool
) -> None:
    """The function returns as if all were well, and the attempt has failed all the same."""

    @job()
    async def swallows(_: Input, run: jobs.Run) -> None:
        async with pool.connection() as conn:
            try:
                async with conn.transaction():
                    await write(conn, run)
                    await run.complete(conn)
                    raise ValueError("nobody sees this")
            except ValueError:
                pass

    @job()
    def swallows_in_thread(_: Input, run: jobs.Run) -> None:
        with psycopg.connect(database) as conn:
            run.complete(conn)
            conn.rollback()

    handle = swallows_in_thread if in_thread else swallows
    table = Table(database)
    (one,) = table.enqueue(handle)
    stats = await make(database, handle).run_until_idle()
    assert (stats.completed, stats.ended) == (0, 1)
    end = table.settled(one)
    assert (end.state, end.attempt) == ("dead", 3)
    assert {a.error_type for a in table.attempts(one)} == {"CompletionRolledBack"}
    assert "[JOB_COMPLETION_ROLLED_BACK]" in end.last_error
    assert effects(database) == []


async def test_a_savepoint_that_is_rolled_back_may_be_tried_again(
    database: str, pool: AsyncConnectionPool
) -> None:
    @job()
    async def tries(_: Input, run: jobs.Run) -> None:
        async with pool.connection() as conn, conn.transaction():
            try:
                async with conn.transaction():
                    await run.complete(conn)
                    raise ValueError("not yet")
            except ValueError:
                pass
            await write(conn, run)
            await run.complete(conn)

    table = Table(database)
    (one,) = table.enqueue(tries)
    await make(database, tries).run_until_idle()
    assert table.settled(one).state == "completed"
    assert effects(database) == [one]


@pytest.mark.parametrize("error", [ValueError, asyncio.CancelledError, SystemExit])
async def test_what_goes_wrong_after_the_commit_changes_nothing(
    database: str,
    pool: AsyncConnectionPool,
    caplog: pytest.LogCaptureFixture,
    error: type[BaseException],
) -> None:
    @job()
    async def stumbles(_: Input, run: jobs.Run) -> None:
        async with pool.connection() as conn, conn.transaction():
            await write(conn, run)
            await run.complete(conn)
        raise error("too late")

    table = Table(database)
    (one,) = table.enqueue(stumbles)
    with caplog.at_level(logging.WARNING, "jobs.worker"):
        stats = await make(database, stumbles).run_until_idle()
    assert (stats.completed, stats.retried, stats.ended) == (1, 0, 0)
    assert table.settled(one).state == "completed"
    assert table.attempts(one) == []
    assert effects(database) == [one]
    assert table.counters() == {"completed": 1}
    assert any("stays completed" in record.getMessage() for record in caplog.records)


@pytest.mark.parametrize("in_thread", [False, True])
async def test_outside_a_transaction(database: str, in_thread: bool) -> None:
    @job()
    async def careless(_: Input, run: jobs.Run) -> None:
        async with await AsyncConnection.connect(database, autocommit=True) as conn:
            await write(conn, run)
            await run.complete(conn)

    @job()
    def careless_in_thread(_: Input, run: jobs.Run) -> None:
        with psycopg.connect(database, autocommit=True) as conn:
            run.complete(conn)

    handle = careless_in_thread if in_thread else careless
    table = Table(database)
    (one,) = table.enqueue(handle)
    await make(database, handle).run_until_idle()
    assert table.settled(one).state == "dead"
    assert table.attempts(one)[0].error_type == "CompletionOutsideTransaction"
    assert "[JOB_COMPLETION_OUTSIDE_TRANSACTION]" in table.settled(one).last_error


async def test_an_error_that_the_database_raises_is_not_taken_for_a_completion(
    database: str, pool: AsyncConnectionPool
) -> None:
    @job()
    async def aborted(_: Input, run: jobs.Run) -> None:
        async with pool.connection() as conn:
            try:
                async with conn.transaction():
                    with suppress(psycopg.errors.DivisionByZero):
                        await conn.execute("select 1 / 0")
                    await run.complete(conn)
            except psycopg.errors.InFailedSqlTransaction:
                pass

    table = Table(database)
    (one,) = table.enqueue(aborted)
    await make(database, aborted).run_until_idle()
    assert table.settled(one).state == "dead"
    assert table.attempts(one)[0].error_type == "CompletionRolledBack"


def take_away(database: str, run: jobs.Run) -> None:
    """What a rescue by another worker does to the row."""
    rows(
        database,
        "update jobs.job set claims = claims + 1, revoked = claims, worker = 'another',"
        " lease_expires_at = now() + interval '1 hour', rescue_at = now() + interval '1 hour'"
        " where id = %s returning id",
        run.id,
    )


@pytest.mark.parametrize("in_thread", [False, True])
async def test_after_a_lost_lease(
    database: str, pool: AsyncConnectionPool, in_thread: bool
) -> None:
    raised: Raised = []

    @job()
    async def robbed(_: Input, run: jobs.Run) -> None:
        take_away(database, run)
        try:
            async with pool.connection() as conn, conn.transaction():
                await write(conn, run)
                await run.complete(conn)
        except jobs.LeaseLost as error:
            raised.append(error)
            raise

    @job()
    def robbed_in_thread(_: Input, run: jobs.Run) -> None:
        take_away(database, run)
        try:
            with psycopg.connect(database) as conn:
                write_sync(conn, run)
                run.complete(conn)
        except jobs.LeaseLost as error:
            raised.append(error)
            raise

    handle = robbed_in_thread if in_thread else robbed
    table = Table(database)
    (one,) = table.enqueue(handle)
    stats = await make(database, handle).run_until_idle()
    assert len(raised) == 1
    assert (stats.lost, stats.completed, stats.retried) == (1, 0, 0)
    assert effects(database) == []
    row = table.live(one)
    assert (row.worker, row.claims, row.attempt) == ("another", 2, 1)
    assert table.attempts(one) == []
    assert table.counters() == {}


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


async def test_an_open_completion_holds_nobody_up(database: str, pool: AsyncConnectionPool) -> None:
    """O-09 b: longer than its lease. The others are renewed, and it is not rescued."""
    gate = asyncio.Event()
    starts: list[UUID] = []

    @job()
    async def completes(_: Input, run: jobs.Run) -> None:
        starts.append(run.id)
        async with pool.connection() as conn, conn.transaction():
            await write(conn, run)
            await run.complete(conn)
            await gate.wait()

    @job()
    async def waits(_: Input, run: jobs.Run) -> None:
        starts.append(run.id)
        await gate.wait()

    table = Table(database)
    (one,) = table.enqueue(completes)
    others = table.enqueue(waits, 20)
    lease = timedelta(seconds=1)
    left: list[float] = []
    async with serving(database, completes, waits, queues={"default": 21}, lease=lease) as worker:
        await until(lambda: len(starts) == 21, "all to start")
        async with make(database, completes, waits, name="hungry", lease=lease) as hungry:

            def beyond() -> bool:
                seen = rows(
                    database,
                    "select id, extract(epoch from lease_expires_at - clock_timestamp()) as left"
                    " from jobs.job where state = 'running'",
                )
                left.extend(float(row.left) for row in seen if row.id != one)
                return any(row.id == one and row.left < -1 for row in seen)

            await until(beyond, "its lease to be over by another lease")
            assert hungry.stats().claimed == 0
        gate.set()
        await until(lambda: not table.count_live(), "all to end")
        await until(lambda: worker.stats().completed == 21, "the answers")
        assert worker.stats().lost == 0
    assert min(left) > 1 / 3
    assert sorted(starts) == sorted([one, *others])
    assert effects(database) == [one]
    assert table.settled(one).claims == 1
    assert table.counters() == {"completed": 21}


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
