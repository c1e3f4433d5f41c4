"""Fixtures of all tests: a database of its own for every test, and ways to connect to it."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import AsyncConnection, Connection, sql
from psycopg_pool import AsyncConnectionPool
from pytest_postgresql import factories

from devkit import postgres
from devkit.process import end_with_parent
from devkit.rundir import run_dir
from tests.support.server import SETTINGS, Clones, install_schema, load_template, use_shared_server
from tests.support.stepped import Session
from tests.support.strictness import refuse_skip
from tests.support.workers import WorkerProcess, python_command

Connect = Callable[..., Connection[Any]]

_template = factories.postgresql_noproc(load=[load_template])


def pytest_configure(config: pytest.Config) -> None:
    """Start the server before pytest-xdist starts its processes, which inherit it."""
    if hasattr(config, "workerinput"):
        end_with_parent()  # else a killed run's processes hold on for many seconds
    elif config.getoption("numprocesses", None):
        use_shared_server(config)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Refuse skips where they are refused (see tests/support/strictness.py)."""
    report = yield
    refuse_skip(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Refuse skips of whole modules as well."""
    report = yield
    refuse_skip(report)
    return report


@pytest.fixture(scope="session")
def clones(request: pytest.FixtureRequest) -> Clones:
    """Makes further databases from the migrated template."""
    use_shared_server(request.config)
    template = request.getfixturevalue("_template")
    return Clones(host=template.host, template=template.template_dbname, prefix=template.dbname)


@pytest.fixture(scope="session")
def lone_clones() -> Iterator[Clones]:
    """Makes databases on a second server that nothing but the running test uses.

    What another database's sessions do decides when dead row versions may be pruned here, and with
    that the count of heap-only updates and of buffers. Autovacuum is off.
    """
    with (
        run_dir("sql-jobs-tests") as place,
        postgres.start(
            place / "pg", durable=False, settings=SETTINGS | {"autovacuum": "off"}
        ) as server,
    ):
        with psycopg.connect(server.dsn(), autocommit=True) as conn:
            conn.execute("create database template_jobs")
        install_schema(server.dsn("template_jobs"))
        yield Clones(host=str(server.socket_dir), template="template_jobs", prefix="lone")


def _clones_for(request: pytest.FixtureRequest) -> Clones:
    lone = request.node.get_closest_marker("lone")
    made: Clones = request.getfixturevalue("lone_clones" if lone else "clones")
    return made


@pytest.fixture
def database(request: pytest.FixtureRequest) -> Iterator[str]:
    """DSN of a fresh database with our schema, this test's own.

    With the marker `lone` it is on a server of its own as well.
    """
    with _clones_for(request).clone() as dsn:
        yield dsn


@pytest.fixture(scope="module")
def module_database(request: pytest.FixtureRequest) -> Iterator[str]:
    """DSN of one database for all tests of a module, for data that is costly to make.

    It is on a lone server when the module is marked so.
    """
    with _clones_for(request).clone() as dsn:
        yield dsn


@pytest.fixture
def connect(database: str) -> Iterator[Connect]:
    """Factory of sessions on `database`: ``connect(autocommit=True, **psycopg_options)``.

    All are closed at the end of the test.
    """
    with ExitStack() as stack:

        def make(autocommit: bool = True, **options: Any) -> Connection[Any]:
            conn = psycopg.connect(database, autocommit=autocommit, **options)
            stack.callback(conn.close)
            return conn

        yield make


@pytest.fixture
def conn(connect: Connect) -> Connection[Any]:
    """One autocommit session on `database`."""
    return connect()


@pytest.fixture
async def aconn(database: str) -> AsyncIterator[AsyncConnection[Any]]:
    """One autocommit asynchronous session on `database`."""
    conn = await AsyncConnection.connect(database, autocommit=True)
    try:
        yield conn
    finally:
        await conn.close()


@pytest.fixture
async def pool(database: str) -> AsyncIterator[AsyncConnectionPool]:
    """An open pool of up to ten asynchronous sessions on `database`, as an application has it."""
    pool = AsyncConnectionPool(database, min_size=1, max_size=10, open=False)
    async with pool:
        yield pool


@pytest.fixture
def session(connect: Connect) -> Iterator[Callable[..., Session]]:
    """Factory of stepped sessions on `database`: ``session("claimer", autocommit=False)``."""
    observer = connect()
    with ExitStack() as stack:

        def make(name: str = "session", **options: Any) -> Session:
            made = Session(connect(**options), observer, name)
            stack.callback(made.close)
            return made

        yield make


@pytest.fixture
def quiet_table(database: str) -> Callable[..., None]:
    """Function that makes tables of `database` hold still for a measurement: ``quiet("jobs.job")``.

    Autovacuum leaves them alone from then on; they are vacuumed and analyzed now, and again at
    each further call.
    """

    def quiet(*tables: str) -> None:
        with psycopg.connect(database, autocommit=True) as conn:
            for table in tables:
                name = sql.Identifier(*table.split("."))
                off = (
                    "alter table {} set (autovacuum_enabled = off, toast.autovacuum_enabled = off)"
                )
                conn.execute(sql.SQL(off).format(name))
                conn.execute(sql.SQL("vacuum (analyze) {}").format(name))

    return quiet


@pytest.fixture(scope="module")
def durable_server() -> Iterator[postgres.Server]:
    """A server of this module's own, on disk and with fsync, that tests may crash and restart."""
    with (
        run_dir("sql-jobs-durable", Path(tempfile.gettempdir())) as place,
        postgres.start(place / "pg", settings=SETTINGS) as server,
    ):
        yield server


@pytest.fixture
def durable_database(durable_server: postgres.Server) -> str:
    """DSN of a fresh database with our schema on `durable_server`, which is up when it begins."""
    server = durable_server
    if not server.running:
        server.launch()
    with psycopg.connect(server.dsn(), autocommit=True) as conn:
        conn.execute("drop database if exists crash with (force)")
        conn.execute("create database crash")
    install_schema(server.dsn("crash"))
    return server.dsn("crash")


@pytest.fixture
def worker_process(
    request: pytest.FixtureRequest, tmp_path: Path
) -> Iterator[Callable[..., WorkerProcess]]:
    """Factory of processes: ``worker_process("worker", "module:registry", "--dsn", dsn)``.

    Positional arguments follow ``python -m jobs``; ``module="x"`` runs another module, ``env=``
    adds variables, ``prefix=`` stands before the interpreter (faketime, say). At the end each is
    killed and proven to have ended; what it wrote is shown with a failed test.
    """
    made: list[WorkerProcess] = []

    def make(
        *arguments: str,
        module: str = "jobs",
        env: dict[str, str] | None = None,
        prefix: tuple[str, ...] = (),
    ) -> WorkerProcess:
        command = [*prefix, *python_command("-m", module, *arguments)]
        process = WorkerProcess(command, tmp_path, f"worker-{len(made)}", env or {})
        made.append(process)
        return process

    yield make
    try:
        with ExitStack() as stack:
            for process in made:
                stack.callback(process.end)
    finally:
        for process in made:
            request.node.add_report_section("teardown", "worker", process.describe())
