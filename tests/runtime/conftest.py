"""Fixtures of the runtime tests."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import psycopg
import pytest
from psycopg import AsyncConnection

from tests.runtime.doors import Door


@pytest.fixture(params=["sync", "async"])
async def door(request: pytest.FixtureRequest, database: str) -> AsyncIterator[Door]:
    """A connection in autocommit mode on `database`, once of each flavour."""
    conn: Any
    if request.param == "sync":
        with psycopg.connect(database, autocommit=True) as conn:
            yield Door(conn)
    else:
        async with await AsyncConnection.connect(database, autocommit=True) as conn:
            yield Door(conn)
