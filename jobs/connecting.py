"""Sessions for calls that take a connection or a connection string."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
from psycopg import AsyncConnection, Connection

from jobs.errors import DatabaseUnreachable
from jobs_sql.session import show_times_plainly, show_times_plainly_async

__all__ = ["readable", "readable_async", "session"]


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
        readable(conn)
        yield conn


def readable(conn: Connection[Any]) -> None:
    """See to it that times can be read on a connection of our own, whatever is set elsewhere.

    psycopg reads one form of times and durations, and a claim whose answer cannot be read has
    claimed all the same. Through a pooler it holds as well: poolers carry these two settings along.
    """
    if not _is_readable(conn):
        show_times_plainly(conn)


async def readable_async(conn: AsyncConnection[Any]) -> None:
    """As `readable`."""
    if not _is_readable(conn):
        await show_times_plainly_async(conn)


def _is_readable(conn: Connection[Any] | AsyncConnection[Any]) -> bool:
    """By what the server has told when it was connected to, so that nothing need be sent."""
    dates = conn.info.parameter_status("DateStyle") or "ISO"
    return (
        dates.startswith("ISO")
        and (conn.info.parameter_status("IntervalStyle") or "postgres") == "postgres"
    )
