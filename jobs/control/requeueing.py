"""Making finished jobs live again."""

from __future__ import annotations

from collections.abc import Coroutine, Iterable
from datetime import datetime, timedelta
from typing import Any, Literal, NamedTuple, cast, overload
from uuid import UUID

from psycopg import AsyncConnection, Connection

from jobs.control.asking import PATIENCE, Conn, check_patience, checked_ids, in_order, patiently
from jobs.errors import ControlInvalid, InvalidInput, JobBusy, JobNotFound, JobNotRequeueable
from jobs.flavour import Plan, call, drive
from jobs.options import check_when
from jobs_sql import control as sql


class Requeueing(NamedTuple):
    """What became of one job that was to be made live again.

    Attributes:
        id: The job.
        outcome: ``requeued``: it is ready for its first attempt. Otherwise nothing has changed:
            ``live``: it has not ended. ``completed``: it ended well, and those were not asked for.
            ``duplicate``: a live job has its idempotency key. ``busy``: another session held its
            row all the time. ``unknown``.
        state: The state it is in now; None where it is unknown.
        holder: The live job with its key, where that is the reason and it could be seen.
    """

    id: UUID
    outcome: Literal["requeued", "live", "completed", "duplicate", "busy", "unknown"]
    state: str | None
    holder: UUID | None


@overload
def requeue(
    conn: Connection[Any],
    id: UUID,
    *,
    delay: timedelta | None = None,
    run_at: datetime | None = None,
    completed: bool = False,
    patience: timedelta = PATIENCE,
) -> Requeueing: ...
@overload
def requeue(
    conn: AsyncConnection[Any],
    id: UUID,
    *,
    delay: timedelta | None = None,
    run_at: datetime | None = None,
    completed: bool = False,
    patience: timedelta = PATIENCE,
) -> Coroutine[Any, Any, Requeueing]: ...
def requeue(
    conn: Conn,
    id: UUID,
    *,
    delay: timedelta | None = None,
    run_at: datetime | None = None,
    completed: bool = False,
    patience: timedelta = PATIENCE,
) -> Requeueing | Coroutine[Any, Any, Requeueing]:
    """Make a job that failed, is dead or was cancelled ready again, with all its attempts to come.

    It keeps its id, run id, payload and attempt limit. Its fencing token goes on from where it was.
    Its failed attempts stay on record.

    Args:
        conn: A connection of either flavour.
        id: The job.
        delay: How long it waits at least, by the database's clock.
        run_at: The instant before which it does not run, with a time zone. Not with ``delay``.
        completed: Whether a completed job may run once more, too.
        patience: How long to ask again while another session holds its row.

    Raises:
        JobNotRequeueable: It is live, or completed, or a live job has its idempotency key.
        JobNotFound: No job has the id.
        JobBusy: Its row was locked all the time.
        ControlInvalid: An argument is unusable. Nothing was sent.

    Locks the row of the job. Waits only for an open transaction that enqueued, or is ending, a job
    of the same idempotency key.
    """
    return drive(conn, _requeue_one(_requeue_many([id], delay, run_at, completed, patience)))


def _requeue_one(plan: Plan[list[Requeueing]]) -> Plan[Requeueing]:
    (done,) = yield from plan
    if done.outcome == "unknown":
        raise JobNotFound(f"no job has the id {done.id}")
    if done.outcome == "busy":
        raise JobBusy(f"job {done.id} stayed locked by another session", id=done.id)
    state = str(done.state)
    if done.outcome == "live":
        raise JobNotRequeueable(
            f"job {done.id} is {state}: it has not ended",
            id=done.id,
            state=state,
            fix="Wait for its end, or cancel it first.",
        )
    if done.outcome == "completed":
        raise JobNotRequeueable(
            f"job {done.id} has completed",
            id=done.id,
            state=state,
            fix="Say completed=True (--completed) to run it once more all the same.",
        )
    if done.outcome == "duplicate":
        raise JobNotRequeueable(
            f"job {done.id} cannot run beside live job {done.holder or '(just enqueued)'}, which "
            "has the same idempotency key",
            id=done.id,
            state=state,
            holder=done.holder,
            fix="Let that job do the work, or wait for its end and try again.",
        )
    return done


@overload
def requeue_many(
    conn: Connection[Any],
    ids: Iterable[UUID],
    *,
    delay: timedelta | None = None,
    run_at: datetime | None = None,
    completed: bool = False,
    patience: timedelta = PATIENCE,
) -> list[Requeueing]: ...
@overload
def requeue_many(
    conn: AsyncConnection[Any],
    ids: Iterable[UUID],
    *,
    delay: timedelta | None = None,
    run_at: datetime | None = None,
    completed: bool = False,
    patience: timedelta = PATIENCE,
) -> Coroutine[Any, Any, list[Requeueing]]: ...
def requeue_many(
    conn: Conn,
    ids: Iterable[UUID],
    *,
    delay: timedelta | None = None,
    run_at: datetime | None = None,
    completed: bool = False,
    patience: timedelta = PATIENCE,
) -> list[Requeueing] | Coroutine[Any, Any, list[Requeueing]]:
    """Make jobs live again as `requeue` does, in one statement, and say what became of each.

    Args:
        conn: A connection of either flavour.
        ids: Up to 10,000 jobs. Of several with one idempotency key one is requeued.
        delay, run_at, completed: As for `requeue`, for all of them.
        patience: How long to ask again for those whose rows other sessions hold.

    Returns:
        One answer for each id, in their order.

    Raises:
        ControlInvalid: An argument is unusable. Nothing was sent.
    """
    return drive(conn, _requeue_many(ids, delay, run_at, completed, patience))


def _requeue_many(
    ids: Iterable[UUID],
    delay: timedelta | None,
    run_at: datetime | None,
    completed: bool,
    patience: timedelta,
) -> Plan[list[Requeueing]]:
    asked = checked_ids(ids)
    try:
        check_when(delay, run_at)
    except InvalidInput as error:
        raise ControlInvalid(error.cause, fix=error.fix) from None
    if not isinstance(completed, bool):
        raise ControlInvalid(f"completed must be a bool, not {completed!r}")
    check_patience(patience)

    def send(some: list[UUID]) -> Plan[list[sql.RequeueJobsRow]]:
        return call(
            sql.requeue_jobs,
            sql.requeue_jobs_async,
            ids=some,
            run_at=run_at,
            delay=delay or timedelta(0),
            completed=completed,
        )

    return in_order(asked, patiently(asked, patience, send), _requeueing)


def _requeueing(row: sql.RequeueJobsRow) -> Requeueing:
    state = "ready" if row.verdict == "requeued" else row.state
    holder = row.holder if row.verdict == "duplicate" else None
    return Requeueing(row.id, cast(Any, row.verdict), state, holder)
