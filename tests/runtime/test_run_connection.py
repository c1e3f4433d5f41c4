"""`run.connection()`: row-level security sees the tenant of the run, and of nobody else."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from psycopg import AsyncConnection, Connection, sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg_pool import AsyncConnectionPool, ConnectionPool

import jobs
from devkit import pgbouncer
from devkit.rundir import run_dir
from examples.tenants import __main__ as example
from jobs.errors import ConfigError
from tests.runtime.working import Input, Table, job, logged, make, serving, until
from tests.support.server import Clones

TABLE = example.TABLE.read_text()
VISIBLE = "select coalesce(array_agg(distinct tenant order by tenant), '{}') from invoice"
SETTING = "select coalesce(current_setting('jobs.tenant', true), '')"


@pytest.fixture
def table(database: str) -> Table:
    """A table of invoices of t0, t1 and t2, with its policy."""
    with psycopg.connect(database, autocommit=True) as conn:
        conn.execute(TABLE.encode())
        conn.execute(
            "insert into invoice (tenant, amount) select 't' || i % 3, 1"
            " from generate_series(0, 8) as s (i)"
        )
    return Table(database)


@pytest.fixture
def member(table: Table) -> Iterator[str]:
    """DSN of a role that row-level security binds."""
    name = f"member_{uuid4().hex[:8]}"
    with psycopg.connect(table.database, autocommit=True) as conn:
        role = sql.Identifier(name)
        conn.execute(sql.SQL("create role {} login").format(role))
        conn.execute(sql.SQL("grant select, insert on invoice to {}").format(role))
        yield make_conninfo(table.database, user=name)
        conn.execute(sql.SQL("drop owned by {}").format(role))
        conn.execute(sql.SQL("drop role {}").format(role))


@contextmanager
def sync_pooled(dsn: str, **options: Any) -> Iterator[ConnectionPool[Any]]:
    with ConnectionPool[Any](dsn, min_size=1, max_size=1, open=True, kwargs=options) as pool:
        yield pool


@asynccontextmanager
async def pooled(dsn: str, **options: Any) -> Any:
    async with AsyncConnectionPool[Any](
        dsn, min_size=1, max_size=1, open=False, kwargs=options
    ) as pool:
        yield pool


async def first(conn: AsyncConnection[Any], query: str) -> Any:
    row = await (await conn.execute(query.encode())).fetchone()
    assert row is not None
    return row[0]


def first_sync(conn: Connection[Any], query: str) -> Any:
    row = conn.execute(query.encode()).fetchone()
    assert row is not None
    return row[0]


def looking(seen: list[Any]) -> tuple[Any, Any, Any, Any]:
    """Jobs that note what they can see: of a tenant and of none, on the loop and in a thread."""

    async def look(input: Input, run: jobs.Run) -> None:
        async with run.connection() as conn:
            seen.append((input.n, await first(conn, VISIBLE)))

    def look_sync(input: Input, run: jobs.Run) -> None:
        with run.connection() as conn:
            seen.append((input.n, first_sync(conn, VISIBLE)))

    async def none(input: Input, run: jobs.Run) -> None:
        async with run.connection() as conn:
            seen.append((input.n + 100, await first(conn, VISIBLE)))

    def none_sync(input: Input, run: jobs.Run) -> None:
        with run.connection() as conn:
            seen.append((input.n + 100, first_sync(conn, VISIBLE)))

    own = {"tenant": lambda input: f"t{input.n}"}
    return job(**own)(look), job(**own)(look_sync), job()(none), job()(none_sync)


async def run_looks(table: Table, member: str, **options: Any) -> list[Any]:
    seen: list[Any] = []
    handles = looking(seen)
    for _ in range(2):
        for handle in handles:
            table.enqueue(handle, 3)
    with sync_pooled(member, **options) as sync_pool:
        async with pooled(member, **options) as pool:
            worker = make(table.database, *handles, pool=pool, sync_pool=sync_pool)
            stats = await worker.run_until_idle()
    assert stats.completed == 24
    return seen


OWN = [(n, [f"t{n}"]) for n in range(3) for _ in range(4)]
NONE: list[Any] = [(n + 100, []) for n in range(3) for _ in range(4)]


async def test_a_job_sees_its_tenants_rows_and_one_without_a_tenant_none(
    table: Table, member: str
) -> None:
    """All of them over one session of each flavour, one after the other."""
    assert sorted(await run_looks(table, member)) == [*OWN, *NONE]


@pytest.mark.skipif(
    pgbouncer.find() is None,
    reason="pgbouncer is not installed (Debian: apt-get install pgbouncer)",
)
async def test_so_it_is_behind_pgbouncer_in_transaction_mode(
    clones: Clones, table: Table, member: str
) -> None:
    parts = conninfo_to_dict(member)
    with (
        run_dir("sql-jobs-pooler") as place,
        pgbouncer.running(place / "b", Path(clones.host), roles=[str(parts["user"])]) as pooler,
    ):
        dsn = make_conninfo(pooler.dsn(str(parts["dbname"])), user=parts["user"])
        seen = await run_looks(table, dsn, prepare_threshold=None)
        assert sorted(seen) == [*OWN, *NONE]
        with psycopg.connect(dsn, autocommit=True, prepare_threshold=None) as conn:
            for _ in range(4):
                assert first_sync(conn, SETTING) == ""
                assert first_sync(conn, VISIBLE) == []


@pytest.mark.parametrize("autocommit", [False, True])
@pytest.mark.parametrize("end", ["returns", "raises", "cancelled", "rolls-back", "sql-commit"])
async def test_the_next_user_of_the_session_has_no_tenant(
    table: Table, member: str, end: str, autocommit: bool
) -> None:
    inside = asyncio.Event()

    async def work(input: Input, run: jobs.Run) -> None:
        async with run.connection() as conn:
            assert await first(conn, SETTING) == f"t{input.n}"
            assert jobs.current_tenant() == f"t{input.n}"
            inside.set()
            if end == "cancelled":
                await asyncio.sleep(60)
            if end == "raises":
                raise ValueError
            if end == "rolls-back":
                raise psycopg.Rollback
            if end == "sql-commit":
                await conn.execute("commit")
                # Out of the transaction the tenant is gone, and with it every row.
                assert await first(conn, VISIBLE) == []

    handle = job(tenant=lambda input: f"t{input.n}", retry=jobs.Retry(attempts=1))(work)
    async with pooled(member, autocommit=autocommit) as pool:
        table.enqueue(handle)
        async with serving(table.database, handle, pool=pool) as worker:
            await inside.wait()
            if end == "cancelled":
                worker.stop()
                worker.stop()
            await until(lambda: worker.stats().in_flight == 0, "the end")
        async with pool.connection() as conn:
            assert await first(conn, SETTING) == ""
            assert await first(conn, VISIBLE) == []


async def test_the_block_is_one_transaction(table: Table, member: str) -> None:
    insert = "insert into invoice (tenant, amount) values ('t0', 5)"

    async def work(input: Input, run: jobs.Run) -> None:
        async with run.connection() as conn:
            await conn.execute(insert)
        if input.n == 1:
            async with run.connection() as conn:
                await conn.execute(insert)
                raise ValueError("rolled back")

    handle = job(tenant=lambda _: "t0", retry=jobs.Retry(attempts=1))(work)
    table.enqueue(handle, 2)
    async with pooled(member) as pool:
        await make(table.database, handle, pool=pool).run_until_idle()
    with psycopg.connect(table.database) as conn:
        assert first_sync(conn, "select count(*) from invoice where amount = 5") == 2


async def test_rows_of_another_tenant_cannot_be_written(table: Table, member: str) -> None:
    async def work(input: Input, run: jobs.Run) -> None:  # noqa: ARG001
        async with run.connection() as conn:
            await conn.execute("insert into invoice (tenant, amount) values ('t1', 5)")

    handle = job(tenant=lambda _: "t0", retry=jobs.Retry(attempts=1))(work)
    (id,) = table.enqueue(handle)
    async with pooled(member) as pool:
        await make(table.database, handle, pool=pool).run_until_idle()
    assert "row-level security" in table.settled(id).last_error


IDENTITY = "select array[current_user, session_user, current_setting('search_path')]"


async def test_only_the_tenant_changes(table: Table, member: str) -> None:
    """Neither the role nor what names mean; and who asked gives no right."""
    seen: list[Any] = []

    async def work(input: Input, run: jobs.Run) -> None:  # noqa: ARG001
        async with run.connection() as conn:
            seen.append((await first(conn, IDENTITY), run.enqueued_by))

    handle = job(tenant=lambda _: "postgres")(work)
    table.enqueue(handle, enqueued_by="postgres")
    async with pooled(member) as pool:
        async with pool.connection() as conn:
            before = await first(conn, IDENTITY)
        await make(table.database, handle, pool=pool).run_until_idle()
    assert seen == [(before, "postgres")]


async def test_a_job_and_a_request_get_the_same_verdict(table: Table, member: str) -> None:
    """The request sets what the job's transaction sets, and asks the same."""
    seen: list[Any] = []

    async def ask(conn: AsyncConnection[Any]) -> Any:
        mine = await first(conn, VISIBLE)
        theirs = await first(conn, "select count(*) from invoice where tenant = 't2'")
        update = await conn.execute("insert into invoice (tenant, amount) values ('t1', 0)")
        return mine, theirs, update.rowcount

    async def work(input: Input, run: jobs.Run) -> None:  # noqa: ARG001
        async with run.connection() as conn:
            seen.append(await ask(conn))

    handle = job(tenant=lambda _: "t1")(work)
    table.enqueue(handle)
    async with pooled(member) as pool:
        await make(table.database, handle, pool=pool).run_until_idle()
        async with pool.connection() as conn, conn.transaction():
            await conn.execute("select set_config('jobs.tenant', 't1', true)")
            seen.append(await ask(conn))
    assert seen == [(["t1"], 0, 1)] * 2


