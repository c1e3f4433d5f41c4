"""Running the plans of an enqueue on the caller's connection, in whatever state that is."""

from __future__ import annotations

import asyncio
import enum
import random
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import AsyncExitStack, ExitStack
from typing import Any, Final, Generic, NamedTuple, TypeVar

import psycopg
from psycopg import AsyncConnection, Connection, errors
from psycopg.pq import PipelineStatus, TransactionStatus

from jobs.errors import ConnectionUnsupported, EnqueueContended, TransactionRequired
from jobs.flavour import Plan, drive
from jobs_sql import conflict as sql

T = TypeVar("T")

# Longest pauses in seconds before an operation that met a deadlock is tried again.
_PAUSES: Final = (0.02, 0.1)
_CONTENTION: Final = (
    errors.LockNotAvailable,
    errors.DeadlockDetected,
    errors.SerializationFailure,
)


class Guard(enum.Enum):
    """What an operation needs around it, whatever state the caller's connection is in."""

    NONE = enum.auto()
    """Single statements."""
    TRANSACTION = enum.auto()
    """All statements in one transaction: the caller's, or one of our own in autocommit mode."""
    SAVEPOINT = enum.auto()
    """The same, and undone as a whole by an error, so that the caller's transaction goes on."""


class Operation(NamedTuple, Generic[T]):
    """What a call wants done.

    Attributes:
        plan: Makes the plan, once for each try.
        guard: What it needs around it.
        transactional: Whether it is refused outside a transaction.
    """

    plan: Callable[[], Plan[T]]
    guard: Guard
    transactional: bool = False


def perform(
    conn: Connection[Any] | AsyncConnection[Any], prepare: Callable[[], Operation[T]]
) -> T | Coroutine[Any, Any, T]:
    """Prepare an operation and run it on either flavour of connection.

    Raises ConnectionUnsupported, TransactionRequired, EnqueueContended, and what ``prepare`` and
    the plan raise; on an asynchronous connection when the result is awaited.
    """
    if isinstance(conn, Connection):
        operation = prepare()
        _check_transaction(conn, operation)
        return send(conn, operation.plan, operation.guard)
    if isinstance(conn, AsyncConnection):
        return _perform_async(conn, prepare)
    raise ConnectionUnsupported(
        f"jobs are enqueued on a psycopg 3 connection, and a {type(conn).__qualname__} was given"
    )


async def _perform_async(conn: AsyncConnection[Any], prepare: Callable[[], Operation[T]]) -> T:
    operation = prepare()
    _check_transaction(conn, operation)
    return await send_async(conn, operation.plan, operation.guard)


def _check_transaction(
    conn: Connection[Any] | AsyncConnection[Any], operation: Operation[Any]
) -> None:
    if not operation.transactional or not (_idle(conn) and conn.autocommit):
        return
    # In a pipeline the BEGIN of a block may still be under way.
    if _pipelined(conn) and bool(getattr(conn, "_num_transactions", False)):
        return
    raise TransactionRequired(
        "the connection is in autocommit mode and in no transaction, so that the job would not "
        "share the fate of anything"
    )


def send(conn: Connection[Any], plan: Callable[[], Plan[T]], guard: Guard = Guard.NONE) -> T:
    """Run an operation on a synchronous connection. Never ends the caller's transaction."""
    pauses = _pauses()
    while True:
        try:
            return _send_once(conn, plan(), guard)
        except _CONTENTION as error:
            pause = next(pauses, None)
            if pause is None or not _may_repeat(conn, guard, error):
                raise _contended(error) from error
        except UnicodeEncodeError as error:
            raise _unspeakable(conn, error) from error
        time.sleep(pause)


async def send_async(
    conn: AsyncConnection[Any],
    plan: Callable[[], Plan[T]],
    guard: Guard = Guard.NONE,
) -> T:
    """Run an operation on an asynchronous connection. Never ends the caller's transaction."""
    pauses = _pauses()
    while True:
        try:
            return await _send_once_async(conn, plan(), guard)
        except _CONTENTION as error:
            pause = next(pauses, None)
            if pause is None or not _may_repeat(conn, guard, error):
                raise _contended(error) from error
        except UnicodeEncodeError as error:
            raise _unspeakable(conn, error) from error
        await asyncio.sleep(pause)


def _send_once(conn: Connection[Any], plan: Plan[T], guard: Guard) -> T:
    with ExitStack() as stack:
        if guard is not Guard.NONE:
            if _begins(conn, guard):
                sql.read_isolation(conn)
            if _wraps(conn, guard):
                stack.enter_context(conn.transaction())
        return drive(conn, plan)


async def _send_once_async(conn: AsyncConnection[Any], plan: Plan[T], guard: Guard) -> T:
    async with AsyncExitStack() as stack:
        if guard is not Guard.NONE:
            if _begins(conn, guard):
                await sql.read_isolation_async(conn)
            if _wraps(conn, guard):
                await stack.enter_async_context(conn.transaction())
        return await drive(conn, plan)


def _pauses() -> Iterator[float]:
    """Yield the seconds to wait before each further try."""
    for longest in _PAUSES:
        yield random.uniform(0, longest)


def _may_repeat(
    conn: Connection[Any] | AsyncConnection[Any], guard: Guard, error: psycopg.Error
) -> bool:
    """Whether a deadlock hit a transaction of our own, which is rolled back and may be run again.

    A second insert try is out of the order in which two bulk enqueues wait for each other.
    """
    return (
        isinstance(error, errors.DeadlockDetected)
        and guard is Guard.TRANSACTION
        and conn.autocommit
        and _idle(conn)
        and not _pipelined(conn)
    )


def _pipelined(conn: Connection[Any] | AsyncConnection[Any]) -> bool:
    return conn.info.pipeline_status != PipelineStatus.OFF


def _idle(conn: Connection[Any] | AsyncConnection[Any]) -> bool:
    return conn.info.transaction_status == TransactionStatus.IDLE


def _begins(conn: Connection[Any] | AsyncConnection[Any], guard: Guard) -> bool:
    """Whether the caller's transaction must be begun first, by any statement.

    ``conn.transaction()`` would otherwise begin it, and so commit it at its end.
    """
    return guard is Guard.SAVEPOINT and _idle(conn) and not conn.autocommit


def _wraps(conn: Connection[Any] | AsyncConnection[Any], guard: Guard) -> bool:
    """Whether a transaction of our own, or a savepoint in the caller's, goes around.

    In autocommit mode a pipeline that is not idle is in an implicit transaction of the server's,
    which lasts until it is synchronised: that will do.
    """
    return guard is Guard.SAVEPOINT or (_idle(conn) and conn.autocommit)


def _contended(error: psycopg.Error) -> EnqueueContended:
    message = error.diag.message_primary or str(error).partition("\n")[0]
    return EnqueueContended(f"the database gave up waiting for other sessions: {message}")


def _unspeakable(
    conn: Connection[Any] | AsyncConnection[Any], error: UnicodeEncodeError
) -> UnicodeEncodeError | ConnectionUnsupported:
    """What is sent has been proven to have a UTF-8 form, so it is the encoding of the session."""
    encoding = conn.info.encoding
    if encoding in ("utf-8", "ascii"):  # what psycopg sends as UTF-8: not about what we send
        return error
    return ConnectionUnsupported(
        f"the client_encoding of the connection, {encoding}, lacks a character of the job",
        fix="Connect with client_encoding=utf8.",
    )
