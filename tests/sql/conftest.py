"""Fixtures of the statements' tests."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from psycopg import Connection, sql

from devkit import postgres
from devkit.rundir import run_dir
from tests.sql.gate import Gate
from tests.support.server import SETTINGS, install_schema
from tests.support.stepped import Session


@pytest.fixture
def gate(conn: Connection[Any], session: Callable[..., Session]) -> Gate:
    """A gate inside the statements of sessions on `database`."""
    return Gate(conn, session("keeper"))


@pytest.fixture(scope="session")
def quiet_server() -> Iterator[postgres.Server]:
    """A server that no other test uses.

    A transaction that has written and stays open, in whatever database of a server, keeps every
    session from reusing the room of dead row versions: pages then fill up, updates leave them and
    are logged whole. So what an update costs can only be measured where nobody else writes.
    """
    with (
        run_dir("sql-jobs-quiet") as place,
        postgres.start(place / "pg", durable=False, settings=SETTINGS) as server,
    ):
        yield server


@pytest.fixture
def quiet(quiet_server: postgres.Server) -> Iterator[Connection[Any]]:
    """The only session of a server: autocommit, on a fresh database with our schema."""
    name = f"quiet_{secrets.token_hex(4)}"
    with psycopg.connect(quiet_server.dsn(), autocommit=True) as admin:
        admin.execute(sql.SQL("create database {}").format(sql.Identifier(name)))
    install_schema(quiet_server.dsn(name))
    with psycopg.connect(quiet_server.dsn(name), autocommit=True) as conn:
        yield conn
