"""The generated statements as the tests call them: with defaults, and every row checked strictly.

A NULL or a wrong type under an annotation that does not allow it fails the test that met it.
"""

from __future__ import annotations

import datetime as dt
import secrets
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple, TypeVar
from uuid import UUID

from psycopg import Connection, sql
from pydantic import TypeAdapter

from jobs_sql import claim as claim_sql
from jobs_sql import conflict as conflict_sql
from jobs_sql import enqueue as enqueue_sql
from jobs_sql import lease as lease_sql
from jobs_sql import settle as settle_sql

Row = TypeVar("Row", bound=NamedTuple)
Held = tuple[UUID, int]

NOTHING = dt.timedelta(0)
MINUTE = dt.timedelta(minutes=1)
HOUR = dt.timedelta(hours=1)


@cache
def _adapter(kind: type[Any]) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def strict(kind: type[Row], rows: Iterable[Row]) -> list[Row]:
    """The rows, after each was validated against its own annotations without any conversion."""
    checked = []
    for row in rows:
        assert type(row) is kind
        assert _adapter(kind).validate_python(row, strict=True) == row
        checked.append(row)
    return checked


def strict_uuids(values: Iterable[Any]) -> list[UUID]:
    """Bare values of a one-column result, each of which must be a UUID."""
    return [_adapter(UUID).validate_python(value, strict=True) for value in values]


def new_id() -> UUID:
    """A UUID of version 7: later ones sort behind earlier ones of another millisecond."""
    stamp = time.time_ns() // 1_000_000
    high = stamp << 80 | 7 << 76 | secrets.randbits(12) << 64
    return UUID(int=high | 2 << 62 | secrets.randbits(62))


# --- enqueue


def enqueue(conn: Connection[Any], **over: Any) -> UUID | None:
    """`EnqueueJob` with defaults; the id of the new job, or None where id or key was taken."""
    given: dict[str, Any] = {
        "id": new_id(),
        "run_id": new_id(),
        "queue": "q",
        "name": "n",
        "tenant": "",
        "priority": 0,
        "run_at": None,
        "delay": NOTHING,
        "max_attempts": 3,
        "dead_letter": True,
        "idempotency_scope": "live",
        "idempotency_key": None,
        "concurrency_key": None,
        "concurrency_limit": 1 if "concurrency_key" in over else None,
        "when_busy": "wait" if "concurrency_key" in over else None,
        "traceparent": None,
        "enqueued_by": None,
        "input": "{}",
        "id_supplied": "id" in over,
    }
    made = enqueue_sql.enqueue_job(conn, **(given | over))
    return None if made is None else strict_uuids([made])[0]


def made(conn: Connection[Any], **over: Any) -> UUID:
    """`enqueue` where a new job is expected."""
    id = enqueue(conn, **over)
    assert id is not None
    return id


@dataclass(frozen=True, slots=True)
class Item:
    """One row of a bulk enqueue."""

    key: str | None = None
    id: UUID | None = None
    run_id: UUID | None = None
    tenant: str = ""
    priority: int = 0
    run_at: dt.datetime | None = None
    delay: dt.timedelta = NOTHING
    input: str = "{}"
    concurrency_key: str | None = None


def enqueue_many(
    conn: Connection[Any], items: Sequence[Item], **over: Any
) -> list[enqueue_sql.EnqueueJobsRow]:
    """`EnqueueJobs` with defaults; the answers in the order of the items."""
    run_ids = [item.run_id or new_id() for item in items]
    given: dict[str, Any] = {
        "ids": [item.id or new_id() for item in items],
        "run_ids": run_ids,
        "tenants": [item.tenant for item in items],
        "priorities": [item.priority for item in items],
        "run_ats": [item.run_at for item in items],
        "delays": [item.delay for item in items],
        "idempotency_keys": [item.key for item in items],
        "concurrency_keys": [item.concurrency_key for item in items],
        "concurrency_limit": 1 if any(item.concurrency_key for item in items) else None,
        "when_busy": "wait" if any(item.concurrency_key for item in items) else None,
        "inputs": [item.input for item in items],
        "queue": "q",
        "name": "n",
        "max_attempts": 3,
        "dead_letter": True,
        "idempotency_scope": "live",
        "traceparent": None,
        "enqueued_by": None,
        "ids_supplied": any(item.id for item in items),
    }
    rows = strict(enqueue_sql.EnqueueJobsRow, enqueue_sql.enqueue_jobs(conn, **(given | over)))
    by_run = {row.asked_run_id: row for row in rows}
    assert len(by_run) == len(rows) == len(items), "one answer for each row asked"
    return [by_run[run_id] for run_id in run_ids]


