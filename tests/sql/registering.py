"""The statements of the registry of workers as the tests call them."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

from psycopg import Connection

from jobs_sql.registry import beat_worker

Conn = Connection[Any]

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
    """`BeatWorker` of a worker, a new one by default; its id and whether something is due."""
    worker = id or uuid4()
    return worker, beat_worker(conn, **(BEAT | changes | {"id": worker}))
