"""Writing jobs: what is sent for one, for many and for a stream, on any psycopg connection.

Each operation is a plan (see `jobs.flavour`), written once; `jobs.sending` runs it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from functools import partial
from hashlib import sha256
from itertools import repeat
from time import monotonic
from typing import Any, Final, Literal, NamedTuple, TypeAlias, TypeVar
from uuid import UUID

from jobs.errors import DuplicateJob, EnqueueContended, IsolationUnsupported
from jobs.flavour import Plan, call
from jobs.sending import Guard
from jobs_sql import bulk, conflict, wake
from jobs_sql import enqueue as sql

T = TypeVar("T")

CHUNK_ROWS: Final = 5_000
CHUNK_CHARACTERS: Final = 32 * 1024 * 1024
"""Bounds of one bulk statement: what it takes in memory, here and on the server."""

# How long before the call the job that held a key may have started or ended to be the answer of an
# enqueue that lost to it twice. It held the key during the call, so the time of the call is what
# counts, however long the inserts waited for others; this covers one that was ended in a
# transaction that was open for a while. Too much costs reading and no more: the last one is taken.
_SINCE: Final = timedelta(seconds=10)
_ISOLATION: Final = frozenset({"read committed", "read uncommitted"})

OnConflict: TypeAlias = Literal["return", "raise"]


class Enqueued(NamedTuple):
    """The answer of an enqueue.

    Attributes:
        id: The job: the new one, or the one that has the idempotency key or the id already.
        run_id: Its run id.
        status: ``"created"``, or ``"existing"`` where nothing was inserted.
    """

    id: UUID
    run_id: UUID
    status: Literal["created", "existing"]

    @property
    def created(self) -> bool:
        """Whether this call inserted the job."""
        return self.status == "created"


class Target(NamedTuple):
    """What a declaration, and the call, say of all rows alike."""

    queue: str
    name: str
    max_attempts: int
    dead_letter: bool
    idempotency_scope: str
    traceparent: str | None
    enqueued_by: str | None
    on_conflict: OnConflict = "return"
    concurrency_limit: int | None = None
    when_busy: str | None = None


class Row(NamedTuple):
    """One checked job, ready to be sent."""

    id: UUID
    run_id: UUID
    supplied: bool  # whether the caller chose the id
    tenant: str
    priority: int
    run_at: datetime | None
    delay: timedelta
    key: str | None
    input: str
    concurrency_key: str | None = None


# Enqueued(*columns) and CopyJobsParams(*columns) in C.
_make_answer: Callable[[Iterable[Any]], Enqueued] = partial(tuple.__new__, Enqueued)
_make_params: Callable[[Iterable[Any]], bulk.CopyJobsParams] = partial(
    tuple.__new__, bulk.CopyJobsParams
)


# -- one ------------------------------------------------------------------------------------------


def enqueue_one(target: Target, row: Row) -> Plan[Enqueued]:
    """Insert one job, or find the one that is in its way. At most two insert tries.

    Raises DuplicateJob where there is one and ``on_conflict`` is ``"raise"``, EnqueueContended
    where it came and went twice, IsolationUnsupported.
    """
    if row.supplied:
        yield from _need_fresh_snapshots()
    began = monotonic()
    for last in (False, True):
        if (yield from _insert(target, row)):
            return Enqueued(row.id, row.run_id, "created")
        # A statement of its own: the insert did not see the job that made it wait.
        found = yield from _find(target, [row], _since(began) if last else None)
        if found:
            existing = found[row.run_id]
            if target.on_conflict == "raise":
                raise _duplicate(target, existing)
            return existing
    raise _exhausted(target)


def _since(began: float) -> timedelta:
    return _SINCE + timedelta(seconds=monotonic() - began)


def _insert(target: Target, row: Row) -> Plan[bool]:
    new = yield from call(
        sql.enqueue_job,
        sql.enqueue_job_async,
        id=row.id,
        run_id=row.run_id,
        queue=target.queue,
        name=target.name,
        tenant=row.tenant,
        priority=row.priority,
        run_at=row.run_at,
        delay=row.delay,
        max_attempts=target.max_attempts,
        dead_letter=target.dead_letter,
        idempotency_scope=target.idempotency_scope,
        idempotency_key=row.key,
        concurrency_key=row.concurrency_key,
        concurrency_limit=target.concurrency_limit,
        when_busy=target.when_busy,
        traceparent=target.traceparent,
        enqueued_by=target.enqueued_by,
        input=row.input,
        id_supplied=row.supplied,
    )
    if new is None:
        return False
    return not (row.supplied and (yield from _undo([row])))


def _undo(rows: Sequence[Row]) -> Plan[set[UUID]]:
    """Take back what was just inserted under ids that have finished meanwhile; return those."""
    undone = yield from call(
        conflict.undo_republished,
        conflict.undo_republished_async,
        ids=[row.id for row in rows],
        run_ids=[row.run_id for row in rows],
    )
    return set(undone)


def _find(
    target: Target, rows: Sequence[Row], since: timedelta | None
) -> Plan[dict[UUID, Enqueued]]:
    """Return the jobs in the way of ``rows`` that can be seen now, by run id as asked."""
    found = yield from call(
        conflict.find_enqueued,
        conflict.find_enqueued_async,
        ids=[row.id for row in rows],
        run_ids=[row.run_id for row in rows],
        tenants=[row.tenant for row in rows],
        idempotency_keys=[row.key for row in rows],
        name=target.name,
        since=since,
        queue=target.queue,
    )
    return {row.asked_run_id: Enqueued(row.id, row.run_id, "existing") for row in found}


def _need_fresh_snapshots() -> Plan[None]:
    level = yield from call(conflict.read_isolation, conflict.read_isolation_async)
    if level not in _ISOLATION:
        raise IsolationUnsupported(
            f"id= was given in a transaction of isolation level {str(level).upper()}, in which "
            "nobody can see whether the job of that id has just finished"
        )


# -- many -----------------------------------------------------------------------------------------


def enqueue_many(target: Target, rows: Sequence[Row]) -> Plan[list[Enqueued]]:
    """Insert jobs in bulk and answer for each, in order.

    Of rows that repeat a key or a supplied id the first one counts. Raises as `enqueue_one`; a
    DuplicateJob carries the index.
    """
    if _nothing_in_the_way(target, rows):
        for chunk in cut_rows(rows):
            yield from _insert_plain(target, chunk)
        ids, run_ids = [row.id for row in rows], [row.run_id for row in rows]
        created = zip(ids, run_ids, repeat("created"), strict=False)
        return list(map(_make_answer, created))
    if any(row.supplied for row in rows):
        yield from _need_fresh_snapshots()
    first, repeats = _apart(rows)
    answers: dict[UUID, Enqueued] = {}
    yield from _insert_all(target, first, answers)
    again = []
    for row, earlier in repeats:
        answer = answers[earlier.run_id]
        if answer.created or _same_conflict(row, earlier):
            answers[row.run_id] = Enqueued(answer.id, answer.run_id, "existing")
        else:
            # What stopped the earlier one (its id, say) need not stop this one (its key).
            again.append(row)
    yield from _insert_all(target, again, answers)
    result = [answers[row.run_id] for row in rows]
    if target.on_conflict == "raise":
        for index, answer in enumerate(result):
            if not answer.created:
                error = _duplicate(target, answer)
                error.at_item(index)
                raise error
    return result


def _nothing_in_the_way(target: Target, rows: Sequence[Row]) -> bool:
    """Whether no other job can be a reason not to insert these, and all are due alike."""
    if not rows or target.concurrency_limit is not None:
        return False
    delay = rows[0].delay
    for row in rows:
        if row.supplied or row.key is not None or row.run_at is not None:
            return False
        if row.delay is not delay and row.delay != delay:
            return False
    return True


def _insert_plain(target: Target, rows: Sequence[Row]) -> Plan[None]:
    yield from call(
        bulk.insert_jobs,
        bulk.insert_jobs_async,
        ids=[row.id for row in rows],
        run_ids=[row.run_id for row in rows],
        tenants=[row.tenant for row in rows],
        priorities=[row.priority for row in rows],
        inputs=[row.input for row in rows],
        delay=rows[0].delay,
        queue=target.queue,
        name=target.name,
        max_attempts=target.max_attempts,
        dead_letter=target.dead_letter,
        idempotency_scope=target.idempotency_scope,
        traceparent=target.traceparent,
        enqueued_by=target.enqueued_by,
    )


def _apart(rows: Sequence[Row]) -> tuple[list[Row], list[tuple[Row, Row]]]:
    """Split rows into those to send, and repeats of a key or an id with the row they repeat."""
    first: list[Row] = []
    repeats: list[tuple[Row, Row]] = []
    by_id: dict[UUID, Row] = {}
    by_key: dict[tuple[str, str], Row] = {}
    for row in rows:
        earlier = by_id.get(row.id) if row.supplied else None
        if earlier is None and row.key is not None:
            earlier = by_key.get((row.tenant, row.key))
        if earlier is not None:
            repeats.append((row, earlier))
            continue
        first.append(row)
        if row.supplied:
            by_id[row.id] = row
        if row.key is not None:
            by_key[row.tenant, row.key] = row
    return first, repeats


def _same_conflict(row: Row, earlier: Row) -> bool:
    """Whether the job that stopped ``earlier`` stops ``row`` as well."""
    if (row.tenant, row.key) != (earlier.tenant, earlier.key):
        return False
    return row.id == earlier.id or not earlier.supplied


def _insert_all(target: Target, rows: list[Row], answers: dict[UUID, Enqueued]) -> Plan[None]:
    for chunk in _chunks(rows):
        began = monotonic()
        left = yield from _insert_chunk(target, chunk, answers)
        if not left:
            continue
        left = yield from _look_up(target, left, None, answers)
        if left:
            left = yield from _insert_chunk(target, left, answers)
        if left:
            left = yield from _look_up(target, left, None, answers)
        if left:
            left = yield from _look_up(target, left, _since(began), answers)
        if left:
            raise _exhausted(target)


def _insert_chunk(
    target: Target, rows: Sequence[Row], answers: dict[UUID, Enqueued]
) -> Plan[list[Row]]:
    """Send one bulk insert, note the answers, return the rows that have none."""
    supplied = [row for row in rows if row.supplied]
    verdicts = yield from call(
        sql.enqueue_jobs,
        sql.enqueue_jobs_async,
        ids=[row.id for row in rows],
        run_ids=[row.run_id for row in rows],
        tenants=[row.tenant for row in rows],
        priorities=[row.priority for row in rows],
        run_ats=[row.run_at for row in rows],
        delays=[row.delay for row in rows],
        idempotency_keys=[row.key for row in rows],
        concurrency_keys=[row.concurrency_key for row in rows],
        concurrency_limit=target.concurrency_limit,
        when_busy=target.when_busy,
        inputs=[row.input for row in rows],
        queue=target.queue,
        name=target.name,
        max_attempts=target.max_attempts,
        dead_letter=target.dead_letter,
        idempotency_scope=target.idempotency_scope,
        traceparent=target.traceparent,
        enqueued_by=target.enqueued_by,
        ids_supplied=bool(supplied),
    )
    undone = (yield from _undo(supplied)) if supplied else set()
    for verdict in verdicts:
        # A job of this very batch that was taken back is nobody's answer.
        if verdict.id is None or verdict.run_id is None or verdict.id in undone:
            continue
        status: Literal["created", "existing"] = (
            "created" if verdict.verdict == "created" else "existing"
        )
        answers[verdict.asked_run_id] = Enqueued(verdict.id, verdict.run_id, status)
    return [row for row in rows if row.run_id not in answers]


def _look_up(
    target: Target, rows: Sequence[Row], since: timedelta | None, answers: dict[UUID, Enqueued]
) -> Plan[list[Row]]:
    answers.update((yield from _find(target, rows, since)))
    return [row for row in rows if row.run_id not in answers]


def _lock_order(row: Row) -> tuple[bytes, bool, bytes, int]:
    key = b"" if row.key is None else sha256(row.key.encode()).digest()
    return row.tenant.encode(), row.key is None, key, row.id.int


def _chunks(rows: list[Row]) -> list[list[Row]]:
    """Cut rows into bulk statements, each in the order given, which jobs of one priority run in."""
    chunks = cut_rows(rows)
    if len(chunks) == 1 or not any(row.supplied or row.key is not None for row in rows):
        return chunks
    # One order over all chunks, the one that the statement keeps within each: two bulk enqueues
    # of the same keys then wait for each other and never deadlock.
    chunks = cut_rows(sorted(rows, key=_lock_order))
    return [sorted(chunk, key=lambda row: row.run_id) for chunk in chunks]


def cut_rows(rows: Sequence[Row]) -> list[list[Row]]:
    """Cut rows into bulk statements that each take a bounded amount of memory, in order."""
    if rows and _one_chunk(rows):
        return [list(rows)]
    chunks: list[list[Row]] = []
    size = 0
    for row in rows:
        full = not chunks or len(chunks[-1]) >= CHUNK_ROWS
        if full or size + len(row.input) > CHUNK_CHARACTERS:
            chunks.append([])
            size = 0
        chunks[-1].append(row)
        size += len(row.input)
    return chunks


def _one_chunk(rows: Sequence[Row]) -> bool:
    return len(rows) <= CHUNK_ROWS and sum([len(row.input) for row in rows]) <= CHUNK_CHARACTERS


def guard_for_many(target: Target, rows: Sequence[Row]) -> Guard:
    """Return what keeps a bulk enqueue all or nothing."""
    if target.on_conflict == "raise" and rows:
        return Guard.SAVEPOINT
    alone = _one_chunk(rows) and not any(row.supplied or row.key for row in rows)
    return Guard.NONE if alone else Guard.TRANSACTION


# -- a stream -------------------------------------------------------------------------------------


def copy_many(target: Target, blocks: Iterable[Sequence[Row]]) -> Plan[int]:
    """Send rows through COPY block by block; return their number. None if one of them raises."""
    count = yield from call(bulk.copy_jobs, bulk.copy_jobs_async, _copied(target, blocks))
    if count:
        yield from call(wake.wake_queue, wake.wake_queue_async, queue=target.queue)
    return count


def _copied(
    target: Target, blocks: Iterable[Sequence[Row]]
) -> Iterator[Sequence[bulk.CopyJobsParams]]:
    for rows in blocks:
        columns: dict[str, Iterable[Any]] = {
            "id": [row.id for row in rows],
            "run_id": [row.run_id for row in rows],
            "queue": repeat(target.queue),
            "name": repeat(target.name),
            "tenant": [row.tenant for row in rows],
            "priority": [row.priority for row in rows],
            "max_attempts": repeat(target.max_attempts),
            "dead_letter": repeat(target.dead_letter),
            "concurrency_key": [row.concurrency_key for row in rows],
            "concurrency_limit": repeat(target.concurrency_limit),
            "when_busy": repeat(target.when_busy),
            "traceparent": repeat(target.traceparent),
            "enqueued_by": repeat(target.enqueued_by),
            "input": [row.input for row in rows],
        }
        ordered = [columns[name] for name in bulk.CopyJobsParams._fields]
        yield list(map(_make_params, zip(*ordered, strict=False)))  # some of them have no end


# -- errors ---------------------------------------------------------------------------------------


def _duplicate(target: Target, existing: Enqueued) -> DuplicateJob:
    return DuplicateJob(
        f"job {existing.id} of name {target.name!r} already has the idempotency key, or the id",
        id=existing.id,
        run_id=existing.run_id,
    )


def _exhausted(target: Target) -> EnqueueContended:
    return EnqueueContended(
        f"another job of name {target.name!r} took the same idempotency key twice and could not be "
        "seen either time"
    )
