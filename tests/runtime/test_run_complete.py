"""run.complete: the effect of a job and its end are one commit, or neither is."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from datetime import timedelta
from uuid import UUID

import psycopg
import pytest
from psycopg import AsyncConnection
from psycopg_pool import AsyncConnectionPool

import jobs
from tests.runtime.effects import effects, make_table, write, write_sync
from tests.runtime.working import Input, Table, job, make, rows, serving, until

Raised = list[BaseException]


@pytest.fixture(autouse=True)
def _effects(database: str) -> None:
    make_table(database)


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