def find(
    conn: Connection[Any],
    key: str | None,
    *,
    id: UUID | None = None,
    since: dt.timedelta | None = None,
    name: str = "n",
    tenant: str = "",
    queue: str = "q",
) -> conflict_sql.FindEnqueuedRow | None:
    """`FindEnqueued` for one row."""
    asked = new_id()
    rows = strict(
        conflict_sql.FindEnqueuedRow,
        conflict_sql.find_enqueued(
            conn,
            ids=[id or new_id()],
            run_ids=[asked],
            tenants=[tenant],
            idempotency_keys=[key],
            name=name,
            queue=queue,
            since=since,
        ),
    )
    assert len(rows) <= 1
    assert all(row.asked_run_id == asked for row in rows)
    return rows[0] if rows else None


def undo(conn: Connection[Any], id: UUID, run_id: UUID) -> list[UUID]:
    """`UndoRepublished` for one row: the ids taken back."""
    return strict_uuids(conflict_sql.undo_republished(conn, ids=[id], run_ids=[run_id]))


def seed(conn: Connection[Any], count: int, **columns: str) -> list[UUID]:
    """Insert jobs in one go; each column is an SQL expression over the running number ``i``.

    The ids, in order of ``i``.
    """
    values = {
        "id": "gen_random_uuid()",
        "run_id": "gen_random_uuid()",
        "queue": "'q'",
        "name": "'n'",
        "max_attempts": "3",
        "input": "'{}'",
    } | columns
    insert = sql.SQL("insert into jobs.job ({}) select {} from generate_series(1, {}) as s (i)")
    names = sql.SQL(", ").join(map(sql.Identifier, values))
    # Expressions written in the tests themselves.
    sources = sql.SQL(", ").join(sql.SQL(source) for source in values.values())  # type: ignore[arg-type]
    statement = insert.format(names, sources, count) + sql.SQL(" returning id")
    rows = conn.execute(statement).fetchall()
    return [row[0] for row in rows]


# --- claim, renew, settle

#: A claim that is not steered: every queue from its oldest due job, tenants not told apart.
STRAIGHT: dict[str, Any] = {
    "turns": [],
    "mosts": [],
    "floor_ats": [],
    "floor_ids": [],
    "chosen": [],
}


def claim(
    conn: Connection[Any],
    queues: Mapping[str, int] | int = 10,
    *,
    worker: str = "w1",
    lease: dt.timedelta = MINUTE,
    rescue: bool = False,
    rescue_limit: int = 100,
    limits: Mapping[str, int] | None = None,
    park_limit: int = 100,
    sweep: bool = False,
    ahead: bool = False,
    **steer: Any,
) -> list[claim_sql.ClaimJobsRow]:
    """`ClaimJobs`; a bare number asks the queue ``q``. ``steer``: see `STRAIGHT`."""
    asked = {"q": queues} if isinstance(queues, int) else queues
    return strict(
        claim_sql.ClaimJobsRow,
        claim_sql.claim_jobs(
            conn,
            queues=list(asked),
            free=list(asked.values()),
            worker=worker,
            lease=lease,
            rescue=rescue,
            rescue_limit=rescue_limit,
            limited=list(limits or {}),
            limits=list((limits or {}).values()),
            park_limit=park_limit,
            sweep=sweep,
            ahead=ahead,
            **(STRAIGHT | steer),
        ),
    )


def claim_ids(*args: Any, **named: Any) -> set[UUID]:
    """`claim`, and the ids of what was claimed; buried rows are not expected."""
    rows = claim(*args, **named)
    assert {row.verdict for row in rows} <= {"claimed"}
    assert len({row.id for row in rows}) == len(rows)
    return {row.id for row in rows}


