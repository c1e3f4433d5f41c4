"""The job of the example: greet whoever has signed up."""

from __future__ import annotations

from typing import Any

from psycopg import AsyncConnection
from pydantic import BaseModel

import jobs


class SignUp(BaseModel):
    """Who has signed up."""

    email: str


@jobs.job(
    tenant=jobs.NO_TENANT,
    idempotency_key=lambda sign_up: sign_up.email,
    retry=jobs.Retry(attempts=5),
)
async def greet(sign_up: SignUp, run: jobs.Run) -> None:
    """Send a greeting. A real one goes out here."""
    print(f"greeting {sign_up.email} (attempt {run.attempt})")


async def sign_up(conn: AsyncConnection[Any], email: str) -> jobs.Enqueued:
    """Note a sign-up and its greeting: both or neither, when the caller's transaction commits."""
    await conn.execute("insert into account (email) values (%s) on conflict do nothing", [email])
    return await greet.enqueue(conn, SignUp(email=email))
