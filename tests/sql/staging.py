"""The statements of the outbox as the tests call them: with defaults, and rows checked strictly."""

from __future__ import annotations

import datetime as dt
from typing import Any
from uuid import UUID

from psycopg import Connection

from jobs_sql import outbox as sql
from jobs_sql import publish as publish_sql
from tests.sql.calls import NOTHING, new_id, strict

LEASE = dt.timedelta(seconds=30)


def stage(conn: Connection[Any], **over: Any) -> UUID:
    """Stage one row with defaults; ``staged_at`` is set afterwards where it is given."""
    id = over.pop("id", None) or new_id()
    given: dict[str, Any] = {
        "queue": "q",
        "name": "n",
        "max_attempts": 3,
        "dead_letter": True,
        "idempotency_scope": "live",
        "concurrency_limit": None,
        "when_busy": None,
        "traceparent": None,
        "enqueued_by": None,
        "ids": [id],
        "run_ids": [over.pop("run_id", None) or new_id()],
        "tenants": [over.pop("tenant", "")],
        "priorities": [over.pop("priority", 0)],
        "run_ats": [over.pop("run_at", None)],
        "delays": [over.pop("delay", NOTHING)],
        "idempotency_keys": [over.pop("idempotency_key", None)],
        "concurrency_keys": [over.pop("concurrency_key", None)],
        "inputs": [over.pop("input", "{}")],
    }
    assert sql.stage_jobs(conn, **(given | over)) == 1
    return id


def claim(
    conn: Connection[Any],
    token: int = 0,
    *,
    holder: str = "r",
    lease: dt.timedelta = LEASE,
    most: int = 100,
) -> list[sql.ClaimOutboxRow]:
    """`ClaimOutbox` with defaults."""
    rows = sql.claim_outbox(
        conn, token=token, holder=holder, lease=lease, renew_within=lease * 2 / 3, most=most
    )
    return strict(sql.ClaimOutboxRow, rows)


def take(conn: Connection[Any], **options: Any) -> int:
    """Take the lease and return the token."""
    [row] = claim(conn, **options)
    assert row.fresh
    assert row.id is None
    return row.token


def ids(rows: list[sql.ClaimOutboxRow]) -> list[UUID]:
    """The ids of the rows of an answer."""
    return [row.id for row in rows if row.id is not None]


def mark(
    conn: Connection[Any], token: int, rows: list[UUID], outcome: str = "created"
) -> tuple[bool, int]:
    """`MarkOutbox`, each row as itself: whether the lease is held, how many were stamped."""
    answer = sql.mark_outbox(
        conn,
        token=token,
        ids=rows,
        outcomes=[outcome] * len(rows),
        published_as=rows,
        holder="r",
    )
    assert answer is not None
    [answer] = strict(sql.MarkOutboxRow, [answer])
    return answer.held, answer.rows_marked


def publish(conn: Connection[Any], rows: list[sql.ClaimOutboxRow]) -> dict[UUID, Any]:
    """`PublishJobs` of rows of an answer; its rows by the id asked."""
    asked = [row for row in rows if row.id is not None]
    answer = publish_sql.publish_jobs(
        conn,
        ids=[row.id for row in asked],
        run_ids=[row.run_id for row in asked],
        queues=[row.queue for row in asked],
        names=[row.name for row in asked],
        tenants=[row.tenant for row in asked],
        priorities=[row.priority for row in asked],
        run_ats=[row.run_at for row in asked],
        delays=[row.delay for row in asked],
        max_attempts=[row.max_attempts for row in asked],
        dead_letters=[row.dead_letter for row in asked],
        idempotency_scopes=[row.idempotency_scope for row in asked],
        idempotency_keys=[row.idempotency_key for row in asked],
        concurrency_limits=[row.concurrency_limit for row in asked],
        when_busys=[row.when_busy for row in asked],
        concurrency_keys=[row.concurrency_key for row in asked],
        traceparents=[row.traceparent for row in asked],
        enqueued_bys=[row.enqueued_by for row in asked],
        inputs=[row.input for row in asked],
    )
    return {row.asked_id: row for row in strict(publish_sql.PublishJobsRow, answer)}
