"""awa (a runtime in Rust under a Python client)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

from bench.subjects import common
from bench.subjects.common import Subject


@dataclass
class Noop:
    """Its class names the kind of a job."""

    v: float


@dataclass
class Stamp:
    """Its class names the kind of a job."""

    v: float


@dataclass
class Hang:
    """Its class names the kind of a job."""

    v: float


_KINDS = {"noop": Noop, "stamp": Stamp, "hang": Hang}


class Awa(Subject):
    name = "awa"
    distribution = "awa-pg"
    requirements = ("awa-pg==0.6.9",)
    module = "awa"
    settings: ClassVar = {
        "defaults": "10 workers (it asks for a number), poll 200 ms",
        "tuned": "1000 workers, 1 claimer, claim_batch_size 512, poll 50 ms, 20 connections",
        "wide": "as tuned",
    }
    backlog: ClassVar = {"defaults": 1_500, "tuned": 20_000}
    # Its view over dozens of ring partitions takes longer to count than the jobs took to run.
    unfinished = None
    bulk_call = "enqueue_many_copy, 1000 a call"

    def setup(self, dsn: str) -> None:
        async def install() -> None:
            import awa

            async with awa.AsyncClient(dsn) as client:
                await client.migrate()
                # Activates the storage that otherwise waits for a first worker.
                await client.install_queue_storage(schema="awa")

        asyncio.run(install())

    @asynccontextmanager
    async def producer(self, dsn: str) -> AsyncIterator[_Producer]:
        import awa

        async with awa.AsyncClient(dsn) as client:
            yield _Producer(client)

    async def work(self, dsn: str, profile: str) -> None:
        import awa

        client = awa.AsyncClient(dsn, 10 if profile == "defaults" else 20)

        @client.task(Noop)
        async def noop(job: Any) -> None:
            common.noop(job.args.v)

        @client.task(Stamp)
        async def stamp(job: Any) -> None:
            common.stamp(job.args.v)

        @client.task(Hang)
        async def hang(job: Any) -> None:
            await common.hang(job.args.v)

        if profile == "defaults":
            await client.start([("default", 10)])
        else:
            queue = {"name": "default", "max_workers": 1000, "claimers": 1, "claim_batch_size": 512}
            await client.start([queue], poll_interval_ms=50)
        await asyncio.Event().wait()


class _Producer:
    def __init__(self, client: Any) -> None:
        self._client = client

    async def one(self, kind: str, value: float) -> None:
        await self._client.insert(_KINDS[kind](float(value)))

    async def many(self, kind: str, values: Sequence[float]) -> None:
        made = _KINDS[kind]
        await self._client.enqueue_many_copy([made(float(value)) for value in values])


SUBJECT = Awa()
