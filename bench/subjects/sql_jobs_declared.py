"""The benchmark's jobs as declarations of this library."""

from __future__ import annotations

from pydantic import BaseModel

import jobs
from bench.subjects import common
from bench.subjects.common import KINDS as KINDS


class Value(BaseModel):
    """The number of a job."""

    v: float


@jobs.job(queue="bench", tenant=jobs.NO_TENANT, idempotency_key=jobs.NO_KEY)
async def noop(input: Value) -> None:
    """Nothing."""
    common.noop(input.v)


@jobs.job(queue="bench", tenant=jobs.NO_TENANT, idempotency_key=jobs.NO_KEY)
async def nap(input: Value) -> None:
    """A millisecond."""
    await common.nap(input.v)


@jobs.job(queue="bench", tenant=jobs.NO_TENANT, idempotency_key=jobs.NO_KEY)
async def stamp(input: Value) -> None:
    """The latency."""
    common.stamp(input.v)


@jobs.job(queue="bench", tenant=jobs.NO_TENANT, idempotency_key=jobs.NO_KEY)
async def hang(input: Value) -> None:
    """Until let go."""
    await common.hang(input.v)
