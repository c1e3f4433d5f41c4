"""`jobs worker --pool`: sessions that carry the tenant, for jobs that are run by the command."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from psycopg import Connection
from psycopg.conninfo import make_conninfo

from examples.tenants import __main__ as example
from examples.tenants import work
from tests.cli.conftest import Said

Command = Callable[..., Said]


@pytest.fixture
def prepared(database: str, conn: Connection[Any]) -> str:
    """DSN of a role that row-level security binds, on a database with invoices of two tenants."""
    conn.execute(example.TABLE.read_bytes())
    conn.execute("insert into invoice (tenant, amount) values ('acme', 60), ('umbrella', 7)")
    conn.execute("drop role if exists cli_member")
    conn.execute("create role cli_member login")
    conn.execute("grant select on invoice to cli_member")
    return make_conninfo(database, user="cli_member")


def test_jobs_of_the_command_have_sessions_with_their_tenant(
    command: Command, conn: Connection[Any], database: str, prepared: str
) -> None:
    mine = work.total.enqueue(conn, work.Account(tenant="acme"))
    other = work.count.enqueue(conn, work.Account(tenant="acme", asked="umbrella"))
    done = command(
        *("worker", "examples.tenants.work", "--until-idle", "--no-listen"),
        *("--pool", "2", "--pool-dsn", prepared),
    )
    assert done.status == 0
    assert work.total.result(conn, mine.id) == 60
    assert work.count.result(conn, other.id) == 0
    with psycopg.connect(database, autocommit=True) as admin:
        admin.execute("drop owned by cli_member")
        admin.execute("drop role cli_member")


def test_without_it_the_job_says_what_is_missing(command: Command, conn: Connection[Any]) -> None:
    made = work.forge.enqueue(conn, work.Account(tenant="acme", asked="umbrella"))
    command(
        *("worker", "examples.tenants.work", "--until-idle", "--no-listen", "--log-level", "error")
    )
    with pytest.raises(Exception, match="RunConnectionUnavailable"):
        work.forge.result(conn, made.id)
