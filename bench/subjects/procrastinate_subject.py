"""procrastinate."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, ClassVar

from bench.subjects import common
from bench.subjects.common import Subject


def _app(dsn: str, pool: int) -> tuple[Any, dict[str, Any]]:
    import procrastinate

    connector = procrastinate.PsycopgConnector(conninfo=dsn, min_size=1, max_size=pool)
    app = procrastinate.App(connector=connector)

    @app.task(name="noop")
    async def noop(v: float) -> None:
        common.noop(v)

    @app.task(name="stamp")
    async def stamp(v: float) -> None:
        common.stamp(v)

    @app.task(name="hang")
    async def hang(v: float) -> None:
        await common.hang(v)

    return app, {"noop": noop, "stamp": stamp, "hang": hang}


class Procrastinate(Subject):
    name = "procrastinate"
    distribution = "procrastinate"
    requirements = ("procrastinate==3.10.0", "psycopg[binary,pool]==3.3.9")
    module = "procrastinate"
    settings: ClassVar = {
        "defaults": "concurrency 1",
        "tuned": "concurrency 20, pool 20",
        "wide": "concurrency 1000, pool 20",
    }
    backlog: ClassVar = {"defaults": 400, "tuned": 600}
    bulk = 5_000
    unfinished = "select count(*) from procrastinate_jobs where status in ('todo', 'doing')"
    bulk_call = "batch_defer_async, 1000 a call"

    def setup(self, dsn: str) -> None:
        async def install() -> None:
            app, _ = _app(dsn, 2)
            async with app.open_async():
                await app.schema_manager.apply_schema_async()

        asyncio.run(install())

    @asynccontextmanager
    async def producer(self, dsn: str) -> AsyncIterator[_Producer]:
        app, tasks = _app(dsn, 2)
        async with app.open_async():
            yield _Producer(tasks)

    async def work(self, dsn: str, profile: str) -> None:
        app, _ = _app(dsn, 20)
        concurrency = {"defaults": 1, "tuned": 20, "wide": self.reach}[profile]
        async with app.open_async():
            await app.run_worker_async(concurrency=concurrency)


class _Producer:
    def __init__(self, tasks: dict[str, Any]) -> None:
        self._tasks = tasks

    async def one(self, kind: str, value: float) -> None:
        await self._tasks[kind].defer_async(v=value)

    async def many(self, kind: str, values: Sequence[float]) -> None:
        await self._tasks[kind].batch_defer_async(*({"v": value} for value in values))


SUBJECT = Procrastinate()
