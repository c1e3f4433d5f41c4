"""A service's own connections: how they are opened, and how a call on one is given a deadline.

A service never borrows from the application's pool, so that job functions holding every pooled
connection cannot keep it from settling, and so that planner settings may be given at connection
time without leaking into anybody else's session.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self, TypeVar

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from jobs.errors import ConfigError, SchemaOutdated
from jobs.service.hostclock import HostClock
from jobs_sql.session import ReadSessionRow, read_session, read_session_async

logger = logging.getLogger("jobs.service")

T = TypeVar("T")

# The oldest schema file this runtime can work with.
SCHEMA_VERSION = 5

# All attempts at connecting, several hosts included.
CONNECT_TIMEOUT = 30.0
# For a wait to end whose connection was cut under it.
_CUT_SECONDS = 1.0

# Performance only, nothing relies on them. The hot statements are planned once for the session: the
# planner would otherwise spend as long on a claim as the claim takes, and a plan made while the
# table was empty must not be a sequential scan when it is not.
_PLANNER = "-c plan_cache_mode=force_generic_plan -c enable_seqscan=off"
# A claim that waits behind DDL gives up and tries again, and one whose process died is abandoned by
# the server instead of claiming jobs for nobody. The statements are made for READ COMMITTED, which
# a role or a database may have set otherwise.
_SAFETY = (
    "-c lock_timeout=5s -c client_connection_check_interval=2s"
    r" -c default_transaction_isolation=read\ committed"
    # Sessions that have nothing to do for hours are what a service is, and no leak. And NULL in an
    # array means what the statements mean by it.
    " -c idle_session_timeout=0 -c array_nulls=on"
    # Read as bytes otherwise, which is as correct and slower.
    " -c datestyle=ISO -c intervalstyle=postgres"
)

_NOT_CONNINFO = frozenset({"autocommit", "row_factory", "cursor_factory", "context"})


@dataclass(frozen=True, slots=True)
class Target:
    """Where and how to connect.

    Attributes:
        conninfo: libpq connection string, without our own options.
        prepare: Whether server-side prepared statements may be used (not behind a pooler in
            transaction mode).
    """

    conninfo: str = field(repr=False)
    prepare: bool = True
    options: str = field(default=f"{_PLANNER} {_SAFETY}")
    clock: HostClock = field(default_factory=HostClock, compare=False, repr=False)

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
        conninfo = database if isinstance(database, str) else getattr(database, "conninfo", None)
        if not isinstance(database, str):
            given = getattr(database, "kwargs", None)
            if not isinstance(conninfo, str) or not isinstance(given, Mapping | None):
                raise ConfigError(
                    f"database is a {type(database).__name__}, expected a connection string or a "
                    "psycopg_pool pool that was made from one",
                    fix='Pass a DSN such as "postgresql://app@db/app", or a psycopg pool.',
                )
            kwargs = {k: v for k, v in (given or {}).items() if k not in _NOT_CONNINFO}
        assert isinstance(conninfo, str)
        prepare = kwargs.pop("prepare_threshold", 5) is not None
        parts: dict[str, Any] | None = None
        with contextlib.suppress(psycopg.ProgrammingError):
            parts = dict(conninfo_to_dict(conninfo, **kwargs))
        if parts is None:  # libpq's message quotes the string, password included
            raise ConfigError("the connection string cannot be read")
        parts.setdefault("application_name", application_name)
        parts.setdefault("connect_timeout", "5")
        # With a narrower one a payload that it lacks a character of fails the claim of all.
        parts["client_encoding"] = "UTF8"
        return cls(make_conninfo("", **parts), prepare)

    def with_options(self) -> str:
        """The connection string with our session options behind those that the caller gave."""
        given = conninfo_to_dict(self.conninfo).get("options") or os.environ.get("PGOPTIONS", "")
        return make_conninfo(self.conninfo, options=f"{given} {self.options}".strip())

    async def open_async(self) -> psycopg.AsyncConnection[Any]:
        """An autocommit connection, to be checked with `check_async` before it is used."""
        connect = psycopg.AsyncConnection.connect
        try:
            return await connect(self.with_options(), autocommit=True, prepare_threshold=None)
        except psycopg.OperationalError as error:
            if not _refuses_options(error):
                raise
            return await connect(self.conninfo, autocommit=True, prepare_threshold=None)

    def open(self) -> psycopg.Connection[Any]:
        """As `open_async`, for the renewal thread."""
        connect = psycopg.Connection.connect
        try:
            return connect(self.with_options(), autocommit=True, prepare_threshold=None)
        except psycopg.OperationalError as error:
            if not _refuses_options(error):
                raise
            return connect(self.conninfo, autocommit=True, prepare_threshold=None)

    async def check_async(self, conn: psycopg.AsyncConnection[Any]) -> None:
        """Check what was connected to, and prepare statements there if that is sound.

        Raises:
            SchemaOutdated: The schema is missing or older than this process needs.
        """
        asked_at = time.time()
        try:
            session = await read_session_async(conn)
        except psycopg.errors.UndefinedTable as error:
            raise _not_installed() from error
        conn.prepare_threshold = self._threshold(session, conn.info.backend_pid, asked_at)

    def check(self, conn: psycopg.Connection[Any]) -> None:
        """As `check_async`, for the renewal thread."""
        asked_at = time.time()
        try:
            session = read_session(conn)
        except psycopg.errors.UndefinedTable as error:
            raise _not_installed() from error
        conn.prepare_threshold = self._threshold(session, conn.info.backend_pid, asked_at)

    def _threshold(
        self, session: ReadSessionRow | None, announced_pid: int, asked_at: float
    ) -> int | None:
        if session is not None:
            self.clock.compare(session.read_at, asked_at)
        version = session.schema_version if session else 0
        if version < SCHEMA_VERSION:
            raise SchemaOutdated(
                f"the database has schema version {version}, this process needs {SCHEMA_VERSION}"
            )
        # Behind a pooler the next statement may reach a session that has not prepared it. A pooler
        # announces a process of its own making. And without our settings, which it drops, a plan
        # made once may be a bad one.
        own = session is not None and session.backend_pid == announced_pid
        settled = session is not None and session.plan_cache_mode == "force_generic_plan"
        if self.prepare and own and settled:
            return 0
        logger.info(
            "connected through a pooler: statements are not prepared and planned at each call",
            extra={"event": "jobs.service.pooled", "prepare": self.prepare},
        )
        return None


def _refuses_options(error: psycopg.Error) -> bool:
    """Whether a pooler (or an odd server) refused the start-up options, not the connection."""
    text = str(error)
    return "startup parameter" in text or "client_connection_check_interval" in text


def _not_installed() -> SchemaOutdated:
    return SchemaOutdated("the schema jobs is not installed in this database")


def cut(conn: psycopg.AsyncConnection[Any] | psycopg.Connection[Any]) -> None:
    """Shut the socket down, so that whoever waits on it fails at once.

    Cancelling the wait is no substitute: psycopg then tries to cancel on the server, which takes
    ten more seconds when the peer does not answer. Writes nothing; may be called from any thread,
    as long as nobody closes the connection meanwhile.
    """
    with contextlib.suppress(psycopg.Error, OSError):
        handle = socket.socket(fileno=os.dup(conn.fileno()))
        with handle:
            handle.shutdown(socket.SHUT_RDWR)


class Guard:
    """Cuts a connection that a thread waits on when the time is up, or when told to.

    A context manager around the calls. Once it has been left it cuts nothing any more, so that the
    connection may be closed.
    """

    def __init__(self, conn: psycopg.Connection[Any], seconds: float) -> None:
        self._conn: psycopg.Connection[Any] | None = conn
        self._lock = threading.Lock()
        self._timer = threading.Timer(seconds, self.cut)
        self._timer.name, self._timer.daemon = "jobs-guard", True

    def cut(self) -> None:
        """End the wait now. May be called from any thread."""
        with self._lock:
            if self._conn is not None:
                cut(self._conn)

    def __enter__(self) -> Self:
        self._timer.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._timer.cancel()
        with self._lock:
            self._conn = None


class Link:
    """One connection of the event loop that is opened when needed and reopened when lost.

    Calls are serialised by the caller: one statement at a time.
    """

    def __init__(self, target: Target) -> None:
        self._target = target
        self._conn: psycopg.AsyncConnection[Any] | None = None
        self._task: asyncio.Task[Any] | None = None

    async def open(self) -> None:
        """Connect unless connected.

        Raises:
            TimeoutError: No answer in time.
            SchemaOutdated: The schema is missing or older than this process needs.
            psycopg.Error: The database cannot be reached, or refuses us.
        """
        if self._conn is None:
            try:
                await self._within(self._connect(), CONNECT_TIMEOUT)
            except BaseException:
                await self._drop()  # it is not used unless it was checked
                raise

    async def _connect(self) -> None:
        self._conn = conn = await self._target.open_async()  # known before it is used: can be cut
        await self._target.check_async(conn)

    async def call(
        self,
        statement: Callable[[psycopg.AsyncConnection[Any]], Coroutine[Any, Any, T]],
        seconds: float,
    ) -> T:
        """Run one statement, giving up on the connection after that many seconds.

        Raises:
            TimeoutError: No answer in time. The connection was cut; whether the statement took
                effect is unknown.
            psycopg.Error: As raised by the statement. A connection that may be at fault is reopened
                by the next call.
        """
        await self.open()
        assert self._conn is not None
        return await self._within(statement(self._conn), seconds)

    async def interrupt(self, grace: float) -> None:
        """Cancel the statement in flight on the server, so that it cannot take effect later.

        Args:
            grace: Seconds to wait for the server's confirmation before the connection is cut.
        """
        task, conn = self._task, self._conn
        if task is None:
            return
        with contextlib.suppress(psycopg.Error, OSError, TimeoutError):
            async with asyncio.timeout(grace):
                if conn is not None:
                    await conn.cancel_safe(timeout=grace)
                    await asyncio.wait({task})
        await self._abandon(task)

    async def close(self) -> None:
        """Close the connection; never raises, never waits for the server."""
        if self._task is not None:
            await self._abandon(self._task)
        await self._drop()

    async def _within(self, work: Coroutine[Any, Any, T], seconds: float) -> T:
        task = asyncio.create_task(work, name="jobs:call")
        task.add_done_callback(_retrieve)
        self._task = task
        try:
            await asyncio.wait({task}, timeout=seconds)
            if not task.done():
                await self._abandon(task)
                if not task.done() or task.cancelled() or task.exception() is not None:
                    raise TimeoutError(f"no answer from the database within {seconds:g} s")
            if task.cancelled():
                raise TimeoutError("connecting was given up")
            return task.result()
        except BaseException as error:
            if not task.done():
                await self._abandon(task)
            if not self._usable_after(error):
                await self._drop()
            raise
        finally:
            self._task = None
            # A task that was cancelled while it connected keeps its frames, and they the socket:
            # not for as long as somebody keeps the exception, which leads to this frame.
            del task

    def _usable_after(self, error: BaseException) -> bool:
        """Whether the next statement may use the connection that this one failed on.

        After an error that does not speak of the statement's data or luck (a server that became
        read-only, a plan or a prepared statement that is gone) a new session may do better.
        """
        harmless = psycopg.OperationalError | psycopg.DataError | psycopg.IntegrityError
        return isinstance(error, harmless) and self._conn is not None and not self._conn.closed

    async def _abandon(self, task: asyncio.Task[Any]) -> None:
        """End a call that is not worth waiting for, without waiting for the server."""
        if task.done():
            return
        if self._conn is not None:
            cut(self._conn)
        else:
            task.cancel()  # still connecting: nothing of ours runs on the server
        await asyncio.wait({task}, timeout=_CUT_SECONDS)

    async def _drop(self) -> None:
        conn, self._conn = self._conn, None
        if conn is not None:
            with contextlib.suppress(psycopg.Error, OSError):
                await conn.close()


async def open_links(
    links: Iterable[Link],
    unless: asyncio.Event,
    others: Iterable[Callable[[], Coroutine[Any, Any, None]]] = (),
) -> bool:
    """Open connections; return False, with some of them open, if the event is set before that.

    Args:
        links: Opened first, in order.
        unless: Ends the wait.
        others: Called behind them, to open what is no connection to a database.

    Raises what `Link.open` and the others raise; ConnectionError where one was cancelled by
    something else.
    """

    async def open_all() -> None:
        for link in links:
            await link.open()
        for other in others:
            await other()

    opening = asyncio.create_task(open_all(), name="jobs:open")
    stopped = asyncio.create_task(unless.wait(), name="jobs:stop")
    try:
        await asyncio.wait({opening, stopped}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        stopped.cancel()
        opening.cancel()
        await asyncio.wait({opening})
    try:
        if opening.cancelled():
            if not unless.is_set():
                raise ConnectionError("opening was cancelled from within")
            return False
        opening.result()
        return True
    finally:
        del opening, stopped


async def close_links(links: Iterable[Link]) -> None:
    """Close connections; never raises."""
    for link in links:
        await link.close()


def _retrieve(task: asyncio.Task[Any]) -> None:
    """Look at the exception of a call that nobody may be waiting for any more."""
    if not task.cancelled():
        task.exception()