async def test_another_name_may_carry_the_tenant_and_a_function_the_sessions(
    table: Table, member: str
) -> None:
    seen: list[Any] = []

    async def work(input: Input, run: jobs.Run) -> None:
        async with run.connection() as conn:
            seen.append(await first(conn, "select current_setting('app.tenant')"))
            seen.append(await first(conn, SETTING))
            seen.append(input.n)

    @asynccontextmanager
    async def opened() -> Any:
        async with await AsyncConnection.connect(member) as conn:
            yield conn

    handle = job(tenant=lambda _: 'it\'s "t0"')(work)
    table.enqueue(handle)
    worker = make(table.database, handle, pool=opened, tenant_setting="app.tenant")
    await worker.run_until_idle()
    assert seen == ['it\'s "t0"', "", 0]


@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_without_a_pool_of_that_flavour_it_is_a_typed_error(table: Table, kind: str) -> None:
    async def work_async(input: Input, run: jobs.Run) -> None:  # noqa: ARG001
        async with run.connection():
            raise AssertionError

    def work(input: Input, run: jobs.Run) -> None:  # noqa: ARG001
        with run.connection():
            raise AssertionError

    handle = job(retry=jobs.Retry(attempts=1))(work_async if kind == "async" else work)
    (id,) = table.enqueue(handle)
    await make(table.database, handle).run_until_idle()
    assert table.settled(id).last_error.startswith("RunConnectionUnavailable: run.connection() in")


