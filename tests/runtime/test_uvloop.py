"""O-34: a worker on another event loop than that of the standard library."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable, Coroutine
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from psycopg.conninfo import conninfo_to_dict

import jobs
from devkit.proxy import Proxy
from tests.runtime.working import Gate, Input, Table, job, make, serving, until
from tests.support.server import Clones

uvloop = pytest.importorskip("uvloop")


@job()
async def fails_once(_: Input, run: jobs.Run) -> None:
    if run.attempt == 1:
        raise ValueError("on purpose")


@job()
def in_thread(_: Input) -> None:
    time.sleep(0.01)


@job(timeout=timedelta(milliseconds=200), retry=jobs.Retry(attempts=1))
async def too_long(_: Input) -> None:
    await asyncio.sleep(60)


def on_uvloop(body: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run to the end."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(body())


def test_jobs_of_every_kind(database: str) -> None:
    async def body() -> None:
        table = Table(database)
        async with serving(database, fails_once, in_thread, too_long) as worker:
            for handle in (fails_once, in_thread, too_long):
                table.enqueue(handle, 20)
            await until(lambda: not table.count_live(), "all to end")
            await until(lambda: not worker.stats().in_flight, "the answers")
            assert (worker.stats().completed, worker.stats().retried) == (40, 20)
            assert worker.stats().ended == 20

    on_uvloop(body)


def test_enqueues_are_heard(database: str) -> None:
    async def body() -> None:
        far: dict[str, Any] = {"poll": timedelta(minutes=1), "idle_poll": timedelta(minutes=1)}
        async with serving(database, in_thread, **far) as worker:
            await until(lambda: worker._listener is not None and worker._listener.live, "the probe")
            Table(database).enqueue(in_thread)
            await until(lambda: worker.stats().completed == 1, "the job")

    on_uvloop(body)


def test_a_connection_that_is_cut(database: str, clones: Clones) -> None:
    async def body() -> None:
        name = conninfo_to_dict(database)["dbname"]
        table = Table(database)
        with Proxy(Path(clones.host)) as proxy:
            dsn = f"{proxy.dsn(str(name))}?sslmode=disable&gssencmode=disable"
            async with make(dsn, in_thread) as worker:
                for _ in range(5):
                    table.enqueue(in_thread, 10)
                    proxy.reset()
                    await asyncio.sleep(0.05)
                await until(lambda: not table.count_live(), "all to end")
                await until(lambda: not worker.stats().in_flight, "the answers")
        assert table.counters()["completed"] == 50

    on_uvloop(body)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_drain_and_a_second_one_hurries(database: str, number: signal.Signals) -> None:
    async def body() -> None:
        gate = Gate()
        Table(database).enqueue(gate.job)
        worker = make(database, gate.job, drain=timedelta(hours=1))
        running = asyncio.create_task(worker.run())
        await until(lambda: gate.started, "the start")
        signal.raise_signal(number)
        await until(lambda: worker.stats().state == "draining", "the drain")
        signal.raise_signal(number)
        await running
        assert worker.stats().released == 1

    on_uvloop(body)
