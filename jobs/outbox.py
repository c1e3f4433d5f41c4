"""What operators ask of the outbox: what waits, what is stuck and why, and to have it tried again.

All functions take a connection to the database of the outbox, of either flavour: a synchronous one
returns the answer, an asynchronous one an awaitable of it. They open no transaction of their own.
"""

from __future__ import annotations

from collections.abc import Coroutine, Iterable
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Literal, NamedTuple, TypeAlias, get_args, overload
from uuid import UUID

from psycopg import AsyncConnection, Connection

from jobs.errors import ControlInvalid, JobNotFound, PageInvalid
from jobs.flavour import Plan, call, drive
from jobs_sql import outbox as outbox_sql
from jobs_sql import staged as sql

__all__ = [
    "OutboxStats",
    "StagedPage",
    "StagedRecord",
    "StagedRow",
    "discard",
    "get_staged",
    "list_staged",
    "outbox_stats",
    "prune",
    "retry",
]

Conn: TypeAlias = Connection[Any] | AsyncConnection[Any]
State: TypeAlias = Literal["waiting", "parked"]

MAX_PAGE: Final = 1_000
MAX_ROWS: Final = 10_000
"""Most ids in one call, and how far rows are counted."""

# Longer than anything was kept, and its beginning is an instant that the server can tell.
_EVER: Final = timedelta(days=36_500)


class StagedRow(NamedTuple):
    """One row of a page.

    Attributes:
        id: The staged id, which will be that of the job.
        staged_at: When it was staged, in UTC.
        state: ``waiting``; ``held back`` after a refusal, until ``retry_at``, with all behind it;
            ``parked`` after too many.
        queue, name, tenant: Of the job.
        refusals: How often the target refused this very row.
        retry_at: When it is tried again, in UTC, if it is held back.
        last_error: Why it could not be published the last time that it could not.
    """

    id: UUID
    staged_at: datetime
    state: str
    queue: str
    name: str
    tenant: str
    refusals: int
    retry_at: datetime | None
    last_error: str | None


class StagedPage(NamedTuple):
    """A page of the outbox in the order of publishing.

    Attributes:
        rows: At most as many as asked for.
        next_cursor: Where the next page begins; None after the last one.
    """

    rows: list[StagedRow]
    next_cursor: tuple[datetime, UUID] | None


class StagedRecord(NamedTuple):
    """A whole row of the outbox.

    Attributes:
        state: As of `StagedRow`, or ``published``.
        published_at, published_by: When and by which relay it was published.
        outcome: ``created``, ``existing`` or ``sent``, once it is published.
        published_as: The job that does the work, once it is published: its own id, or that of the
            job which had the idempotency key.
        input: The payload as JSON text.

    The others are as of `StagedRow`, or as they were given to the stage.
    """

    id: UUID
    run_id: UUID
    staged_at: datetime
    state: str
    queue: str
    name: str
    tenant: str
    priority: int
    run_at: datetime | None
    delay: timedelta
    idempotency_key: str | None
    traceparent: str | None
    enqueued_by: str | None
    refusals: int
    retry_at: datetime | None
    parked_at: datetime | None
    last_error: str | None
    published_at: datetime | None
    published_by: str | None
    outcome: str | None
    published_as: UUID | None
    input: str


class OutboxStats(NamedTuple):
    """How the outbox stands.

    Attributes:
        waiting: Rows to be published; counted up to 10,000.
        parked: Rows that were set aside; counted up to 10,000.
        oldest_wait: How long the first of those that wait has been there.
        head_id: That row.
        head_error: Why it could not be published, if it could not.
        head_retry_at: When it is tried again, if it is held back.
        holder: The relay that took the lease last.
        lease_left: How long it has it still; None where nobody has.
    """

    waiting: int
    parked: int
    oldest_wait: timedelta | None
    head_id: UUID | None
    head_error: str | None
    head_retry_at: datetime | None
    holder: str | None
    lease_left: timedelta | None


