"""Pausing and resuming queues."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from datetime import UTC, datetime
from typing import Any, NamedTuple, overload

from psycopg import AsyncConnection, Connection

from jobs.control.asking import NAME_BYTES, Conn, check_text
from jobs.flavour import Plan, call, drive
from jobs_sql import control as sql


class Pause(NamedTuple):
    """A paused queue or task.

    Attributes:
        kind: ``queue`` or ``task``.
        name: Its name.
        paused_at: Since when, in UTC.
        paused_by: Who paused it, if that was said.
    """

    kind: str
    name: str
    paused_at: datetime
    paused_by: str | None


@overload
def pause(conn: Connection[Any], queue: str, *, paused_by: str | None = None) -> bool: ...
@overload
def pause(
    conn: AsyncConnection[Any], queue: str, *, paused_by: str | None = None
) -> Coroutine[Any, Any, bool]: ...
def pause(
    conn: Conn, queue: str, *, paused_by: str | None = None
) -> bool | Coroutine[Any, Any, bool]:
    """Let no worker claim jobs of a queue until it is resumed.

    Jobs may be enqueued to it. Those that run go on and settle. One whose worker dies stays where
    it is until the queue is resumed.

    Args:
        conn: A connection of either flavour.
        queue: Its name. There need be no job or worker of it.
        paused_by: Who asks, kept with the pause; at most 255 bytes.

    Returns:
        Whether this call paused it; False where it was paused already, which stays as it was.

    Raises:
        ControlInvalid: An argument is unusable. Nothing was sent.
    """
    check_text("queue", queue, NAME_BYTES)
    if paused_by is not None:
        check_text("paused_by", paused_by, NAME_BYTES)
    return drive(conn, _changed(sql.pause_queue, sql.pause_queue_async, queue, paused_by=paused_by))


@overload
def resume(conn: Connection[Any], queue: str) -> bool: ...
@overload
def resume(conn: AsyncConnection[Any], queue: str) -> Coroutine[Any, Any, bool]: ...
def resume(conn: Conn, queue: str) -> bool | Coroutine[Any, Any, bool]:
    """Let workers claim jobs of a paused queue again.

    Returns:
        Whether this call resumed it; False where it was not paused.

    Raises:
        ControlInvalid: The name is none that a queue could have. Nothing was sent.
    """
    check_text("queue", queue, NAME_BYTES)
    return drive(conn, _changed(sql.resume_queue, sql.resume_queue_async, queue))


def _changed(
    function: Callable[..., int],
    function_async: Callable[..., Coroutine[Any, Any, int]],
    queue: str,
    **more: str | None,
) -> Plan[bool]:
    rows: int = yield from call(function, function_async, queue=queue, **more)
    return rows > 0


@overload
def pauses(conn: Connection[Any]) -> list[Pause]: ...
@overload
def pauses(conn: AsyncConnection[Any]) -> Coroutine[Any, Any, list[Pause]]: ...
def pauses(conn: Conn) -> list[Pause] | Coroutine[Any, Any, list[Pause]]:
    """What is paused, in order of kind and name."""
    return drive(conn, _pauses())


def _pauses() -> Plan[list[Pause]]:
    rows = yield from call(sql.list_pauses, sql.list_pauses_async)
    return [Pause(*row)._replace(paused_at=row.paused_at.astimezone(UTC)) for row in rows]