def claim_one(conn: Connection[Any], **named: Any) -> claim_sql.ClaimJobsRow:
    """`claim` where exactly one job must come."""
    rows = claim(conn, **named)
    assert [row.verdict for row in rows] == ["claimed"]
    return rows[0]


def running(conn: Connection[Any], *, worker: str = "w1", **over: Any) -> Held:
    """Enqueue one job, due before all others, and claim it: its id and fencing token."""
    id = made(conn, **({"run_at": dt.datetime(1970, 1, 1, tzinfo=dt.UTC)} | over))
    row = claim_one(conn, queues={over.get("queue", "q"): 1}, worker=worker)
    assert row.id == id
    return row.id, row.claims


def renew(
    conn: Connection[Any],
    held: Sequence[Held],
    *,
    worker: str = "w1",
    lease: dt.timedelta = MINUTE,
) -> list[str]:
    """`RenewLeases`; the verdicts in the order of the pairs."""
    rows = strict(
        lease_sql.RenewLeasesRow,
        lease_sql.renew_leases(
            conn,
            ids=[id for id, _ in held],
            claims=[claims for _, claims in held],
            worker=worker,
            lease=lease,
        ),
    )
    verdicts = {(row.id, row.claims): row.verdict for row in rows}
    assert len(rows) == len(held), "one answer for each pair asked"
    return [verdicts[pair] for pair in held]


@dataclass(frozen=True, slots=True)
class Settle:
    """One settle asked for."""

    held: Held
    outcome: str = "completed"
    delay: dt.timedelta | None = NOTHING
    error_type: str | None = None
    message: str | None = None
    traceback: str | None = None
    result: str | None = None


def retry(held: Held, delay: dt.timedelta = NOTHING, message: str = "no luck") -> Settle:
    """A failed attempt that may be tried again."""
    return Settle(held, "retry", delay, "ValueError", message, "Traceback ...")


def dead(held: Held, message: str = "no way") -> Settle:
    """A failed attempt whose error is terminal."""
    return Settle(held, "dead", NOTHING, "TypeError", message, "Traceback ...")


def settle_rows(
    conn: Connection[Any], asked: Sequence[Settle], *, worker: str = "w1", release: bool = True
) -> list[settle_sql.SettleJobsRow]:
    """`SettleJobs`, the rows as they come."""
    return strict(
        settle_sql.SettleJobsRow,
        settle_sql.settle_jobs(
            conn,
            ids=[one.held[0] for one in asked],
            claims=[one.held[1] for one in asked],
            outcomes=[one.outcome for one in asked],
            delays=[one.delay for one in asked],
            error_types=[one.error_type for one in asked],
            error_messages=[one.message for one in asked],
            tracebacks=[one.traceback for one in asked],
            results=[one.result for one in asked],
            worker=worker,
            release=release,
        ),
    )


def settle(
    conn: Connection[Any], *asked: Settle | Held, worker: str = "w1"
) -> list[tuple[str, str | None]]:
    """`SettleJobs`; (verdict, state) in the order asked. A bare pair is one completed.

    Of a repeat only the verdict: what became of the job meanwhile is not its doing.
    """
    items = [one if isinstance(one, Settle) else Settle(one) for one in asked]
    rows = settle_rows(conn, items, worker=worker)
    answers = {
        items[row.place - 1].held: (row.verdict, row.state if row.verdict == "landed" else None)
        for row in rows
    }
    assert len(answers) == len(rows) == len({one.held for one in items}), "one answer for each pair"
    return [answers[one.held] for one in items]


def settle_all(conn: Connection[Any], asked: Sequence[Settle], *, worker: str = "w1") -> list[str]:
    """`settle`, sent again for rows that others held: the states in which the jobs ended up.

    A claim locks, for the length of its statement, a row that another claimed under its eyes.
    Each settle must land.
    """
    states: dict[Held, str] = {}
    open_ones = list(asked)
    while open_ones:
        answers = settle(conn, *open_ones, worker=worker)
        for one, (verdict, state) in zip(open_ones, answers, strict=True):
            assert verdict in ("landed", "again"), verdict
            if state is not None:
                states[one.held] = state
        open_ones = [one for one in open_ones if one.held not in states]
    return [states[one.held] for one in asked]
