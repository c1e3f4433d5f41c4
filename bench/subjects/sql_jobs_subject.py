"""This library."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import ClassVar

from bench.subjects.common import Subject

_TUNED_SLOTS = 500


class SqlJobs(Subject):
    name = "sql-jobs"
    distribution = "sql-jobs"
    requirements = None
    module = "jobs"
    settings: ClassVar = {
        "defaults": "Worker(dsn, registry, queues=['bench'])",
        "tuned": f"queues={{'bench': {_TUNED_SLOTS}}}",
        "wide": "queues={'bench': 1000}",
    }
    backlog: ClassVar = {"defaults": 50_000, "tuned": 50_000}
    one = 2_000
    bulk = 50_000
    # Asked when every job has run: those not settled yet are running.
    unfinished = "select count(*) from jobs.job where state = 'running'"
    bulk_call = "enqueue_many, 1000 a call"

    def setup(self, dsn: str) -> None:
        import psycopg

        from jobs.migrate import migrate

        with psycopg.connect(dsn, autocommit=True) as conn:
            migrate(conn)

    @asynccontextmanager
    async def producer(self, dsn: str) -> AsyncIterator[_Producer]:
        import psycopg

        conn = await psycopg.AsyncConnection.connect(dsn, autocommit=True)
        async with conn:
            yield _Producer(conn)

    async def work(self, dsn: str, profile: str) -> None:
        import jobs
        from bench.subjects import sql_jobs_declared as declared

        registry = jobs.Registry.of(declared)
        if profile == "defaults":
            worker = jobs.Worker(dsn, registry, queues=["bench"])
        else:
            slots = {"tuned": _TUNED_SLOTS, "wide": self.reach, "batch100": 100}[profile]
            worker = jobs.Worker(dsn, registry, queues={"bench": slots})
        await worker.run()


class _Producer:
    def __init__(self, conn: object) -> None:
        from bench.subjects import sql_jobs_declared as declared

        self._conn = conn
        self._handles = {kind: getattr(declared, kind) for kind in declared.KINDS}
        self._input = declared.Value

    async def one(self, kind: str, value: float) -> None:
        await self._handles[kind].enqueue(self._conn, self._input(v=value))

    async def many(self, kind: str, values: Sequence[float]) -> None:
        inputs = [self._input(v=value) for value in values]
        await self._handles[kind].enqueue_many(self._conn, inputs)

    async def copy(self, kind: str, values: Sequence[float]) -> None:
        async with self._conn.transaction():
            await self._handles[kind].copy_many(self._conn, (self._input(v=v) for v in values))


SUBJECT = SqlJobs()
