"""A worker within limits: of tenants, queues and all jobs, of a rate, and at zero."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from datetime import timedelta
from typing import Any

import pytest
from pydantic import BaseModel

import jobs
from jobs.worker.held import Held
from tests.runtime.working import (
    Table,
    execute,
    job,
    leaving_nothing,
    make,
    rows,
    serving,
    until,
)
from tests.sql.volume import wide


class Of(BaseModel):
    """Whose job it is."""

    tenant: str = ""
    n: int = 0


class Crowd:
    """Jobs of tenants that wait until they are let go, and who runs at the same time."""

    def __init__(self, *, queue: str = "default", seconds: float | None = None) -> None:
        self.open = asyncio.Event()
        self.running: Counter[str] = Counter()
        self.most: Counter[str] = Counter()
        self.started: list[str] = []

        @job(name=f"crowd_{queue}", queue=queue, tenant=lambda of: of.tenant)
        async def crowd(input: Of) -> None:
            self.started.append(input.tenant)
            self.running[input.tenant] += 1
            self.most[input.tenant] = max(self.most[input.tenant], self.running[input.tenant])
            try:
                if seconds is None:
                    await self.open.wait()
                else:
                    await asyncio.sleep(seconds)
                if input.n < 0:
                    raise ValueError("no luck")
            finally:
                self.running[input.tenant] -= 1

        self.job = crowd

    def enqueue(self, database: str, tenant: str, count: int = 1, n: int = 0) -> None:
        with wide(database) as conn:
            self.job.enqueue_many(conn, [Of(tenant=tenant, n=n) for _ in range(count)])


def written(database: str) -> Any:
    """Live jobs never claimed, and how often the others were, finished ones included."""
    return rows(
        database,
        "select count(*) filter (where claims = 0)::int as untouched, sum(claims)::int as claims"
        " from (select claims from jobs.job union all select claims from jobs.settled) as every",
    )[0]


async def test_a_loud_tenant_leaves_room_and_nothing_is_claimed_in_vain(database: str) -> None:
    crowd = Crowd()
    crowd.enqueue(database, "loud", 500)
    limits = jobs.Limits(per_tenant=3)
    async with serving(database, crowd.job, queues={"default": 10}, limits=limits) as worker:
        await until(lambda: crowd.running["loud"] == 3, "as many as allowed")
        crowd.enqueue(database, "single")
        await until(lambda: crowd.running["single"] == 1, "the other one")
        assert worker.stats().tenants_counted == 2
        await until(lambda: worker.stats().tenants_refused == 1, "the loud one to be left out")
        found = written(database)
        assert (found.untouched, found.claims) == (497, 4)
        crowd.open.set()
        await until(lambda: worker.stats().completed == 501, "all of them")
        assert worker.stats().tenants_counted == 0
    assert crowd.most == {"loud": 3, "single": 1}
    assert written(database).claims == 501, "nothing was handed back and claimed again"


async def test_tenants_without_limits_are_not_told_apart(database: str) -> None:
    crowd = Crowd(seconds=0)
    crowd.enqueue(database, "loud", 20)
    async with serving(database, crowd.job) as worker:
        await until(lambda: worker.stats().completed == 20, "all of them")
        assert not worker._steering._grants
        assert not worker._steering.by_tenant


async def test_all_queues_together_and_each(database: str) -> None:
    one, two = Crowd(queue="one"), Crowd(queue="two")
    for crowd in (one, two):
        crowd.enqueue(database, "t", 50)
    limits = jobs.Limits(total=5, per_queue=3)
    handles = (one.job, two.job)
    async with serving(database, *handles, queues={"one": 10, "two": 10}, limits=limits) as worker:
        await until(lambda: one.running["t"] + two.running["t"] == 5, "as many as allowed")
        await asyncio.sleep(0.3)
        assert written(database).claims == 5
        one.open.set()
        two.open.set()
        await until(lambda: worker.stats().completed == 100, "all of them")
        assert worker._steering.limiter.held == 0
    assert 1 <= one.most["t"] <= 3
    assert 1 <= two.most["t"] <= 3
    assert written(database).claims == 100


class TestRate:
    async def test_a_burst_and_no_more(self, database: str) -> None:
        crowd = Crowd(seconds=0)
        crowd.enqueue(database, "fast", 10)
        crowd.enqueue(database, "slow", 1)
        limits = jobs.Limits(rate_per_tenant=0.001, burst_per_tenant=2)
        async with serving(database, crowd.job, limits=limits) as worker:
            await until(lambda: worker.stats().completed == 3, "what the burst allows")
            await until(lambda: worker.stats().tenants_refused == 1, "another claim")
            assert Counter(crowd.started) == {"fast": 2, "slow": 1}
            assert worker.stats().tenants_paced == 2
            assert written(database).untouched == 8

    async def test_the_next_start_waits_for_no_poll(self, database: str) -> None:
        crowd = Crowd(seconds=0)
        crowd.enqueue(database, "fast", 20)
        slow = {"poll": timedelta(seconds=30), "idle_poll": timedelta(seconds=30)}
        limits = jobs.Limits(rate_per_tenant=20, burst_per_tenant=1)
        async with serving(database, crowd.job, limits=limits, **slow) as worker:
            await until(lambda: worker.stats().completed == 20, "all of them")

    async def test_a_worker_that_runs_until_idle_runs_them_all(self, database: str) -> None:
        crowd = Crowd(seconds=0)
        crowd.enqueue(database, "fast", 6)
        limits = jobs.Limits(rate_per_tenant=20, burst_per_tenant=1)
        async with leaving_nothing(database):
            stats = await make(database, crowd.job, limits=limits).run_until_idle()
        assert stats.completed == 6

    async def test_a_job_that_never_began_does_not_count(self, database: str) -> None:
        """As one that was claimed ahead and is given up: its place and its mark are free again."""
        crowd = Crowd()
        crowd.enqueue(database, "t", 3)
        limits = jobs.Limits(rate_per_tenant=0.001, burst_per_tenant=5)
        queues = {"default": 3}
        async with serving(
            database, crowd.job, queues=queues, limits=limits, drain=timedelta(0)
        ) as worker:
            await until(lambda: crowd.running["t"] == 3, "to run")
            limiter = worker._steering.limiter
            job = Held(worker._holding.snapshot()[0].row, worker.name, 0.0)
            worker._steering.begin(job, time.monotonic())
            before = limiter._buckets["t"].tokens
            worker._ended(job)
            assert limiter._buckets["t"].tokens >= before + 1
            assert limiter.held == 3


class TestZero:
    async def test_nothing_of_tenants(self, database: str) -> None:
        crowd = Crowd(seconds=0)
        done: list[int] = []

        @job()
        async def house(_: Of) -> None:
            done.append(1)

        crowd.enqueue(database, "t", 5)
        with wide(database) as conn:
            house.enqueue(conn, Of())
        limits = jobs.Limits(per_tenant=0)
        async with serving(database, crowd.job, house, limits=limits) as worker:
            await until(lambda: worker.stats().completed == 1, "the one of no tenant")
            await asyncio.sleep(0.2)
        assert (done, crowd.started) == ([1], [])
        assert written(database).untouched == 5

    @pytest.mark.parametrize("limit", ["total", "per_queue"])
    async def test_nothing_at_all(self, database: str, limit: str) -> None:
        crowd = Crowd(seconds=0)
        crowd.enqueue(database, "t", 5)
        async with serving(database, crowd.job, limits=jobs.Limits(**{limit: 0})):
            await asyncio.sleep(0.3)
        assert written(database).untouched == 5

    async def test_not_even_what_a_dead_worker_left(self, database: str) -> None:
        crowd = Crowd(seconds=0)
        crowd.enqueue(database, "t", 1)
        execute(
            database,
            "update jobs.job set state = 'running', worker = 'gone', claims = 1, attempt = 1,"
            " claimed_at = now() - interval '1 hour', rescue_at = now() - interval '1 hour',"
            " lease_expires_at = now() - interval '1 hour'",
        )
        async with serving(database, crowd.job, limits=jobs.Limits(per_tenant=0)):
            await asyncio.sleep(1.2)  # longer than the time between two looks for them
        async with serving(database, crowd.job, limits=jobs.Limits(per_tenant=1)) as worker:
            await until(lambda: worker.stats().completed == 1, "its rescue")


async def test_every_end_gives_the_place_back(database: str) -> None:
    """Completed, failed and tried again, unknown here, cancelled."""
    crowd = Crowd(seconds=0.005)
    table = Table(database)
    crowd.enqueue(database, "good", 10)
    crowd.enqueue(database, "bad", 5, n=-1)
    unknown = table.insert("unknown", "{}")
    execute(database, "update jobs.job set tenant = 'lost' where id = %s", unknown)
    limits = jobs.Limits(per_tenant=2, per_queue=4, total=4)
    async with serving(database, crowd.job, queues={"default": 9}, limits=limits) as worker:
        await until(
            lambda: (worker.stats().completed, worker.stats().ended) == (10, 5), "all to end"
        )
        await until(lambda: worker.stats().released >= 1, "the unknown one to be handed back")
        await until(lambda: not worker._steering.limiter.held, "every place")
        assert worker._steering._grants == {}
        assert not worker._steering.limiter._tenants
        assert not worker._steering.limiter._queues
    assert max(crowd.most.values()) <= 2


async def test_due_jobs_behind_many_tenants_that_have_none(database: str) -> None:
    """One claim does not visit all of them; until idle means that it went on."""
    crowd = Crowd(seconds=0)
    with wide(database) as conn:
        items = [jobs.Item(Of(tenant=f"t{n:03}"), delay=timedelta(hours=1)) for n in range(150)]
        crowd.job.enqueue_many(conn, items)
    crowd.enqueue(database, "z")
    async with leaving_nothing(database):
        stats = await make(database, crowd.job, limits=jobs.Limits(per_tenant=1)).run_until_idle()
    assert stats.completed == 1
