"""pgqueuer, with its asyncpg driver."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, ClassVar

from bench.subjects import common
from bench.subjects.common import Subject


class PgQueuer(Subject):
    name = "pgqueuer"
    distribution = "pgqueuer"
    requirements = ("pgqueuer==1.6.0", "asyncpg==0.32.0", "uvloop==0.23.0")
    module = "pgqueuer"
    settings: ClassVar = {
        "defaults": "batch_size 10, asyncpg",
        "tuned": "batch_size 500, asyncpg, uvloop",
        "wide": "batch_size 500, asyncpg, uvloop",
    }
    backlog: ClassVar = {"defaults": 4_000, "tuned": 50_000}
    bulk = 50_000
    one = 1_000
    unfinished = "select count(*) from pgqueuer"
    bulk_call = "enqueue(lists), 1000 a call"

    def setup(self, dsn: str) -> None:
        async def install() -> None:
            async with self.producer(dsn) as producer:
                await producer.queries.install()

        asyncio.run(install())

    @asynccontextmanager
    async def producer(self, dsn: str) -> AsyncIterator[_Producer]:
        import asyncpg
        from pgqueuer import AsyncpgDriver, Queries

        conn = await asyncpg.connect(dsn)
        try:
            yield _Producer(Queries(AsyncpgDriver(conn)))
        finally:
            await conn.close()

    async def work(self, dsn: str, profile: str) -> None:
        import asyncpg
        from pgqueuer import AsyncpgDriver
        from pgqueuer import PgQueuer as App

        app = App(AsyncpgDriver(await asyncpg.connect(dsn)))

        @app.entrypoint("noop")
        async def noop(job: Any) -> None:
            common.noop(json.loads(job.payload))

        @app.entrypoint("stamp")
        async def stamp(job: Any) -> None:
            common.stamp(json.loads(job.payload))

        @app.entrypoint("hang")
        async def hang(job: Any) -> None:
            await common.hang(json.loads(job.payload))

        await (app.run() if profile == "defaults" else app.run(batch_size=500))

    def run(self, dsn: str, profile: str) -> None:
        if profile == "defaults":
            asyncio.run(self.work(dsn, profile))
        else:
            import uvloop

            uvloop.run(self.work(dsn, profile))


class _Producer:
    def __init__(self, queries: Any) -> None:
        self.queries = queries

    async def one(self, kind: str, value: float) -> None:
        await self.queries.enqueue(kind, json.dumps(value).encode())

    async def many(self, kind: str, values: Sequence[float]) -> None:
        payloads = [json.dumps(value).encode() for value in values]
        await self.queries.enqueue([kind] * len(payloads), payloads, [0] * len(payloads))


SUBJECT = PgQueuer()