@overload
def list_staged(
    conn: Connection[Any],
    *,
    state: State | None = None,
    cursor: tuple[datetime, UUID] | None = None,
    page_size: int = 100,
) -> StagedPage: ...
@overload
def list_staged(
    conn: AsyncConnection[Any],
    *,
    state: State | None = None,
    cursor: tuple[datetime, UUID] | None = None,
    page_size: int = 100,
) -> Coroutine[Any, Any, StagedPage]: ...
def list_staged(
    conn: Conn,
    *,
    state: State | None = None,
    cursor: tuple[datetime, UUID] | None = None,
    page_size: int = 100,
) -> StagedPage | Coroutine[Any, Any, StagedPage]:
    """List what is not published, in the order of publishing.

    Args:
        conn: A connection of either flavour.
        state: Only what waits (held back or not), or only what was set aside.
        cursor: Begin behind that row: ``next_cursor`` of a page.
        page_size: 1 to 1,000 rows.

    Raises:
        PageInvalid: An argument is unusable. Nothing was sent.
    """
    if state is not None and state not in get_args(State):
        raise PageInvalid(f"state must be one of {', '.join(get_args(State))}, not {state!r:.200}")
    if isinstance(page_size, bool) or not isinstance(page_size, int):
        raise PageInvalid(f"page_size must be a whole number, not {page_size!r:.200}")
    if not 1 <= page_size <= MAX_PAGE:
        raise PageInvalid(f"page_size must be from 1 to {MAX_PAGE}, not {page_size}")
    if cursor is not None:
        _check_cursor(cursor)
    return drive(conn, _list(state, cursor, page_size))


def _check_cursor(cursor: object) -> None:
    match cursor:
        case (datetime() as at, UUID()) if at.utcoffset() is not None:
            return
    raise PageInvalid(f"cursor must be the next_cursor of a page, not {cursor!r:.200}")


def _list(
    state: State | None, cursor: tuple[datetime, UUID] | None, page_size: int
) -> Plan[StagedPage]:
    at, id = (None, None) if cursor is None else cursor
    found = yield from call(
        sql.list_outbox,
        sql.list_outbox_async,
        waiting=state != "parked",
        parked=state != "waiting",
        after_at=at,
        after_id=id,
        most=page_size + 1,
    )
    rows = [
        StagedRow(*row)._replace(
            staged_at=row.staged_at.astimezone(UTC), retry_at=_utc(row.retry_at)
        )
        for row in found[:page_size]
    ]
    more = len(found) > page_size
    return StagedPage(rows, (rows[-1].staged_at, rows[-1].id) if more else None)


def _utc(instant: datetime | None) -> datetime | None:
    return None if instant is None else instant.astimezone(UTC)


@overload
def get_staged(conn: Connection[Any], id: UUID) -> StagedRecord: ...
@overload
def get_staged(conn: AsyncConnection[Any], id: UUID) -> Coroutine[Any, Any, StagedRecord]: ...
def get_staged(conn: Conn, id: UUID) -> StagedRecord | Coroutine[Any, Any, StagedRecord]:
    """Return one row of the outbox, published or not.

    Raises:
        JobNotFound: The outbox has no row of the id (any more).
        ControlInvalid: It is no id. Nothing was sent.
    """
    _checked_ids([id])
    return drive(conn, _get(id))


def _get(id: UUID) -> Plan[StagedRecord]:
    row = yield from call(sql.get_staged, sql.get_staged_async, id=id)
    if row is None:
        raise JobNotFound(f"the outbox has no row of the id {id}")
    return StagedRecord(*row)._replace(
        staged_at=row.staged_at.astimezone(UTC),
        run_at=_utc(row.run_at),
        retry_at=_utc(row.retry_at),
        parked_at=_utc(row.parked_at),
        published_at=_utc(row.published_at),
    )


@overload
def outbox_stats(conn: Connection[Any]) -> OutboxStats: ...
@overload
def outbox_stats(conn: AsyncConnection[Any]) -> Coroutine[Any, Any, OutboxStats]: ...
def outbox_stats(conn: Conn) -> OutboxStats | Coroutine[Any, Any, OutboxStats]:
    """Say how much waits, since when and why, how much was set aside, and who publishes."""
    return drive(conn, _stats())


def _stats() -> Plan[OutboxStats]:
    row = yield from call(sql.read_outbox_stats, sql.read_outbox_stats_async, most=MAX_ROWS)
    if row is None:
        raise ControlInvalid(
            "the row of the lease is gone from jobs.relay, so that no relay can publish",
            fix="Put it back, as schema/0004_outbox.sql does at its end.",
        )
    return OutboxStats(*row)._replace(head_retry_at=_utc(row.head_retry_at))


