"""The worker's own connections: how they are opened, and how a call on one is given a deadline.

A worker never borrows from the application's pool, so that job functions holding every pooled
connection cannot keep it from settling, and so that planner settings may be given at connection
time without leaking into anybody else's session.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from jobs.errors import ConfigError, SchemaOutdated
from jobs_sql.session import ReadSessionRow, read_session, read_session_async

logger = logging.getLogger("jobs.worker")

T = TypeVar("T")

# The oldest schema file this runtime can work with.
SCHEMA_VERSION = 1

# Performance only, nothing relies on them. The hot statements are planned once for the session: the
# planner would otherwise spend as long on a claim as the claim takes, and a plan made while the
# table was empty must not be a sequential scan when it is not.
_PLANNER = "-c plan_cache_mode=force_generic_plan -c enable_seqscan=off"
# A claim that waits behind DDL gives up and tries again, and one whose process died is abandoned by
# the server instead of claiming jobs for nobody.
_SAFETY = "-c lock_timeout=5s -c client_connection_check_interval=2s"

_NOT_CONNINFO = frozenset({"autocommit", "row_factory", "cursor_factory", "context"})


@dataclass(frozen=True, slots=True)
class Target:
    """Where and how to connect.

    Attributes:
        conninfo: libpq connection string, without our own options.
        prepare: Whether server-side prepared statements may be used (not behind a pooler in
            transaction mode).
    """

    conninfo: str
    prepare: bool = True
    options: str = field(default=f"{_PLANNER} {_SAFETY}")

    @classmethod
    def of(cls, database: object, application_name: str) -> Target:
        """Read the target from a DSN or from a psycopg pool.

        Args:
            database: A connection string, or a ``psycopg_pool`` pool (sync or async).
            application_name: Shown in ``pg_stat_activity`` unless the target names one.

        Raises:
            ConfigError: It is neither.
        """
        kwargs: dict[str, Any] = {}
        if isinstance(database, str):
            conninfo = database
        else:
            conninfo = getattr(database, "conninfo", None)
            given = getattr(database, "kwargs", None)
            if not isinstance(conninfo, str) or not isinstance(given, Mapping | None):
                raise ConfigError(
                    f"database is a {type(database).__name__}, expected a connection string or a "
                    "psycopg_pool pool that was made from one",
                    fix='Pass a DSN such as "postgresql://app@db/app", or a psycopg pool.',
                )
            kwargs = {k: v for k, v in (given or {}).items() if k not in _NOT_CONNINFO}
        prepare = kwargs.pop("prepare_threshold", 5) is not None
        try:
            parts = conninfo_to_dict(conninfo, **kwargs)
        except psycopg.ProgrammingError as error:
            raise ConfigError(f"the connection string cannot be read: {error}") from error
        parts.setdefault("application_name", application_name)
        parts.setdefault("connect_timeout", "5")
        return cls(make_conninfo("", **parts), prepare)

    def with_options(self) -> str:
        """The connection string with our session options behind those that the caller gave."""
        given = conninfo_to_dict(self.conninfo).get("options")
        return make_conninfo(self.conninfo, options=f"{given or ''} {self.options}".strip())


def _refuses_options(error: psycopg.Error) -> bool:
    """Whether a pooler (or an odd server) refused the start-up options, not the connection."""
    text = str(error)
    return "startup parameter" in text or "client_connection_check_interval" in text


def _judge(session: ReadSessionRow | None) -> bool:
    """Check the schema version; return whether the session is really ours, without a pooler."""
    version = session.schema_version if session else 0
    if version < SCHEMA_VERSION:
        raise SchemaOutdated(
            f"the database has schema version {version}, this worker needs {SCHEMA_VERSION}"
        )
    return session is not None and session.plan_cache_mode == "force_generic_plan"


def _pooled(target: Target) -> None:
    logger.info(
        "connected through a pooler: statements are not prepared and planned at each call",
        extra={"event": "jobs.worker.pooled", "prepare": target.prepare},
    )


async def connect_async(target: Target) -> psycopg.AsyncConnection[Any]:
    """Open an autocommit connection for the worker's event loop.

    Raises:
        SchemaOutdated: The schema is missing or older than this worker.
        psycopg.OperationalError: The database cannot be reached.
    """
    try:
        conn = await psycopg.AsyncConnection.connect(
            target.with_options(), autocommit=True, prepare_threshold=None
        )
    except psycopg.OperationalError as error:
        if not _refuses_options(error):
            raise
        conn = await psycopg.AsyncConnection.connect(
            target.conninfo, autocommit=True, prepare_threshold=None
        )
    try:
        own_session = _judge(await read_session_async(conn))
    except psycopg.errors.UndefinedTable as error:
        await conn.close()
        raise SchemaOutdated("the schema jobs is not installed in this database") from error
    except BaseException:
        await conn.close()
        raise
    if own_session and target.prepare:
        conn.prepare_threshold = 0
    else:
        _pooled(target)
    return conn


def connect(target: Target) -> psycopg.Connection[Any]:
    """As `connect_async`, for the renewal thread."""
    try:
        conn = psycopg.Connection.connect(
            target.with_options(), autocommit=True, prepare_threshold=None
        )
    except psycopg.OperationalError as error:
        if not _refuses_options(error):
            raise
        conn = psycopg.Connection.connect(target.conninfo, autocommit=True, prepare_threshold=None)
    try:
        if _judge(read_session(conn)) and target.prepare:
            conn.prepare_threshold = 0
    except BaseException:
        conn.close()
        raise
    return conn


def cut(conn: psycopg.AsyncConnection[Any] | psycopg.Connection[Any]) -> None:
    """Shut the socket down, so that whoever waits on it fails at once.

    Cancelling the wait is no substitute: psycopg then tries to cancel on the server, which takes ten
    more seconds when the peer does not answer. Writes nothing; may be called from any thread.
    """
    with contextlib.suppress(psycopg.Error, OSError):
        handle = socket.socket(fileno=os.dup(conn.fileno()))
        with handle:
            handle.shutdown(socket.SHUT_RDWR)


class Link:
    """One connection of the event loop that is opened when needed and reopened when lost.

    Calls are serialised by the caller: one statement at a time.
    """

    def __init__(self, target: Target) -> None:
        self._target = target
        self._conn: psycopg.AsyncConnection[Any] | None = None
        self._call: asyncio.Task[Any] | None = None

    async def open(self) -> None:
        """Connect unless connected. Raises what `connect_async` raises."""
        if self._conn is None or self._conn.closed:
            self._conn = await connect_async(self._target)

    async def call(
        self,
        statement: Callable[[psycopg.AsyncConnection[Any]], Awaitable[T]],
        timeout: float,
    ) -> T:
        """Run one statement, giving up on the connection after ``timeout`` seconds.

        Raises:
            TimeoutError: No answer in time. The connection was cut; whether the statement took
                effect is unknown.
            psycopg.Error: As raised by the statement. A broken connection is reopened by the next
                call.
        """
        await self.open()
        conn = self._conn
        assert conn is not None
        task: asyncio.Task[T] = asyncio.ensure_future(_await(statement(conn)))
        self._call = task
        try:
            done, _ = await asyncio.wait({task}, timeout=timeout)
            if not done:
                cut(conn)
                await asyncio.wait({task}, timeout=5)
                raise TimeoutError(f"no answer from the database within {timeout:g} s")
            return task.result()
        except asyncio.CancelledError:
            cut(conn)
            raise
        finally:
            self._call = None
            if conn.broken or conn.closed:
                self._conn = None

    async def interrupt(self, grace: float) -> None:
        """Cancel the statement in flight on the server, so that it cannot take effect later.

        Args:
            grace: Seconds to wait for the server's confirmation before the connection is cut.
        """
        task, conn = self._call, self._conn
        if task is None or conn is None or task.done():
            return
        with contextlib.suppress(psycopg.Error, OSError):
            await conn.cancel_safe(timeout=grace)
        await asyncio.wait({task}, timeout=grace)
        if not task.done():
            cut(conn)

    async def close(self) -> None:
        """Close the connection; never raises, never waits for the server."""
        conn, self._conn = self._conn, None
        if conn is not None:
            with contextlib.suppress(psycopg.Error, OSError):
                await conn.close()


async def _await(awaitable: Awaitable[T]) -> T:
    return await awaitable
