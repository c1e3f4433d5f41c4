"""A job that does nothing, as fast as it can."""

from __future__ import annotations

from pydantic import BaseModel

import jobs


class Nothing(BaseModel):
    """Its number, so that payloads differ."""

    i: int


@jobs.job(queue="bench", tenant=jobs.NO_TENANT, idempotency_key=jobs.NO_KEY)
async def noop(_input: Nothing) -> None:
    """Do nothing."""
