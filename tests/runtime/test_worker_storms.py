"""Trouble of every kind at once. A ledger proves that each claim has had its effect once.

Each job writes down the claim it ran under. Whatever the network and the server do, no claim is
there twice, and no job is missing.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from psycopg.conninfo import conninfo_to_dict
from psycopg_pool import AsyncConnectionPool

import jobs
from devkit import postgres
from devkit.proxy import Proxy
from jobs.service import link
from jobs.worker import claimer, settler
from tests.runtime.working import Input, Table, job, leaving_nothing, make, until
from tests.support.server import Clones

ledger: Counter[tuple[UUID, int]] = Counter()
begun: list[UUID] = []
open_gate = asyncio.Event()


@job(retry=jobs.Retry(attempts=50))
async def effect(_: Input, run: jobs.Run) -> None:
    """Takes a moment, then has its effect."""
    begun.append(run.id)
    await asyncio.sleep(0.02)
    ledger[run.id, run.claims] += 1


@job(retry=jobs.Retry(attempts=50))
async def gated(_: Input, run: jobs.Run) -> None:
    """Waits for the test, then has its effect."""
    begun.append(run.id)
    await open_gate.wait()
    ledger[run.id, run.claims] += 1


@pytest.fixture(autouse=True)
def _nothing_happened() -> None:
    ledger.clear()
    begun.clear()
    globals()["open_gate"] = asyncio.Event()


@pytest.fixture
def proxy(clones: Clones) -> Iterator[Proxy]:
    with Proxy(Path(clones.host)) as proxy:
        yield proxy


@pytest.fixture
def through(proxy: Proxy, database: str) -> str:
    """DSN of `database` through the proxy."""
    name = conninfo_to_dict(database)["dbname"]
    return f"{proxy.dsn(str(name))}?sslmode=disable&gssencmode=disable&connect_timeout=2"


def check_ledger(ids: list[UUID]) -> None:
    """Each claim once, each job at least once."""
    assert set(ledger.values()) == {1}, "a claim had its effect twice"
    assert {id for id, _ in ledger} == set(ids), "a job is missing"


@pytest.mark.serial
async def test_connections_that_are_cut_stall_and_come_back(
    database: str, proxy: Proxy, through: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For four seconds, beside a neighbour that has no trouble; the application's pool is full."""
    for module in (claimer, settler):
        monkeypatch.setattr(module, "TIMEOUT", 0.5)
    monkeypatch.setattr(link, "CONNECT_TIMEOUT", 0.5)
    seed = random.randrange(10**9)
    print("seed", seed)  # noqa: T201  (shown where the test fails)
    chance = random.Random(seed)
    table = Table(database)
    ids = table.enqueue(effect, 400)
    options: dict[str, Any] = {"lease": timedelta(seconds=1), "queues": {"default": 8}}
    async with (
        leaving_nothing(database),
        AsyncConnectionPool(through, min_size=1, max_size=1, open=False) as pool,
        make(pool, effect, **options) as troubled,
        make(database, effect, **options) as neighbour,
    ):
        async with pool.connection():  # all there is of it
            over = asyncio.get_running_loop().time() + 4
            while asyncio.get_running_loop().time() < over:
                trouble = chance.choice([
                    proxy.reset, proxy.hang, proxy.drop,
                    lambda: proxy.cut("up"), lambda: proxy.cut("down"), lambda: proxy.delay(0.05),
                ])  # fmt: skip
                trouble()
                ids += table.enqueue(effect, 10)
                await asyncio.sleep(chance.uniform(0.02, 0.6))
                if chance.random() < 0.7:
                    proxy.ok()
                    await asyncio.sleep(chance.uniform(0.02, 0.3))
            proxy.ok()
            await until(lambda: not table.count_live(), "all to end")
            await until(
                lambda: not troubled.stats().in_flight + neighbour.stats().in_flight, "the answers"
            )
        before = troubled.stats().completed
        ids += table.enqueue(effect, 200)
        await until(lambda: not table.count_live(), "the next ones")
        assert troubled.stats().completed > before, "it is not wedged"
    check_ledger(ids)
    assert table.counters()["completed"] == len(ids)


@pytest.mark.serial
async def test_a_server_restarted_in_the_middle_of_a_drain(
    durable_server: postgres.Server, durable_database: str
) -> None:
    """`pg_ctl restart -m immediate` while the worker waits for its last jobs."""
    table = Table(durable_database)
    ids = table.enqueue(gated, 5)
    options: dict[str, Any] = {"lease": timedelta(seconds=30), "drain": timedelta(seconds=20)}
    worker = make(durable_database, gated, **options)
    async with leaving_nothing(durable_database):
        await worker.start()
        await until(lambda: len(begun) == 5, "the starts")
        worker.stop()
        await until(lambda: worker.stats().state == "draining", "the drain")
        restarting = asyncio.create_task(asyncio.to_thread(durable_server.restart, "immediate"))
        await asyncio.sleep(0.1)
        open_gate.set()  # they end while there is no server
        await restarting
        await worker.wait()
    check_ledger(ids)
    stats = worker.stats()
    assert (stats.completed, stats.unsettled, stats.abandoned, stats.lost) == (5, 0, 0, 0)
    assert {table.settled(id).claims for id in ids} == {1}
    assert table.counters() == {"completed": 5}


async def test_a_line_that_stalls_for_longer_than_a_lease(
    database: str, proxy: Proxy, through: str
) -> None:
    """The neighbour has the jobs by then, and what the first one wants to settle is refused."""
    table = Table(database)
    ids = table.enqueue(gated, 4)
    options: dict[str, Any] = {"lease": timedelta(seconds=1), "listen": False}
    async with make(through, gated, **options) as first:
        await until(lambda: len(begun) == 4, "the starts")
        proxy.hang()
        async with make(database, gated, **options):
            await until(lambda: len(begun) == 8, "the neighbour to have them")
            await until(lambda: first.stats().lost == 4, "the first one to give them up")
            open_gate.set()
            await until(lambda: not table.count_live(), "all to end")
        proxy.ok()
        (more,) = table.enqueue(gated)
        await until(lambda: table.settled(more), "the first one to work again")
        assert table.settled(more).worker == first.name
    check_ledger([*ids, more])
    assert {claims for id, claims in ledger if id != more} == {2}
    assert table.counters() == {"rescued": 4, "completed": 5}
