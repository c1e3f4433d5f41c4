"""Jobs of several tenants on one table, which PostgreSQL keeps apart."""

from __future__ import annotations

from decimal import Decimal

from pydantic import BaseModel

import jobs


class Account(BaseModel):
    """Whose invoices, and which ones to ask for."""

    tenant: str
    asked: str | None = None


@jobs.job(tenant=lambda account: account.tenant, idempotency_key=jobs.NO_KEY)
async def total(_: Account, run: jobs.Run) -> Decimal:
    """Add up all invoices that this job can see. The statement does not name the tenant."""
    async with run.connection() as conn:
        cursor = await conn.execute("select coalesce(sum(amount), 0) from invoice")
        (amount,) = await cursor.fetchone() or (Decimal(0),)
    return Decimal(amount)


@jobs.job(tenant=lambda account: account.tenant, idempotency_key=jobs.NO_KEY)
def count(account: Account, run: jobs.Run) -> int:
    """Count the invoices of the tenant asked for, in a thread: 0 for any other than one's own."""
    with run.connection() as conn:
        row = conn.execute(
            "select count(*) from invoice where tenant = %s", (account.asked,)
        ).fetchone()
    return int(row[0]) if row else 0


@jobs.job(tenant=jobs.NO_TENANT, idempotency_key=jobs.NO_KEY)
async def survey(_: Account, run: jobs.Run) -> int:
    """Count what a job without a tenant can see: nothing."""
    async with run.connection() as conn:
        cursor = await conn.execute("select count(*) from invoice")
        row = await cursor.fetchone()
    return int(row[0]) if row else 0


@jobs.job(
    tenant=lambda account: account.tenant,
    idempotency_key=jobs.NO_KEY,
    retry=jobs.Retry(attempts=1),
)
async def forge(account: Account, run: jobs.Run) -> None:
    """Try to write an invoice of another tenant, which PostgreSQL refuses."""
    async with run.connection() as conn:
        await conn.execute(
            "insert into invoice (tenant, amount) values (%s, 1000)", (account.asked,)
        )
