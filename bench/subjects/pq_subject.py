"""python-pq: one fork a job."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, ClassVar

from bench.subjects import common
from bench.subjects.common import Subject


class Pq(Subject):
    name = "pq"
    distribution = "python-pq"
    requirements = ("python-pq==0.9.1", "psycopg[binary]==3.3.9")
    oldest_python = (3, 13)
    module = "pq"
    settings: ClassVar = {
        "defaults": "concurrency 1, a fork a job",
        "tuned": "concurrency 8, a fork a job",
        "wide": "concurrency 100, a fork a job",
    }
    backlog: ClassVar = {"defaults": 100, "tuned": 150}
    bulk = 1_000
    reach = 100
    unfinished = "select count(*) from pq_tasks where status in ('PENDING', 'RUNNING')"
    bulk_call = "none: enqueue"

    def _app(self, dsn: str) -> Any:
        from pq import PQ

        return PQ(dsn)

    def setup(self, dsn: str) -> None:
        self._app(dsn).run_db_migrations()

    @asynccontextmanager
    async def producer(self, dsn: str) -> AsyncIterator[_Producer]:
        yield _Producer(self._app(dsn))

    async def work(self, dsn: str, profile: str) -> None:
        # Blocks: the jobs run in forks and need no event loop.
        concurrency = {"defaults": 1, "tuned": 8, "wide": self.reach}[profile]
        self._app(dsn).run_worker(concurrency=concurrency)


class _Producer:
    def __init__(self, app: Any) -> None:
        self._app = app
        self._functions = {
            "noop": common.noop,
            "stamp": common.stamp,
            "hang": common.hang_in_thread,
        }

    async def one(self, kind: str, value: float) -> None:
        self._app.enqueue(self._functions[kind], value)

    async def many(self, kind: str, values: Sequence[float]) -> None:
        for value in values:
            self._app.enqueue(self._functions[kind], value)


SUBJECT = Pq()
