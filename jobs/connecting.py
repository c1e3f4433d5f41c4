"""Sessions for calls that take a connection or a connection string."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
from psycopg import Connection

from jobs.errors import DatabaseUnreachable

__all__ = ["session"]


@contextmanager
def session(conn_or_dsn: Connection[Any] | str) -> Iterator[Connection[Any]]:
    """The caller's connection, or one of our own for the length of the block."""
    if isinstance(conn_or_dsn, Connection):
        yield conn_or_dsn
        return
    try:
        # No prepared statements: the string may lead to a pooler.
        conn = psycopg.connect(
            conn_or_dsn,
            autocommit=True,
            prepare_threshold=None,
            fallback_application_name="sql-jobs",
        )
    except psycopg.ProgrammingError as error:
        # libpq's message quotes the string, password included.
        raise DatabaseUnreachable("the connection string cannot be read") from error
    except psycopg.OperationalError as error:
        raise DatabaseUnreachable(f"cannot connect: {str(error).strip()}") from error
    with conn:
        yield conn