async def test_a_session_in_the_middle_of_a_transaction_is_refused(
    table: Table, member: str
) -> None:
    """Its tenant would change under whoever has begun it."""
    async with await AsyncConnection.connect(member) as busy:
        await busy.execute("select 1")

        @asynccontextmanager
        async def shared() -> Any:
            yield busy

        async def work(input: Input, run: jobs.Run) -> None:  # noqa: ARG001
            async with run.connection():
                raise AssertionError

        handle = job(tenant=lambda _: "t0", retry=jobs.Retry(attempts=1))(work)
        (id,) = table.enqueue(handle)
        await make(table.database, handle, pool=shared).run_until_idle()
        assert await first(busy, SETTING) == ""
    assert "session that is in a transaction" in table.settled(id).last_error


async def test_a_superuser_is_named_in_the_log_once(
    table: Table, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[Any] = []
    handle = looking(seen)[0]
    table.enqueue(handle, 3)
    async with pooled(table.database) as pool:
        await make(table.database, handle, pool=pool).run_until_idle()
    assert [tenants for _, tenants in seen] == [["t0", "t1", "t2"]] * 3
    assert len(logged(caplog, "jobs.tenancy.superuser")) == 1


@pytest.mark.parametrize(
    "setting",
    ["role", "search_path", "", "a b.c", "jobs.", ".x", "a.b;c", "x" * 70 + ".y", 5],
    ids=repr,
)
def test_a_setting_of_postgresql_cannot_carry_a_tenant(setting: Any) -> None:
    with pytest.raises(ConfigError, match="tenant_setting"):
        jobs.Worker("postgresql://", jobs.Registry.of(), tenant_setting=setting)


@pytest.mark.parametrize("which", ["pool", "sync_pool"])
def test_what_is_no_pool_is_refused(which: str) -> None:
    with pytest.raises(ConfigError, match=f"{which} is a str, expected a psycopg pool"):
        jobs.Worker("postgresql://", jobs.Registry.of(), **{which: "postgresql://"})


@pytest.mark.timeout(120)
def test_the_example_shows_it() -> None:
    assert example.main() == 0
