from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from psycopg import AsyncConnection, Connection
from psycopg.conninfo import conninfo_to_dict
from psycopg_pool import AsyncConnectionPool

from tests.support.server import RUN_VARIABLE, Clones
from tests.support.waiting import until

pytestmark = pytest.mark.majors


def test_each_clone_is_isolated(clones: Clones) -> None:
    with clones.clone() as one, clones.clone() as two:
        with psycopg.connect(one, autocommit=True) as conn:
            conn.execute("create table public.only_here ()")
        with psycopg.connect(two) as conn:
            found = conn.execute("select to_regclass('public.only_here')").fetchone()
    assert found == (None,)


def test_a_clone_is_dropped_whoever_is_connected(clones: Clones) -> None:
    with clones.clone() as dsn:
        left = psycopg.connect(dsn, autocommit=True)
        left.execute("create table public.t ()")
        preparing = psycopg.connect(dsn)
        preparing.tpc_begin(preparing.xid(1, "left open", "here"))
        preparing.execute("insert into public.t default values")
        preparing.tpc_prepare()
        preparing.close()
    left.close()
    name = conninfo_to_dict(dsn)["dbname"]
    with psycopg.connect(clones.dsn("postgres")) as admin:
        rows = admin.execute("select 1 from pg_database where datname = %s", [name]).fetchall()
    assert rows == []


def test_names_carry_the_run(database: str, conn: Connection[Any]) -> None:
    name = conninfo_to_dict(database)["dbname"]
    assert conn.execute("select current_database()").fetchone() == (name,)
    assert str(name).startswith(f"jobs_{os.environ[RUN_VARIABLE]}")


def test_sessions_share_the_database(connect: Callable[..., Connection[Any]]) -> None:
    one, two = connect(), connect(autocommit=False)
    one.execute("create table public.t as select 7 as n")
    assert two.execute("select n from public.t").fetchone() == (7,)
    assert not two.autocommit


async def test_async_fixtures_are_on_the_same_database(
    conn: Connection[Any], aconn: AsyncConnection[Any], pool: AsyncConnectionPool
) -> None:
    conn.execute("create table public.t as select 7 as n")
    cursor = await aconn.execute("select n from public.t")
    assert await cursor.fetchone() == (7,)
    async with pool.connection() as pooled:
        cursor = await pooled.execute("select n from public.t")
        assert await cursor.fetchone() == (7,)


def test_another_databases_sessions_can_hold_pruning_back_here(
    clones: Clones, conn: Connection[Any]
) -> None:
    """Why the marker `lone` exists."""
    assert heap_only_share(conn, clones.dsn("postgres")) < 1


@pytest.mark.lone
class TestLone:
    def test_it_is_another_server(self, clones: Clones, database: str) -> None:
        assert conninfo_to_dict(database)["host"] != clones.host

    def test_its_sessions_are_all_ours(self, conn: Connection[Any]) -> None:
        others = (
            "select count(*) from pg_stat_activity"
            " where backend_type in ('client backend', 'autovacuum launcher', 'autovacuum worker')"
            " and pid <> pg_backend_pid()"
        )
        # The session that made the database may still be leaving.
        until(lambda: conn.execute(others).fetchone() == (0,), "being alone")

    def test_what_others_hold_open_does_not_matter(
        self, clones: Clones, conn: Connection[Any]
    ) -> None:
        assert heap_only_share(conn, clones.dsn("postgres")) == 1


def heap_only_share(conn: Connection[Any], other: str) -> float:
    """Share of heap-only updates of one row, while a session of ``other`` holds a transaction."""
    with psycopg.connect(other) as holder:
        holder.execute("select pg_current_xact_id()")
        conn.execute("create table public.t (n int, filling text) with (fillfactor = 50)")
        conn.execute("insert into public.t values (1, repeat('x', 1000))")
        for _ in range(100):
            conn.execute("update public.t set n = n + 1")
    conn.execute("select pg_stat_force_next_flush()")
    row = conn.execute(
        "select n_tup_hot_upd::float8 / n_tup_upd from pg_stat_user_tables where relname = 't'"
    ).fetchone()
    assert row is not None
    return float(row[0])
