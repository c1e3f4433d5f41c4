"""The worker processes that have been heard of lately. For looking at: nothing relies on it."""

from __future__ import annotations

from collections.abc import Coroutine
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple, overload
from uuid import UUID

from psycopg import AsyncConnection, Connection

from jobs.errors import PageInvalid
from jobs.flavour import Plan, call, drive
from jobs_sql import registry as sql

MAX_WORKERS: Final = 10_000
"""How many workers one call lists at most."""


class RunningJob(NamedTuple):
    """A job that a worker said it was running: its id and its name."""

    id: UUID
    name: str


class WorkerRecord(NamedTuple):
    """A worker process as it described itself at its last sign of life.

    Attributes:
        id: Made anew at each start: two processes of one name are two records.
        name: Label of the process, as on the rows of its jobs. Need not be unique.
        state: ``running``, or ``draining``: it claims nothing more and waits for what runs.
        host: Name of its host, as the host knows it.
        process: Its process id there.
        version: Version of the library that it runs.
        started_at: When it started.
        beat_at: When it was heard of last, about every 30 s.
        expires_at: When it is taken for gone unless it is heard of.
        silent_for: How long ago that was, by the database's clock.
        queues: The queues it serves, with their slots.
        in_flight: Jobs claimed and not settled yet.
        running: At most 100 of them, oldest claim first.
        claimed: Claims since its start, rescued jobs included.
        completed: Jobs that ended well.
        retried: Failed attempts that left the job ready for another.
        ended: Jobs that ended as dead or failed.
        cancelled: Jobs that ended as cancelled.
        buried: Jobs of others, whose last lease had lapsed, that its claims ended.
        released: Jobs handed back without using an attempt.
        lost: Runs whose lease was lost, so that nothing of them was recorded.
    """

    id: UUID
    name: str
    state: str
    host: str
    process: int
    version: str
    started_at: datetime
    beat_at: datetime
    expires_at: datetime
    silent_for: timedelta
    queues: dict[str, int]
    in_flight: int
    running: list[RunningJob]
    claimed: int
    completed: int
    retried: int
    ended: int
    cancelled: int
    buried: int
    released: int
    lost: int


@overload
def list_workers(conn: Connection[Any], *, limit: int = 1000) -> list[WorkerRecord]: ...
@overload
def list_workers(
    conn: AsyncConnection[Any], *, limit: int = 1000
) -> Coroutine[Any, Any, list[WorkerRecord]]: ...
def list_workers(
    conn: Connection[Any] | AsyncConnection[Any], *, limit: int = 1000
) -> list[WorkerRecord] | Coroutine[Any, Any, list[WorkerRecord]]:
    """The workers that have been heard of in the last minute and a half, in order of their names.

    A worker that stops is not listed any more; one that dies goes when its record expires. After a
    crash of the server the list is empty for up to half a minute. What a job's row says about
    ``worker`` and lease is the truth; this list is what the processes said about themselves.

    Args:
        conn: A connection of either flavour.
        limit: 1 to 10,000 workers.

    Raises:
        PageInvalid: The limit is none. Nothing was read.
    """
    if type(limit) is not int or not 1 <= limit <= MAX_WORKERS:
        raise PageInvalid(f"limit must be 1 to {MAX_WORKERS}, not {limit!r}")
    return drive(conn, _list_workers(limit))


def _list_workers(limit: int) -> Plan[list[WorkerRecord]]:
    rows = yield from call(sql.list_workers, sql.list_workers_async, most=limit)
    return [_record(row) for row in rows]


def _record(row: sql.ListWorkersRow) -> WorkerRecord:
    fields = row._asdict()
    for key in ("started_at", "beat_at", "expires_at"):
        fields[key] = fields[key].astimezone(UTC)
    fields["silent_for"] = timedelta(seconds=max(fields.pop("silent_seconds"), 0.0))
    slots, ids, names = (fields.pop(key) for key in ("slots", "running_ids", "running_names"))
    fields["queues"] = dict(zip(row.queues, slots, strict=True))
    fields["running"] = [RunningJob(*one) for one in zip(ids, names, strict=True)]
    return WorkerRecord(**fields)
