"""Nobody starves: failing jobs beside good ones, low priorities under a flood of high ones."""

from __future__ import annotations

import asyncio
import itertools
import time
from datetime import timedelta

import psycopg
import pytest

import jobs
from jobs.worker.floors import EVERY
from jobs.worker.turns import ONE_IN
from tests.runtime.working import Input, Table, execute, job, rows, serving, until
from tests.sql.volume import wide

STUBBORN = jobs.Retry(
    attempts=100, backoff="fixed", delay=timedelta(0), jitter=False, max_delay=timedelta(hours=1)
)


async def test_good_jobs_end_while_failing_ones_still_try(database: str) -> None:
    """O-47: a retry lines up behind what was due, however often it comes back."""
    tried: list[int] = []
    ended: list[int] = []
    tries_then: list[int] = []

    @job(name="bad", retry=STUBBORN)
    async def bad(input: Input) -> None:
        tried.append(input.n)
        raise ValueError("never")

    @job(name="good")
    async def good(input: Input) -> None:
        ended.append(input.n)
        if len(ended) == 1_000:
            tries_then.append(len(tried))

    table = Table(database)
    table.enqueue(bad, 50)
    table.enqueue(good, 1_000)
    async with serving(database, bad, good, queues={"default": 5}) as worker:
        await until(lambda: len(ended) == 1_000, "the good ones")
        assert worker.stats().ended == 0, "all of the others go on"
    assert sorted(ended) == list(range(1_000))
    # Each gets about one try for each look at what was due: far from its hundred.
    assert tries_then[0] < 50 * 50


@pytest.mark.parametrize("slots", [1, 5])
async def test_low_ones_get_their_share_under_a_flood_of_high_ones(
    database: str, slots: int
) -> None:
    """O-47: high ones come faster than they are served (110 %), and low ones wait beside them."""
    flood, low_done, high_done = itertools.count(1), 0, 0
    high_when_low_ended: list[int] = []
    enough = 60

    with wide(database) as conn:

        @job(name="high")
        async def high(_: Input) -> None:
            nonlocal high_done
            await asyncio.sleep(0.002)  # so that little is claimed ahead
            high_done += 1
            number = next(flood)
            if low_done < enough:  # one for each that has ended, and for each tenth a second one
                handle.enqueue_many(conn, [Input()] * (2 if number % 10 == 0 else 1))

        @job(name="low", priority=3)
        async def low(_: Input) -> None:
            nonlocal low_done
            low_done += 1
            high_when_low_ended.append(high_done)

        handle = high
        table = Table(database)
        table.enqueue(low, enough)
        table.enqueue(high, 1_000)
        async with serving(database, high, low, queues={"default": slots}) as worker:
            await until(lambda: low_done == enough, "the low ones")
            await until(lambda: not table.count_live(), "the rest")
            assert worker.stats().retried == 0
    assert high_when_low_ended[0] > 0, "high ones went first"
    share = enough / (enough + high_when_low_ended[-1])
    assert 0.4 / ONE_IN < share < 2.5 / ONE_IN, high_when_low_ended


async def test_what_lands_behind_the_floor_of_a_busy_worker_is_run(database: str) -> None:
    """A commit that came late, and a job that was due before all others."""
    done: list[int] = []
    begun_at: dict[int, float] = {}

    @job(name="many")
    async def many(input: Input) -> None:
        begun_at.setdefault(input.n, time.monotonic())
        done.append(input.n)
        time.sleep(0.0005)  # noqa: ASYNC251 - so that the backlog outlasts the sweep

    table = Table(database)
    table.enqueue(many, 6_000)
    execute(database, "update jobs.job set available_at = created_at - interval '1 hour'")
    with psycopg.connect(database) as late:
        many.enqueue(late, Input(n=-1))
        late.execute(
            "update jobs.job set available_at = now() - interval '1 day'"
            " where input::text like '%-1%'"
        )
        async with serving(database, many, queues={"default": 50}) as worker:
            await until(lambda: len(done) > 500, "the worker to be in the middle")
            late.commit()
            committed = len(done)
            await until(lambda: len(done) == 6_001, "all of them")
            assert worker.stats().completed <= 6_001
    assert committed < done.index(-1), "after it was committed"
    # Found by a sweep and not only when the backlog was over.
    assert done.index(-1) < 6_000, done.index(-1)
    assert EVERY < 1


async def test_a_held_snapshot_changes_nothing_about_what_is_run(database: str) -> None:
    """O-46, the short form: every job runs once, while nothing that is dead can be removed."""
    done: list[int] = []

    @job(name="once")
    async def once(input: Input) -> None:
        done.append(input.n)

    table = Table(database)
    with psycopg.connect(database) as holder:
        holder.execute("set transaction isolation level repeatable read")
        holder.execute("select count(*) from jobs.job")
        table.enqueue(once, 3_000)
        async with serving(database, once, queues={"default": 50}) as worker:
            for n in range(10):
                table.enqueue(once, 100, priority=n % 4)
            await until(lambda: worker.stats().completed == 4_000, "all of them")
    assert len(done) == 4_000
    ended = "select count(*)::int as n from jobs.settled where state = 'completed' and attempt = 1"
    assert rows(database, ended)[0].n == 4_000
