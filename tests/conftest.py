"""Fixtures of all tests: a database of its own for every test, and ways to connect to it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack
from typing import Any

import psycopg
import pytest
from psycopg import AsyncConnection, Connection
from psycopg_pool import AsyncConnectionPool
from pytest_postgresql import factories

from tests.support.server import Clones, load_schema, use_shared_server
from tests.support.stepped import Session

Connect = Callable[..., Connection[Any]]

_template = factories.postgresql_noproc(load=[load_schema])


def pytest_configure(config: pytest.Config) -> None:
    """Start the server before pytest-xdist starts its processes, which inherit it."""
    if config.getoption("numprocesses", None):
        use_shared_server(config)


@pytest.fixture(scope="session")
def clones(request: pytest.FixtureRequest) -> Clones:
    """Makes further databases from the migrated template."""
    use_shared_server(request.config)
    template = request.getfixturevalue("_template")
    return Clones(host=template.host, template=template.template_dbname, prefix=template.dbname)


@pytest.fixture
def database(clones: Clones) -> Iterator[str]:
    """DSN of a fresh database with our schema, this test's own."""
    with clones.clone() as dsn:
        yield dsn


@pytest.fixture(scope="module")
def module_database(clones: Clones) -> Iterator[str]:
    """DSN of one database for all tests of a module, for data that is costly to make."""
    with clones.clone() as dsn:
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
