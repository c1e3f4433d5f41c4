"""Looking at jobs: one, a page of them, how many are where, how they ended, and at the workers.

Every function takes a synchronous connection and returns its result, or an asynchronous one and
returns an awaitable of it. All only read, lock nothing, and leave transactions to the caller. Times
are aware datetimes in UTC.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Literal, NamedTuple, TypeAlias, cast, get_args, overload
from uuid import UUID

from psycopg import AsyncConnection, Connection

from jobs.errors import ConfigError, JobNotFound, PageInvalid, UnknownState
from jobs.flavour import Plan, call, drive
from jobs.fleet import RunningJob, WorkerRecord, list_workers
from jobs_sql import due as due_sql
from jobs_sql import inspect as sql
from jobs_sql import listing

__all__ = [
    "MAX_PAGE_SIZE",
    "Attempt",
    "DueAge",
    "JobRecord",
    "JobState",
    "OutcomeCount",
    "Page",
    "QueueStats",
    "RunningJob",
    "WorkerRecord",
    "due_ages",
    "get_job",
    "list_attempts",
    "list_jobs",
    "list_workers",
    "outcome_counts",
    "queue_stats",
]

MAX_PAGE_SIZE = 1000
# Longer than anything was counted, and its beginning is an instant that the server can tell.
_EVER: Final = timedelta(days=36_500)

JobState: TypeAlias = Literal[
    "ready",
    "delayed",
    "running",
    "suspended",
    "blocked",
    "completed",
    "failed",
    "dead",
    "cancelled",
]
_STATES = frozenset(get_args(JobState))
_UNSUCCESSFUL = frozenset({"failed", "dead", "cancelled"})


class JobRecord(NamedTuple):
    """A job as it is in the database.

    Attributes:
        id: The job's id.
        run_id: Identity of the run, the same in every attempt.
        queue: The queue it was enqueued to.
        name: The job's name.
        tenant: Tenant it was enqueued for; None for none.
        state: One of `JobState`. ``delayed`` is a ready job whose time has not come.
        priority: 0 runs first, 3 last.
        attempt: Attempts begun and not given back.
        max_attempts: The attempt limit.
        claims: How often it was claimed: the fencing token of the newest claim.
        worker: Label of the process that holds it, or that settled it.
        available_at: Not claimed before this instant; None once it is finished.
        claimed_at: When the newest claim was made, if any was.
        lease_expires_at: End of the lease as last renewed; None unless running.
        cancel_requested_at: When an operator asked to cancel it, if ever.
        cancel_reason: Why, as the operator put it.
        created_at: When it was enqueued, by the database's clock.
        settled_at: When it ended; None while it is live.
        stop_reason: Why a job that did not complete was ended.
        last_error: Type and message of the newest failed attempt.
        idempotency_scope: ``live`` or ``waiting``.
        idempotency_key: The key it was enqueued with, if any.
        concurrency_key: The key that limits how many run at the same time, if any.
        traceparent: W3C trace parent of the enqueue, if one was given.
        enqueued_by: Who asked, for audit. Never an authority.
        input: The payload as JSON text. None in a page, which does not read it.
        progress: How far the newest run that said so was, from 0 to 1.
        progress_message: What it said of it.
        result: What the function of a completed job returned, as JSON text; None for nothing, and
            in a page.
    """

    id: UUID
    run_id: UUID
    queue: str
    name: str
    tenant: str | None
    state: JobState
    priority: int
    attempt: int
    max_attempts: int
    claims: int
    worker: str | None
    available_at: datetime | None
    claimed_at: datetime | None
    lease_expires_at: datetime | None
    cancel_requested_at: datetime | None
    cancel_reason: str | None
    created_at: datetime
    settled_at: datetime | None
    stop_reason: str | None
    last_error: str | None
    idempotency_scope: str
    idempotency_key: str | None
    concurrency_key: str | None
    traceparent: str | None
    enqueued_by: str | None
    input: str | None = None
    progress: float | None = None
    progress_message: str | None = None
    result: str | None = None


class Page(NamedTuple):
    """A page of jobs, and the cursor of the next one: None at the end."""

    jobs: list[JobRecord]
    next_cursor: UUID | None


class Attempt(NamedTuple):
    """One failed attempt: which claim of which attempt, when, by whom, and the error."""

    job_id: UUID
    claims: int
    attempt: int
    failed_at: datetime
    worker: str | None
    error_type: str
    error_message: str
    traceback: str | None


class QueueStats(NamedTuple):
    """How many jobs of a queue are where. Each live job is counted in exactly one state.

    ``other`` counts live jobs in states that this version does not know; ``dead`` the dead letters
    that retention has kept; ``oldest_ready`` is how long the oldest due job has waited, None where
    none is due.
    """

    queue: str
    ready: int
    delayed: int
    running: int
    suspended: int
    blocked: int
    other: int
    dead: int
    oldest_ready: timedelta | None


class DueAge(NamedTuple):
    """How long the oldest due job of a queue and priority has waited."""

    queue: str
    priority: int
    oldest: timedelta


class OutcomeCount(NamedTuple):
    """How often jobs of a name ended (or failed, or were rescued) in one way."""

    name: str
    outcome: str
    amount: int


@overload
def get_job(conn: Connection[Any], id: UUID) -> JobRecord: ...
@overload
def get_job(conn: AsyncConnection[Any], id: UUID) -> Coroutine[Any, Any, JobRecord]: ...
def get_job(
    conn: Connection[Any] | AsyncConnection[Any], id: UUID
) -> JobRecord | Coroutine[Any, Any, JobRecord]:
    """One job, live or finished, with its payload.

    A job that is just being settled is seen on one side of that or the other, never on neither.

    Raises:
        JobNotFound: No job has the id, or retention has removed it.
        UnknownState: A newer version of the library gave it a state that this one does not know.
    """
    return drive(conn, _get_job(id))


def _get_job(id: UUID) -> Plan[JobRecord]:
    row = yield from call(sql.get_job, sql.get_job_async, id=id)
    if row is None:
        raise JobNotFound(f"no job has the id {id}")
    return _record(row, row.input, row.result)


@overload
def list_attempts(conn: Connection[Any], id: UUID) -> list[Attempt]: ...
@overload
def list_attempts(conn: AsyncConnection[Any], id: UUID) -> Coroutine[Any, Any, list[Attempt]]: ...
def list_attempts(
    conn: Connection[Any] | AsyncConnection[Any], id: UUID
) -> list[Attempt] | Coroutine[Any, Any, list[Attempt]]:
    """The failed attempts of a job, oldest first; empty for a job unknown or without failures."""
    return drive(conn, _list_attempts(id))


def _list_attempts(id: UUID) -> Plan[list[Attempt]]:
    rows = yield from call(sql.list_attempts, sql.list_attempts_async, job_id=id)
    return [Attempt(*row)._replace(failed_at=row.failed_at.astimezone(UTC)) for row in rows]


@overload
def list_jobs(
    conn: Connection[Any],
    *,
    state: JobState | None = None,
    queue: str | None = None,
    name: str | None = None,
    tenant: str | None = None,
    cursor: UUID | None = None,
    newest_first: bool = True,
    page_size: int = 100,
) -> Page: ...
@overload
def list_jobs(
    conn: AsyncConnection[Any],
    *,
    state: JobState | None = None,
    queue: str | None = None,
    name: str | None = None,
    tenant: str | None = None,
    cursor: UUID | None = None,
    newest_first: bool = True,
    page_size: int = 100,
) -> Coroutine[Any, Any, Page]: ...
def list_jobs(
    conn: Connection[Any] | AsyncConnection[Any],
    *,
    state: JobState | None = None,
    queue: str | None = None,
    name: str | None = None,
    tenant: str | None = None,
    cursor: UUID | None = None,
    newest_first: bool = True,
    page_size: int = 100,
) -> Page | Coroutine[Any, Any, Page]:
    """A page of live and finished jobs in order of their ids, without payloads.

    Ids made by the library are in order of creation. A walk along ``next_cursor`` sees every job
    that existed throughout exactly once and ends, whatever is inserted, settled or removed
    meanwhile; with the other order it goes back from any cursor.

    Args:
        conn: A connection of either flavour.
        state: Only jobs in this state.
        queue: Only jobs of this queue.
        name: Only jobs of this name.
        tenant: Only jobs of this tenant; "" for those without one.
        cursor: The last id of the page before, whether or not its job still exists.
        newest_first: Highest id first.
        page_size: 1 to 1,000 jobs.

    Raises:
        PageInvalid: The size, the state or the cursor is none. Nothing was read.
        UnknownState: As for `get_job`.
    """
    if type(page_size) is not int or not 1 <= page_size <= MAX_PAGE_SIZE:
        raise PageInvalid(f"page_size must be 1 to {MAX_PAGE_SIZE}, not {page_size!r}")
    if state is not None and state not in _STATES:
        raise PageInvalid(f"state must be one of {', '.join(get_args(JobState))}, not {state!r}")
    if cursor is not None and not isinstance(cursor, UUID):
        raise PageInvalid(f"cursor must be the id of a job (a UUID), not {cursor!r}")
    for field, value in (("queue", queue), ("name", name), ("tenant", tenant)):
        if value is not None and (not isinstance(value, str) or not _storable(value)):
            raise PageInvalid(f"{field} must be a text that a job could have, not {value!r}")
    filters = {"cursor": cursor, "queue": queue, "name": name, "tenant": tenant}
    return drive(conn, _list_jobs(newest_first, page_size, state, filters))


# By whether only unsuccessful jobs are asked for, and by order.
_LISTINGS: Final[dict[tuple[bool, bool], tuple[Callable[..., Any], Callable[..., Any]]]] = {
    (False, True): (listing.list_jobs_newest, listing.list_jobs_newest_async),
    (False, False): (listing.list_jobs_oldest, listing.list_jobs_oldest_async),
    (True, True): (listing.list_unsuccessful_newest, listing.list_unsuccessful_newest_async),
    (True, False): (listing.list_unsuccessful_oldest, listing.list_unsuccessful_oldest_async),
}


def _list_jobs(
    newest_first: bool, page_size: int, state: str | None, filters: dict[str, Any]
) -> Plan[Page]:
    statements = _LISTINGS[state in _UNSUCCESSFUL, newest_first]
    # One more than asked tells whether there is a next page.
    rows = yield from call(*statements, state=state, page_size=page_size + 1, **filters)
    jobs = [_record(row) for row in rows[:page_size]]
    return Page(jobs, jobs[-1].id if len(rows) > page_size else None)


@overload
def queue_stats(conn: Connection[Any]) -> list[QueueStats]: ...
@overload
def queue_stats(conn: AsyncConnection[Any]) -> Coroutine[Any, Any, list[QueueStats]]: ...
def queue_stats(
    conn: Connection[Any] | AsyncConnection[Any],
) -> list[QueueStats] | Coroutine[Any, Any, list[QueueStats]]:
    """How many jobs of each queue are in each state, in order of the queue's name.

    Queues with a live or a dead job only. Reads each live job once, and no completed one.
    """
    return drive(conn, _queue_stats())


def _queue_stats() -> Plan[list[QueueStats]]:
    rows = yield from call(sql.read_queue_stats, sql.read_queue_stats_async)
    return [
        QueueStats(*row[:-1], None if seconds is None else timedelta(seconds=seconds))
        for row in rows
        for seconds in [row.oldest_ready_seconds]
    ]


@overload
def due_ages(conn: Connection[Any]) -> list[DueAge]: ...
@overload
def due_ages(conn: AsyncConnection[Any]) -> Coroutine[Any, Any, list[DueAge]]: ...
def due_ages(
    conn: Connection[Any] | AsyncConnection[Any],
) -> list[DueAge] | Coroutine[Any, Any, list[DueAge]]:
    """How long the oldest due job of each queue and priority has waited, in order of both.

    Where a low priority starves, this is where it shows. A few index look-ups, however many jobs
    wait; queues and priorities in which nothing is due are left out.
    """
    return drive(conn, _due_ages())


def _due_ages() -> Plan[list[DueAge]]:
    rows = yield from call(due_sql.read_due_ages, due_sql.read_due_ages_async)
    return [DueAge(queue, priority, timedelta(seconds=age)) for queue, priority, age in rows]


@overload
def outcome_counts(conn: Connection[Any], since: timedelta) -> list[OutcomeCount]: ...
@overload
def outcome_counts(
    conn: AsyncConnection[Any], since: timedelta
) -> Coroutine[Any, Any, list[OutcomeCount]]: ...
def outcome_counts(
    conn: Connection[Any] | AsyncConnection[Any], since: timedelta
) -> list[OutcomeCount] | Coroutine[Any, Any, list[OutcomeCount]]:
    """How jobs ended in the time given (whole minutes, the one it begins in included).

    Raises:
        ConfigError: ``since`` is negative.
    """
    if since < timedelta(0):
        raise ConfigError(f"since must not be negative, not {since}")
    return drive(conn, _outcome_counts(min(since, _EVER)))


def _outcome_counts(since: timedelta) -> Plan[list[OutcomeCount]]:
    rows = yield from call(sql.count_outcomes, sql.count_outcomes_async, since=since)
    return [OutcomeCount(*row) for row in rows]


_Row: TypeAlias = (
    sql.GetJobRow
    | listing.ListJobsNewestRow
    | listing.ListJobsOldestRow
    | listing.ListUnsuccessfulNewestRow
    | listing.ListUnsuccessfulOldestRow
)


def _record(row: _Row, input: str | None = None, result: str | None = None) -> JobRecord:
    if row.state not in _STATES:
        raise UnknownState(f"job {row.id} is in the state {row.state!r}")
    return JobRecord(
        id=row.id,
        run_id=row.run_id,
        queue=row.queue,
        name=row.name,
        tenant=row.tenant or None,
        state=cast(JobState, row.state),
        priority=row.priority,
        attempt=row.attempt,
        max_attempts=row.max_attempts,
        claims=row.claims,
        worker=row.worker,
        available_at=_utc(row.available_at),
        claimed_at=_utc(row.claimed_at),
        lease_expires_at=_utc(row.lease_expires_at),
        cancel_requested_at=_utc(row.cancel_requested_at),
        cancel_reason=row.cancel_reason,
        progress=row.progress,
        progress_message=row.progress_message,
        created_at=row.created_at.astimezone(UTC),
        settled_at=_utc(row.settled_at),
        stop_reason=row.stop_reason,
        last_error=row.last_error,
        idempotency_scope=row.idempotency_scope,
        idempotency_key=row.idempotency_key,
        concurrency_key=row.concurrency_key,
        traceparent=row.traceparent,
        enqueued_by=row.enqueued_by,
        input=input,
        result=result,
    )


def _utc(instant: datetime | None) -> datetime | None:
    return None if instant is None else instant.astimezone(UTC)


def _storable(text: str) -> bool:
    try:
        return b"\x00" not in text.encode()
    except UnicodeEncodeError:
        return False
