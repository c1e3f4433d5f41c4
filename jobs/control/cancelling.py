"""Cancelling jobs, whether they wait or run."""

from __future__ import annotations

from collections.abc import Coroutine, Iterable
from datetime import timedelta
from typing import Any, Final, Literal, NamedTuple, cast, overload
from uuid import UUID

from psycopg import AsyncConnection, Connection

from jobs.control.asking import (
    PATIENCE,
    Conn,
    alone,
    check_patience,
    check_text,
    checked_ids,
    in_order,
    patiently,
)
from jobs.errors import JobBusy, JobNotCancellable, JobNotFound
from jobs.flavour import Plan, call, drive
from jobs_sql import control as sql
from jobs_sql.slot import promote_keys, promote_keys_async
from jobs_sql.wake import wake_queue, wake_queue_async

_REASON_BYTES: Final = 1_000


class Cancellation(NamedTuple):
    """What became of one job that was to be cancelled.

    Attributes:
        id: The job.
        outcome: ``cancelled``: it waited, or its worker had let its lease lapse, and it has ended.
            ``requested``: it runs, and its worker is told with the next renewal of its lease. It
            ends as cancelled, unless its work is done by then: then as completed. ``finished``: it
            had ended before. ``busy``: another session held its row all the time. ``unknown``.
        state: The state it is in now; None where it is busy or unknown.
    """

    id: UUID
    outcome: Literal["cancelled", "requested", "finished", "busy", "unknown"]
    state: str | None


@overload
def cancel(
    conn: Connection[Any], id: UUID, *, reason: str | None = None, patience: timedelta = PATIENCE
) -> Cancellation: ...
@overload
def cancel(
    conn: AsyncConnection[Any],
    id: UUID,
    *,
    reason: str | None = None,
    patience: timedelta = PATIENCE,
) -> Coroutine[Any, Any, Cancellation]: ...
def cancel(
    conn: Conn, id: UUID, *, reason: str | None = None, patience: timedelta = PATIENCE
) -> Cancellation | Coroutine[Any, Any, Cancellation]:
    """Cancel a live job.

    One that waits ends at once. A running one is flagged, and its worker cancels it at the next
    renewal of its lease: an asynchronous function gets ``CancelledError``, one in a thread sees it
    in ``run.cancelled``. It ends with its own settle or the lapse of its lease, and is never tried
    again. If its function returns all the same, the job is completed: the work has been done.

    Args:
        conn: A connection of either flavour.
        id: The job.
        reason: Why, kept with the job; at most 1,000 bytes.
        patience: How long to ask again while another session holds its row.

    Returns:
        The outcome ``cancelled`` or ``requested``. Asking again for a running job changes nothing.

    Raises:
        JobNotCancellable: It has ended before.
        JobNotFound: No job has the id.
        JobBusy: Its row was locked all the time.
        ControlInvalid: An argument is unusable. Nothing was sent.

    Locks the row of the job; waits for no lock. Jobs that wait for the same concurrency key are let
    out at once on a connection in autocommit mode; in a transaction a worker does so, within 5
    seconds of its commit.
    """
    return drive(conn, _cancel_one(_cancel_many([id], reason, patience, alone(conn))))


def _cancel_one(plan: Plan[list[Cancellation]]) -> Plan[Cancellation]:
    (done,) = yield from plan
    if done.outcome == "unknown":
        raise JobNotFound(f"no job has the id {done.id}")
    if done.outcome == "busy":
        raise JobBusy(f"job {done.id} stayed locked by another session", id=done.id)
    if done.outcome == "finished":
        state = str(done.state)
        raise JobNotCancellable(f"job {done.id} has ended as {state}", id=done.id, state=state)
    return done


@overload
def cancel_many(
    conn: Connection[Any],
    ids: Iterable[UUID],
    *,
    reason: str | None = None,
    patience: timedelta = PATIENCE,
) -> list[Cancellation]: ...
@overload
def cancel_many(
    conn: AsyncConnection[Any],
    ids: Iterable[UUID],
    *,
    reason: str | None = None,
    patience: timedelta = PATIENCE,
) -> Coroutine[Any, Any, list[Cancellation]]: ...
def cancel_many(
    conn: Conn,
    ids: Iterable[UUID],
    *,
    reason: str | None = None,
    patience: timedelta = PATIENCE,
) -> list[Cancellation] | Coroutine[Any, Any, list[Cancellation]]:
    """Cancel jobs as `cancel` does, in one statement, and say what became of each.

    Args:
        conn: A connection of either flavour.
        ids: Up to 10,000 jobs.
        reason: As for `cancel`, for all of them.
        patience: How long to ask again for those whose rows other sessions hold.

    Returns:
        One answer for each id, in their order.

    Raises:
        ControlInvalid: An argument is unusable. Nothing was sent.
    """
    return drive(conn, _cancel_many(ids, reason, patience, alone(conn)))


def _cancel_many(
    ids: Iterable[UUID], reason: str | None, patience: timedelta, committed: bool
) -> Plan[list[Cancellation]]:
    asked = checked_ids(ids)
    if reason is not None:
        check_text("reason", reason, _REASON_BYTES)
    check_patience(patience)

    def send(some: list[UUID]) -> Plan[list[sql.CancelJobsRow]]:
        rows = yield from call(sql.cancel_jobs, sql.cancel_jobs_async, ids=some, reason=reason)
        keys = {row.vacant_key for row in rows if row.vacant_key is not None}
        if committed and keys:
            yield from _promote(sorted(keys))
        return rows

    return in_order(asked, patiently(asked, patience, send), _cancellation)


def _promote(keys: list[str]) -> Plan[None]:
    """Let those out who wait for the slots of jobs that have ended. Else a sweep does it."""
    rows = yield from call(
        promote_keys,
        promote_keys_async,
        keys=keys,
        after="",
        most=0,
        tidy=True,
        limited=[],
        limits=[],
    )
    for queue in sorted({row.queue for row in rows if row.verdict == "promoted" and row.queue}):
        yield from call(wake_queue, wake_queue_async, queue=queue)


def _cancellation(row: sql.CancelJobsRow) -> Cancellation:
    return Cancellation(row.id, cast(Any, row.verdict), row.state)
