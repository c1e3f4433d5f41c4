"""Fixtures of the runtime tests."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import psycopg
import pytest
from psycopg import AsyncConnection

from tests.runtime.doors import Door


@asynccontextmanager
async def _opened(flavour: str, dsn: str) -> AsyncIterator[Door]:
    conn: Any
    if flavour == "sync":
        with psycopg.connect(dsn, autocommit=True) as conn:
            yield Door(conn)
    else:
        async with await AsyncConnection.connect(dsn, autocommit=True) as conn:
            yield Door(conn)


@pytest.fixture(params=["sync", "async"])
async def door(request: pytest.FixtureRequest, database: str) -> AsyncIterator[Door]:
    """A connection in autocommit mode on `database`, once of each flavour."""
    async with _opened(request.param, database) as door:
        yield door


@pytest.fixture(params=["sync", "async"])
async def refusing_door(
    request: pytest.FixtureRequest, module_database: str
) -> AsyncIterator[Door]:
    """As `door`, for tests after which no job may exist; they share a database for speed."""
    async with _opened(request.param, module_database) as door:
        yield door
        assert await door.execute("select count(*) from jobs.job") == [(0,)]
