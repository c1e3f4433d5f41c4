"""absurd."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, ClassVar

from bench.subjects import common
from bench.subjects.common import Subject


def _register(app: Any) -> None:
    @app.register_task(name="noop")
    async def noop(params: Any, _context: Any) -> None:
        common.noop(params["v"])

    @app.register_task(name="stamp")
    async def stamp(params: Any, _context: Any) -> None:
        common.stamp(params["v"])

    @app.register_task(name="hang")
    async def hang(params: Any, _context: Any) -> None:
        await common.hang(params["v"])


class Absurd(Subject):
    name = "absurd"
    distribution = "absurd-sdk"
    requirements = ("absurd-sdk==0.5.1", "absurdctl==0.5.1", "psycopg[binary]==3.3.9")
    module = "absurd_sdk"
    settings: ClassVar = {
        "defaults": "concurrency 1, poll 250 ms",
        "tuned": "concurrency 100, batch 100",
        "wide": "concurrency 1000, batch 1000",
    }
    backlog: ClassVar = {"defaults": 500, "tuned": 2_000}
    bulk = 3_000
    unfinished = (
        "select count(*) from absurd.t_default where state in ('pending', 'running', 'sleeping')"
    )
    bulk_call = "none: spawn, 1000 a transaction"

    def setup(self, dsn: str) -> None:
        env = os.environ | {"ABSURD_DATABASE_URL": dsn}
        control = os.path.join(os.path.dirname(sys.executable), "absurdctl")
        for arguments in (["init"], ["create-queue", "default"]):
            subprocess.run([control, *arguments], env=env, check=True, stdout=subprocess.DEVNULL)

    @asynccontextmanager
    async def producer(self, dsn: str) -> AsyncIterator[_Producer]:
        import psycopg
        from absurd_sdk import AsyncAbsurd

        async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as conn:
            app = AsyncAbsurd(conn)
            _register(app)
            yield _Producer(app, conn)

    async def work(self, dsn: str, profile: str) -> None:
        from absurd_sdk import AsyncAbsurd

        app = AsyncAbsurd(dsn)
        _register(app)
        if profile == "defaults":
            await app.start_worker()
        else:
            size = {"tuned": 100, "wide": self.reach}[profile]
            await app.start_worker(concurrency=size, batch_size=size)


class _Producer:
    def __init__(self, app: Any, conn: Any) -> None:
        self._app = app
        self._conn = conn

    async def one(self, kind: str, value: float) -> None:
        await self._app.spawn(kind, {"v": value})

    async def many(self, kind: str, values: Sequence[float]) -> None:
        async with self._conn.transaction():
            for value in values:
                await self._app.spawn(kind, {"v": value})


SUBJECT = Absurd()
