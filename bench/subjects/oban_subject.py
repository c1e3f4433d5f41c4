"""oban for Python."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, ClassVar

from bench.subjects import common
from bench.subjects.common import Subject


def _workers() -> dict[str, Any]:
    from oban import worker

    @worker(queue="default")
    class Noop:
        async def process(self, job: Any) -> None:
            common.noop(job.args["v"])

    @worker(queue="default")
    class Stamp:
        async def process(self, job: Any) -> None:
            common.stamp(job.args["v"])

    @worker(queue="default")
    class Hang:
        async def process(self, job: Any) -> None:
            await common.hang(job.args["v"])

    return {"noop": Noop, "stamp": Stamp, "hang": Hang}


class Oban(Subject):
    name = "oban"
    distribution = "oban"
    requirements = ("oban==0.7.0", "psycopg[binary]==3.3.9", "uvloop==0.23.0")
    oldest_python = (3, 12)
    module = "oban"
    settings: ClassVar = {
        "defaults": "queue limit 10",
        "tuned": "queue limit 200, uvloop",
        "wide": "queue limit 1000, uvloop",
    }
    backlog: ClassVar = {"defaults": 4_000, "tuned": 10_000}
    bulk = 5_000
    unfinished = (
        "select count(*) from oban_jobs"
        " where state in ('available', 'scheduled', 'executing', 'retryable')"
    )
    bulk_call = "enqueue_many, 1000 a call"

    def setup(self, dsn: str) -> None:
        async def install() -> None:
            from oban import Oban as App
            from oban.schema import install as schema

            pool = await App.create_pool(dsn)
            await schema(pool)
            await pool.close()

        asyncio.run(install())

    @asynccontextmanager
    async def producer(self, dsn: str) -> AsyncIterator[_Producer]:
        from oban import Oban as App

        pool = await App.create_pool(dsn)
        async with App(pool=pool) as app:
            yield _Producer(app, _workers())
        await pool.close()

    async def work(self, dsn: str, profile: str) -> None:
        from oban import Oban as App

        _workers()
        limit = {"defaults": 10, "tuned": 200, "wide": self.reach}[profile]
        pool = await App.create_pool(dsn)
        async with App(pool=pool, queues={"default": limit}):
            await asyncio.Event().wait()

    def run(self, dsn: str, profile: str) -> None:
        if profile == "defaults":
            asyncio.run(self.work(dsn, profile))
        else:
            import uvloop

            uvloop.run(self.work(dsn, profile))


class _Producer:
    def __init__(self, app: Any, workers: dict[str, Any]) -> None:
        self._app = app
        self._workers = workers

    async def one(self, kind: str, value: float) -> None:
        await self._app.enqueue(self._workers[kind].new({"v": value}))

    async def many(self, kind: str, values: Sequence[float]) -> None:
        await self._app.enqueue_many([self._workers[kind].new({"v": v}) for v in values])


SUBJECT = Oban()