@overload
def retry(conn: Connection[Any], ids: Iterable[UUID]) -> dict[UUID, str]: ...
@overload
def retry(
    conn: AsyncConnection[Any], ids: Iterable[UUID]
) -> Coroutine[Any, Any, dict[UUID, str]]: ...
def retry(
    conn: Conn, ids: Iterable[UUID]
) -> dict[UUID, str] | Coroutine[Any, Any, dict[UUID, str]]:
    """Have refused rows tried again at once, held back or set aside, with no refusal counted.

    A row takes its old place in the order, so before all that was staged after it.

    Args:
        conn: A connection of either flavour.
        ids: At most 10,000 rows.

    Returns:
        For each id: ``waiting``, ``published`` (before, nothing was changed) or ``unknown``.

    Raises:
        ControlInvalid: An argument is unusable. Nothing was sent.

    Locks the rows, in order of id; waits for a relay that marks one of them.
    """
    return drive(conn, _retry(_checked_ids(ids)))


def _retry(ids: list[UUID]) -> Plan[dict[UUID, str]]:
    rows = yield from call(sql.retry_staged, sql.retry_staged_async, ids=ids)
    states = {row.id: row.state for row in rows}
    return {id: states.get(id, "unknown") for id in ids}


@overload
def discard(conn: Connection[Any], ids: Iterable[UUID]) -> list[UUID]: ...
@overload
def discard(conn: AsyncConnection[Any], ids: Iterable[UUID]) -> Coroutine[Any, Any, list[UUID]]: ...
def discard(conn: Conn, ids: Iterable[UUID]) -> list[UUID] | Coroutine[Any, Any, list[UUID]]:
    """Remove rows that were set aside: they will never be published.

    Args:
        conn: A connection of either flavour.
        ids: At most 10,000 rows.

    Returns:
        Those that were removed. The others do not exist, or have not been set aside.

    Raises:
        ControlInvalid: An argument is unusable. Nothing was sent.
    """
    return drive(conn, _discard(_checked_ids(ids)))


def _discard(ids: list[UUID]) -> Plan[list[UUID]]:
    gone = set((yield from call(sql.discard_staged, sql.discard_staged_async, ids=ids)))
    return [id for id in ids if id in gone]


@overload
def prune(conn: Connection[Any], *, keep: timedelta, most: int = 1_000) -> int: ...
@overload
def prune(
    conn: AsyncConnection[Any], *, keep: timedelta, most: int = 1_000
) -> Coroutine[Any, Any, int]: ...
def prune(conn: Conn, *, keep: timedelta, most: int = 1_000) -> int | Coroutine[Any, Any, int]:
    """Remove published rows that were published longer ago than ``keep``, the oldest first.

    A relay does so by itself; this is for one that keeps them for ever.

    Args:
        conn: A connection of either flavour.
        keep: How long they are kept for audit.
        most: 1 to 10,000 rows; where so many were removed there may be more.

    Returns:
        How many were removed.

    Raises:
        ControlInvalid: An argument is unusable. Nothing was sent.

    Passes rows that others have locked.
    """
    if not isinstance(keep, timedelta) or keep < timedelta(0):
        raise ControlInvalid(f"keep must be a timedelta of at least 0, not {keep!r:.200}")
    if isinstance(most, bool) or not isinstance(most, int) or not 1 <= most <= MAX_ROWS:
        raise ControlInvalid(f"most must be a whole number from 1 to {MAX_ROWS}, not {most!r:.200}")
    keep = min(keep, _EVER)
    plan = call(outbox_sql.prune_outbox, outbox_sql.prune_outbox_async, keep=keep, most=most)
    return drive(conn, plan)


def _checked_ids(ids: Iterable[UUID]) -> list[UUID]:
    if isinstance(ids, str | bytes) or not isinstance(ids, Iterable):
        raise ControlInvalid(f"ids must be several UUIDs, not {ids!r:.200}")
    asked = list(dict.fromkeys(ids))
    for id in asked:
        if not isinstance(id, UUID):
            raise ControlInvalid(f"the id of a staged job is a UUID, not {id!r:.200}")
    if len(asked) > MAX_ROWS:
        raise ControlInvalid(f"at most {MAX_ROWS:,} rows at a time, not {len(asked):,}")
    return asked
