"""Starting and running a worker beside sessions that hold locks, and on queues of any name."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from typing import Any

import pytest
from psycopg import Connection
from pydantic import BaseModel

import jobs

Connect = Callable[..., Connection[Any]]


class Input(BaseModel):
    pass


@jobs.job(tenant=jobs.NO_TENANT, idempotency_key=jobs.NO_KEY)
async def work(input: Input) -> None:
    """Does nothing."""


def declare(queue: str, name: str) -> jobs.JobHandle[Input]:
    @jobs.job(queue=queue, name=name, tenant=jobs.NO_TENANT, idempotency_key=jobs.NO_KEY)
    async def fn(input: Input) -> None:
        """Does nothing."""

    return fn


QUEUES = ["items", "__class__", "get", "1", "a b", "é" * 127, "'; drop table jobs.job; --", "{}"]
on_odd_queues = {queue: declare(queue, f"job{index}") for index, queue in enumerate(QUEUES)}
globals().update({handle.name: handle for handle in on_odd_queues.values()})

registry = jobs.Registry.of(sys.modules[__name__])


async def test_a_worker_takes_no_table_lock_stronger_than_row_exclusive(
    database: str, connect: Connect
) -> None:
    work.enqueue(connect(), Input())
    holder = connect(autocommit=False)
    tables = holder.execute(
        "select string_agg(oid::regclass::text, ', ') from pg_class"
        " where relnamespace = 'jobs'::regnamespace and relkind = 'r'"
    ).fetchone()
    assert tables is not None
    # Conflicts with itself and with everything stronger than row exclusive.
    holder.execute(f"lock table {tables[0]} in share update exclusive mode")
    async with asyncio.timeout(20):  # what waits for a lock would wait for ever
        for _ in range(10):
            async with jobs.Worker(database, registry):
                pass
        stats = await jobs.Worker(database, registry).run_until_idle()
    assert stats.completed == 1
    holder.rollback()


@pytest.mark.parametrize("queue", QUEUES)
async def test_a_queue_may_be_called_anything(database: str, connect: Connect, queue: str) -> None:
    conn = connect()
    on_odd_queues[queue].enqueue(conn, Input())
    others = [name for name in QUEUES if name != queue]
    assert (await jobs.Worker(database, registry, queues=others).run_until_idle()).claimed == 0
    stats = await jobs.Worker(database, registry, queues={queue: 1}).run_until_idle()
    assert stats.completed == 1
