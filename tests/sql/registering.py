"""The statements of the registry of workers as the tests call them."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

from psycopg import Connection

from jobs_sql.registry import find_lost_claims, mark_worker, record_worker, remove_worker

Conn = Connection[Any]
HOUR = timedelta(hours=1)

BEAT: dict[str, Any] = {
    "prune": False,
    "lifetime": timedelta(seconds=90),
    "claimed": 9,
    "completed": 1,
    "retried": 2,
    "ended": 3,
    "cancelled": 4,
    "buried": 5,
    "released": 6,
    "lost": 7,
    "in_flight": 0,
    "process": 4711,
    "state": "running",
    "name": "web-0",
    "host": "h",
    "version": "1",
    "queues": ["q"],
    "slots": [5],
    "running_ids": [],
    "running_names": [],
    "looked_at": ["q"],
}


def beat(conn: Conn, id: UUID | None = None, **changes: Any) -> tuple[UUID, bool | None]:
    """`RecordWorker` of a worker, a new one by default; its id and whether something is due."""
    worker = id or uuid4()
    return worker, record_worker(conn, **(BEAT | changes | {"id": worker}))


def live_and_leave(conn: Conn) -> int:
    """Everything that a worker named `w1` sends to the registry; how many jobs of its it finds."""
    worker, _ = beat(conn, prune=True)
    beat(conn, worker)
    mark_worker(conn, lifetime=HOUR, in_flight=0, running_ids=[], running_names=[], id=worker)
    minute = timedelta(minutes=1)
    found = find_lost_claims(conn, queues=["q"], worker="w1", within=minute, most=9)
    remove_worker(conn, id=worker)
    return len(found)
