"""Jobs of two tenants and of none ask for invoices: each sees its own, and the last one nothing.

Starts an embedded PostgreSQL with a role that is neither superuser nor owner, runs the jobs as that
role, and exits non-zero where one has seen what it must not. Run it with
``python -m examples.tenants``.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import tempfile
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
from psycopg import AsyncConnection
from psycopg.conninfo import make_conninfo
from psycopg_pool import AsyncConnectionPool, ConnectionPool

import jobs
from devkit import postgres
from examples.tenants import work
from jobs.migrate import migrate

ROLE = "billing"
TABLE = Path(__file__).with_name("invoices.sql")
INVOICES = [("acme", 10), ("acme", 20), ("acme", 30), ("umbrella", 7)]


def prepare(dsn: str) -> None:
    """Install the schema of the library, the application's table, and its role."""
    with psycopg.connect(dsn, autocommit=True) as conn:
        migrate(conn)
        conn.execute(TABLE.read_bytes())
        for tenant, amount in INVOICES:
            conn.execute("insert into invoice (tenant, amount) values (%s, %s)", (tenant, amount))
        conn.execute(f"create role {ROLE} login".encode())
        conn.execute(f"grant usage on schema jobs to {ROLE}".encode())
        conn.execute(
            f"grant select, insert, update, delete on all tables in schema jobs to {ROLE}".encode()
        )
        conn.execute(f"grant select, insert on invoice to {ROLE}".encode())


async def ask(dsn: str) -> dict[str, Any]:
    """Run one job of each kind as the role, and return what each has seen."""
    as_role = make_conninfo(dsn, user=ROLE)
    seen: dict[str, Any] = {}
    with ConnectionPool[Any](as_role, min_size=1, max_size=2, open=True) as sync_pool:
        async with (
            AsyncConnectionPool[AsyncConnection[Any]](
                as_role, min_size=1, max_size=1, open=False
            ) as pool,
            jobs.Worker(as_role, jobs.Registry.of(work), pool=pool, sync_pool=sync_pool),
            await AsyncConnection.connect(as_role, autocommit=True) as conn,
        ):
            for tenant in ("acme", "umbrella"):
                made = await work.total.enqueue(conn, work.Account(tenant=tenant))
                seen[f"total of {tenant}"] = await work.total.result(conn, made.id)
            for asked in ("acme", "umbrella"):
                made = await work.count.enqueue(conn, work.Account(tenant="acme", asked=asked))
                seen[f"acme asks for {asked}"] = await work.count.result(conn, made.id)
            made = await work.survey.enqueue(conn, work.Account(tenant="none"))
            seen["without a tenant"] = await work.survey.result(conn, made.id)
            made = await work.forge.enqueue(conn, work.Account(tenant="acme", asked="umbrella"))
            try:
                await work.forge.result(conn, made.id)
            except jobs.JobDead as error:
                seen["acme writes for umbrella"] = str(error.last_error).partition(":")[0]
    return seen


EXPECTED = {
    "total of acme": Decimal(60),
    "total of umbrella": Decimal(7),
    "acme asks for acme": 3,
    "acme asks for umbrella": 0,
    "without a tenant": 0,
    "acme writes for umbrella": "InsufficientPrivilege",
}


def main() -> int:
    """Run the example; return 0 where everybody has seen what is theirs."""
    logging.getLogger("jobs").addHandler(logging.NullHandler())  # one job fails on purpose
    with (
        tempfile.TemporaryDirectory(prefix="sql-jobs-tenants") as place,
        postgres.start(Path(place) / "pg", durable=False) as server,
    ):
        prepare(server.dsn())
        seen = asyncio.run(ask(server.dsn()))
    for what, value in seen.items():
        print(f"{what:<26} {value}")
    return int(seen != EXPECTED)


if __name__ == "__main__":
    sys.exit(main())
