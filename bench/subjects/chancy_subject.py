"""chancy."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, ClassVar

from bench.subjects import common
from bench.subjects.common import Subject


async def noop(*, v: float) -> None:
    """Found by its import path."""
    common.noop(v)


async def stamp(*, v: float) -> None:
    """Found by its import path."""
    common.stamp(v)


async def hang(*, v: float) -> None:
    """Found by its import path."""
    await common.hang(v)


class Chancy(Subject):
    name = "chancy"
    distribution = "chancy"
    requirements = ("chancy==0.26.0", "psycopg[binary]==3.3.9")
    module = "chancy"
    settings: ClassVar = {
        "defaults": "process pool, concurrency = cores, poll 5 s",
        "tuned": "AsyncExecutor, concurrency 100, eager_polling, poll 1 s",
        "wide": "AsyncExecutor, concurrency 1000, eager_polling, poll 1 s",
    }
    backlog: ClassVar = {"defaults": 200, "tuned": 3_000}
    bulk = 3_000
    unfinished = "select count(*) from chancy_jobs where state not in ('succeeded', 'failed')"
    bulk_call = "push_many, 1000 a transaction"

    def setup(self, dsn: str) -> None:
        async def install() -> None:
            async with self._app(dsn) as app:
                await app.migrate()

        asyncio.run(install())

    @staticmethod
    def _app(dsn: str) -> Any:
        from chancy import Chancy as App

        return App(dsn)

    @asynccontextmanager
    async def producer(self, dsn: str) -> AsyncIterator[_Producer]:
        async with self._app(dsn) as app:
            yield _Producer(app)

    async def work(self, dsn: str, profile: str) -> None:
        from chancy import Queue, Worker

        async with self._app(dsn) as app:
            if profile == "defaults":
                queue = Queue("default")
            else:
                queue = Queue(
                    "default",
                    executor=type(app).Executor.Async,
                    concurrency={"tuned": 100, "wide": self.reach}[profile],
                    eager_polling=True,
                    polling_interval=1,
                )
            await app.declare(queue, upsert=True)
            async with Worker(app) as worker:
                await worker.wait_for_shutdown()


class _Producer:
    def __init__(self, app: Any) -> None:
        from chancy import Job

        self._app = app
        self._job = Job

    def _made(self, kind: str, value: float) -> Any:
        return self._job(func=f"{__name__}.{kind}", kwargs={"v": value}, max_attempts=10)

    async def one(self, kind: str, value: float) -> None:
        await self._app.push(self._made(kind, value))

    async def many(self, kind: str, values: Sequence[float]) -> None:
        made = [self._made(kind, value) for value in values]
        async for _ in self._app.push_many(made, batch_size=len(made)):
            pass


SUBJECT = Chancy()
