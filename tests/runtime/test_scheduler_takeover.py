"""A leader that is gone is replaced when its next fire is late; one that is busy is not."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import timedelta

import jobs
from tests.runtime.ticking import SECOND, Input, each_second, fired, make, schedule, store, work
from tests.runtime.working import leaving_nothing, rows, until

# So long that nobody takes over since they have passed.
LONG = {"lease": timedelta(hours=1), "refresh": timedelta(minutes=30)}


def lose(scheduler: jobs.Scheduler) -> None:
    """Let it do nothing any more, as if its host were gone: nothing is said, the lease stays."""
    scheduler._task.cancel()
    scheduler._dispatcher._leads_until = float("-inf")  # its stop resigns nothing


async def test_one_that_is_gone_is_replaced_when_a_fire_is_late(database: str) -> None:
    store(database, "ticking", every=2 * SECOND)
    async with leaving_nothing(database), make(database, **LONG) as one:
        await until(lambda: one.stats().leading, "the first to lead")
        async with make(database, **LONG) as two:
            await until(lambda: fired(database, "ticking"), "a fire")
            assert not two.stats().leading
            lose(one)
            count = len(fired(database, "ticking"))
            await until(lambda: two.stats().leading, "the second to lead")
            await until(lambda: len(fired(database, "ticking")) > count, "it to fire")


async def test_one_that_fires_keeps_its_lease_by_that_alone(database: str) -> None:
    store(database, "ticking")
    async with (
        leaving_nothing(database),
        make(database, **LONG) as one,
        make(database, **LONG) as two,
    ):
        await until(lambda: one.stats().leading or two.stats().leading, "one to lead")
        await until(lambda: len(fired(database, "ticking")) >= 6, "it to outlast its lease")
        assert one.stats().leading != two.stats().leading
        assert 0 in (one.stats().fired, two.stats().fired)


async def test_a_function_that_takes_its_time_does_not_cost_the_lead(database: str) -> None:
    called: list[float] = []

    @each_second()
    def slow() -> Iterator[jobs.Entry]:
        called.append(time.monotonic())
        time.sleep(5)  # longer than a lease beside schedules of each second
        yield work, Input()

    async with leaving_nothing(database), make(database, slow, **LONG) as one:
        await until(lambda: called, "the call")
        async with make(database, slow, **LONG) as two:
            await until(lambda: fired(database, "slow"), "the fire")
            assert one.stats().leading
            assert not two.stats().leading
            assert one.stats().overtaken == 0


async def test_one_that_cannot_fire_keeps_its_lease(database: str) -> None:
    @each_second()
    def failing() -> list[jobs.Entry]:
        raise KeyError("always")

    async with (
        leaving_nothing(database),
        make(database, failing, **LONG) as one,
    ):
        await until(lambda: one.stats().leading, "the first to lead")
        async with make(database, failing, **LONG) as two:
            await until(lambda: one.stats().failed >= 3, "tries that outlast a lease")
            assert not two.stats().leading
            left = rows(database, "select expires_at > now() as held from jobs.leader")
            assert [row.held for row in left] == [True]
    assert schedule(database, "failing").last_occurrence is None


async def test_a_leader_that_was_taken_for_gone_steps_back(database: str) -> None:
    """It hears of it with its next fire, not an hour later."""
    store(database, "ticking")
    async with leaving_nothing(database), make(database, **LONG) as one:
        await until(lambda: fired(database, "ticking"), "a fire")
        rows(database, "update jobs.leader set holder = 'another' returning 1 as done")
        await until(lambda: not one.stats().leading, "it to step back")
        await until(lambda: one.stats().leading, "it to lead again, when the other is late")
