"""Fixtures of the statements' tests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from psycopg import Connection

from tests.sql.gate import Gate
from tests.support.stepped import Session


@pytest.fixture
def gate(conn: Connection[Any], session: Callable[..., Session]) -> Gate:
    """A gate inside the statements of sessions on `database`."""
    return Gate(conn, session("keeper"))
