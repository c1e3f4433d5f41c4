"""outlabs-taskq."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, ClassVar

from pydantic import BaseModel  # it depends on it too

from bench.subjects import common
from bench.subjects.common import Subject

_QUEUE = "bench"
_ENVIRONMENT = "benchmark"
_IDENTITY = "select installation_id, binding_version from taskq.get_target_identity()"
_BIND = "select * from taskq.bind_target_identity($1, $2, $3, $4, $5, $6)"
_ATTEST = (
    "select taskq.attest_target((select environment from taskq.get_target_identity()), null, false)"
)
_QUEUES = "select * from taskq.ensure_queue($1, '{}'::jsonb, 'bench')"


class Value(BaseModel):
    """The number of a job."""

    v: float


class Nothing(BaseModel):
    """The result of a job."""


async def _noop(input: Value) -> Nothing:
    common.noop(input.v)
    return Nothing()


async def _stamp(input: Value) -> Nothing:
    common.stamp(input.v)
    return Nothing()


async def _hang(input: Value) -> Nothing:
    await common.hang(input.v)
    return Nothing()


def _tasks(handlers: bool) -> dict[str, Any]:
    from taskq import Task

    return {
        name: Task(
            name=name,
            queue=_QUEUE,
            input_model=Value,
            output_model=Nothing,
            handler=handler if handlers else None,
        )
        for name, handler in {"noop": _noop, "stamp": _stamp, "hang": _hang}.items()
    }


def _engine(dsn: str, role: str | None = None, size: int = 5) -> Any:
    from sqlalchemy.ext.asyncio import create_async_engine

    options = {"connect_args": {"server_settings": {"role": role}}} if role else {}
    url = dsn.replace("postgresql://", "postgresql+asyncpg://")
    return create_async_engine(url, pool_size=size, **options)


class TaskQ(Subject):
    name = "taskq"
    distribution = "outlabs-taskq"
    requirements = ("outlabs-taskq==0.1.0a41", "asyncpg==0.32.0", "SQLAlchemy==2.1.9")
    oldest_python = (3, 12)
    module = "taskq"
    settings: ClassVar = {
        "defaults": "concurrency 1, batch 1",
        "tuned": "concurrency 50, batch 50 (its maximum), pool 20",
        "wide": "as tuned",
    }
    backlog: ClassVar = {"defaults": 200, "tuned": 400}
    bulk = 3_000
    reach = 50
    unfinished = "select count(*) from taskq.jobs where status in ('queued', 'running', 'blocked')"
    bulk_call = "enqueue_many, 1000 a call"

    def setup(self, dsn: str) -> None:
        asyncio.run(self._install(dsn))

    async def _install(self, dsn: str) -> None:
        from sqlalchemy.exc import DBAPIError
        from taskq.sql import migrate

        engine = _engine(dsn)
        try:
            async with engine.connect() as conn:
                await migrate(conn)
        except DBAPIError:  # one migration stops until the target is bound, by design
            async with engine.begin() as conn:
                row = (await conn.exec_driver_sql(_IDENTITY)).mappings().one()
                identity, binding = row["installation_id"], row["binding_version"]
                given = (identity, _ENVIRONMENT, "bench", binding, False, None)
                await conn.exec_driver_sql(_BIND, given)
            async with engine.connect() as conn:
                await migrate(conn)
        async with engine.begin() as conn:
            await conn.exec_driver_sql("set local role taskq_operator")
            await conn.exec_driver_sql(_ATTEST)
            await conn.exec_driver_sql(_QUEUES, (_QUEUE,))
        await engine.dispose()

    @asynccontextmanager
    async def producer(self, dsn: str) -> AsyncIterator[_Producer]:
        from taskq import TaskQ as App
        from taskq import TaskRegistry
        from taskq.sql.transport import SqlTaskqTransport

        engine = _engine(dsn, "taskq_producer")
        tasks = _tasks(handlers=False)
        transport = SqlTaskqTransport(engine, expected_environment=_ENVIRONMENT)
        yield _Producer(App(transport, registry=TaskRegistry(tasks.values())), tasks)
        await engine.dispose()

    async def work(self, dsn: str, profile: str) -> None:
        from taskq import TaskRegistry
        from taskq.sql.notifications import PostgresNotificationSource
        from taskq.sql.transport import SqlTaskqTransport
        from taskq.worker import WorkerOptions, WorkerService, WorkerServiceOptions

        size = 1 if profile == "defaults" else self.reach
        service = WorkerService(
            SqlTaskqTransport(_engine(dsn, "taskq_runner", 20), expected_environment=_ENVIRONMENT),
            TaskRegistry(_tasks(handlers=True).values()),
            f"bench-{os.getpid()}",
            options=WorkerServiceOptions(queues=(_QUEUE,), batch=size),
            supervisor_options=WorkerOptions(concurrency=size),
            notifications=PostgresNotificationSource(dsn),
        )
        await service.start()
        await asyncio.Event().wait()


class _Producer:
    def __init__(self, app: Any, tasks: dict[str, Any]) -> None:
        self._app = app
        self._tasks = tasks

    async def one(self, kind: str, value: float) -> None:
        await self._app.enqueue(self._tasks[kind], Value(v=value))

    async def many(self, kind: str, values: Sequence[float]) -> None:
        await self._app.enqueue_many(self._tasks[kind], [Value(v=value) for value in values])


SUBJECT = TaskQ()
