"""An application with jobs, for the commands that need one, and a command that says what it did."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import psycopg
import pytest
from psycopg import Connection

from tests.cli.command import jobs

SHOP = """
import sys
from datetime import datetime
from uuid import UUID
from pydantic import BaseModel
import jobs

class Order(BaseModel):
    order: UUID
    at: datetime | None = None
    note: str = ""

@jobs.job(
    queue="shop", tenant=lambda i: "t", idempotency_key=lambda i: str(i.order), priority=2,
    retry=jobs.Retry(attempts=1),
)
def ship(input: Order) -> None:
    raise ValueError("no stock\\nat all")

@jobs.job(tenant=jobs.NO_TENANT, idempotency_key=jobs.NO_KEY)
def tidy(input: Order) -> None:
    pass

registry = jobs.Registry.of(sys.modules[__name__])
"""


class Said(NamedTuple):
    """How a command ended."""

    status: int
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        """What it printed."""
        return self.out.splitlines()

    @property
    def document(self) -> Any:
        """What it printed, as JSON."""
        return json.loads(self.out)


@pytest.fixture
def command(database: str, tmp_path: Path) -> Callable[..., Said]:
    """Run ``jobs ...`` against `database`, in a folder with the module ``shop``."""
    (tmp_path / "shop.py").write_text(SHOP)

    def run(*arguments: str, **variables: str) -> Said:
        given = {"JOBS_DSN": database, "TZ": "America/Los_Angeles", "PGTZ": "Asia/Kolkata"}
        done = jobs(*arguments, cwd=tmp_path, **(given | variables))
        assert "Traceback" not in done.stderr, done.stderr
        return Said(done.returncode, done.stdout, done.stderr)

    return run


@pytest.fixture
def look(database: str) -> Callable[..., list[tuple[Any, ...]]]:
    """Run a query."""

    def query(statement: str, *values: object) -> list[tuple[Any, ...]]:
        conn: Connection[Any]
        with psycopg.connect(database, autocommit=True) as conn:
            cursor = conn.execute(statement.encode(), values or None)
            return cursor.fetchall() if cursor.description else []

    return query
