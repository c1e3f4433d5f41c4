"""O-31: started and stopped at random moments, every worker ends in time and leaves nothing."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from psycopg.conninfo import conninfo_to_dict
from psycopg_pool import AsyncConnectionPool

import jobs
from devkit.proxy import Proxy
from tests.runtime.working import Input, Table, job, make, sessions, tasks, threads, until
from tests.support.server import Clones

LATENCY_SECONDS = 0.006  # each way
DRAIN = timedelta(milliseconds=300)
RUNS = {"short": 25, "full": 300}


@job()
async def nap(_: Input) -> None:
    """Take a moment."""
    await asyncio.sleep(0.02)


@job()
def thread_nap(_: Input) -> None:
    """Take a moment in a thread."""
    time.sleep(0.02)


@job()
async def fail(_: Input, run: jobs.Run) -> None:
    """Fail, and not for the last time."""
    if run.attempt < 3:
        raise ValueError


@pytest.fixture
def pool_dsn(clones: Clones, database: str) -> Iterator[str]:
    """DSN of the database with some latency."""
    with Proxy(Path(clones.host)) as proxy:
        proxy.delay(LATENCY_SECONDS)
        yield f"{proxy.dsn(str(conninfo_to_dict(database)['dbname']))}?sslmode=disable"


async def one_life(pool: AsyncConnectionPool[Any], chance: random.Random) -> str:
    """Start a worker and end it in one of the ways there are; say which."""
    worker = make(pool, nap, thread_nap, fail, lease=timedelta(seconds=1), drain=DRAIN)
    running = asyncio.create_task(worker.run(until_idle=chance.random() < 0.5, signals=False))
    await asyncio.sleep(chance.random() * chance.choice([0.02, 0.2]))
    way = chance.choice(["stop", "twice", "cancel", "cancel and stop"])
    if way in ("cancel", "cancel and stop"):
        running.cancel()
    if way != "cancel":
        worker.stop()
    if way == "twice":
        worker.stop()
    asked = time.monotonic()
    # whatever it waits for: its budget, and two seconds more
    done, _ = await asyncio.wait({running}, timeout=DRAIN.total_seconds() + 2)
    assert done, f"it did not end in time: {way}, {worker.stats()}"
    if not running.cancelled() and (error := running.exception()) is not None:
        raise error
    assert worker.stats().state in ("stopped", "idle"), (way, time.monotonic() - asked)
    assert worker.stats().abandoned == 0
    return way


@pytest.mark.parametrize(
    "length",
    [
        pytest.param("short", marks=pytest.mark.serial),
        pytest.param("full", marks=[pytest.mark.slow, pytest.mark.timeout(300)]),
    ],
)
async def test_random_lives(database: str, pool_dsn: str, length: str) -> None:
    seed = random.randrange(10**9)
    print("seed", seed)  # noqa: T201  (shown where the test fails)
    chance = random.Random(seed)
    table = Table(database)
    ways: set[str] = set()
    for number in range(RUNS[length]):
        for handle in (nap, thread_nap, fail):
            table.enqueue(handle, 2)
        async with AsyncConnectionPool(pool_dsn, min_size=1, max_size=2, open=False) as pool:
            ways.add(await one_life(pool, chance))
            assert tasks() == [], number
            await until(lambda: not threads(), "threads to end")
    assert ways == {"stop", "twice", "cancel", "cancel and stop"}
    await until(lambda: not sessions(database), "sessions to end")
    async with make(database, nap, thread_nap, fail, queues={"default": 50}):
        await until(lambda: not table.count_live(), "what is left to be done")
