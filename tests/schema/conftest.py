"""Databases without our schema, roles of a test's own, and schema files that ship with a test."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from psycopg import Connection, sql

from jobs import migrate as migrate_module
from jobs.shipped import Migration, shipped
from tests.schema.ship import Ship
from tests.support.server import Clones

MakeRole = Callable[[str], str]


@pytest.fixture
def role(clones: Clones) -> Iterator[MakeRole]:
    """Factory of roles that may log in and nothing else: ``role("app")`` returns its name."""
    made: list[str] = []

    def make(name: str) -> str:
        full = f"{name}_{secrets.token_hex(4)}"
        with psycopg.connect(clones.dsn("postgres"), autocommit=True) as admin:
            admin.execute(sql.SQL("create role {} login").format(sql.Identifier(full)))
        made.append(full)
        return full

    yield make
    with psycopg.connect(clones.dsn("postgres"), autocommit=True) as admin:
        for full in made:
            admin.execute(sql.SQL("drop role {}").format(sql.Identifier(full)))


@pytest.fixture
def bare(clones: Clones, role: MakeRole) -> Iterator[Callable[[], str]]:  # noqa: ARG001
    """Factory of databases without our schema: DSNs. Dropped before the roles of the test are."""
    made: list[str] = []

    def make() -> str:
        name = f"{clones.prefix}_{secrets.token_hex(4)}"
        with psycopg.connect(clones.dsn("postgres"), autocommit=True) as admin:
            admin.execute(
                sql.SQL("create database {} template template0").format(sql.Identifier(name))
            )
        made.append(name)
        return clones.dsn(name)

    yield make
    for name in made:
        clones.drop(name)


@pytest.fixture
def empty(bare: Callable[[], str]) -> str:
    """DSN of one database without our schema."""
    return bare()


@pytest.fixture
def session_of(empty: str) -> Iterator[Callable[..., Connection[Any]]]:
    """Factory of sessions on `empty`, closed at the end: ``session_of(user="app_1")``."""
    made: list[Connection[Any]] = []

    def connect(autocommit: bool = True, **options: Any) -> Connection[Any]:
        conn = psycopg.connect(empty, autocommit=autocommit, **options)
        made.append(conn)
        return conn

    yield connect
    for conn in made:
        conn.close()


@pytest.fixture
def owner(session_of: Callable[..., Connection[Any]]) -> Connection[Any]:
    """An autocommit session of the server's superuser on `empty`."""
    return session_of()


@pytest.fixture
def ship(monkeypatch: pytest.MonkeyPatch) -> Ship:
    """Lets a test decide which files ship: ``ship(*files)``, or ``ship.more(text, ...)``."""

    def put(files: tuple[Migration, ...]) -> None:
        monkeypatch.setattr(migrate_module, "shipped", lambda: files)

    return Ship(put, shipped())
