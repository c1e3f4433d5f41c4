"""Keyed concurrency as the tests of its statements see it."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

from psycopg import Connection

from jobs_sql import slot as slot_sql
from jobs_sql.claim import ClaimJobsRow
from tests.sql import tables
from tests.sql.calls import Held, claim, made, strict

NOBODY = UUID(int=0)


def keyed(conn: Connection[Any], key: str = "k", limit: int = 1, **over: Any) -> UUID:
    """A new job with a concurrency key."""
    return made(conn, **({"concurrency_key": key, "concurrency_limit": limit} | over))


def ages(
    conn: Connection[Any], count: int, key: str = "k", limit: int = 1, **over: Any
) -> list[UUID]:
    """Jobs of a key that became due one after the other, the first one longest ago."""
    start = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
    return [
        keyed(conn, key, limit, run_at=start + n * dt.timedelta(minutes=1), **over)
        for n in range(count)
    ]


def take(
    conn: Connection[Any], queues: Mapping[str, int] | int = 10, **over: Any
) -> dict[str, list[ClaimJobsRow]]:
    """`claim`, apart by verdict."""
    found: dict[str, list[ClaimJobsRow]] = {}
    for row in claim(conn, queues, **over):
        found.setdefault(row.verdict, []).append(row)
    return found


def ids(rows: Sequence[ClaimJobsRow] | None) -> list[UUID]:
    """The ids of rows, in order of id."""
    return sorted(row.id for row in rows or [])


def tokens(rows: Sequence[ClaimJobsRow] | None) -> list[Held]:
    """Ids with their fencing tokens."""
    return [(row.id, row.claims) for row in rows or []]


def promote(
    conn: Connection[Any],
    *keys: str,
    after: str = "",
    most: int = 0,
    tidy: bool = False,
    limits: Mapping[str, int] | None = None,
) -> list[tuple[str, str, str | None]]:
    """`PromoteKeys`: (verdict, key, queue), sorted."""
    rows = strict(
        slot_sql.PromoteKeysRow,
        slot_sql.promote_keys(
            conn,
            keys=list(keys),
            after=after,
            most=most,
            tidy=tidy,
            limited=list(limits or {}),
            limits=list((limits or {}).values()),
        ),
    )
    return sorted((row.verdict, row.concurrency_key, row.queue) for row in rows)


def slots(conn: Connection[Any], key: str = "k") -> dict[int, UUID]:
    """Who holds which slot of a key."""
    rows = conn.execute(
        "select slot, job_id from jobs.slot where concurrency_key = %s order by slot", [key]
    )
    return dict(rows.fetchall())


def states(conn: Connection[Any], key: str = "k") -> Counter[str]:
    """How many live jobs of a key are in which state."""
    rows = conn.execute("select state from jobs.job where concurrency_key = %s", [key])
    return Counter(state for (state,) in rows.fetchall())


def state(conn: Connection[Any], id: UUID) -> str:
    """The state of a job, live or finished."""
    (found,) = tables.where(conn, [id])
    return found


def leave_slot(conn: Connection[Any], job_id: UUID, key: str = "k", slot: int = 1) -> None:
    """A slot as it is left behind by a worker that dies after a run.complete()."""
    conn.execute("insert into jobs.slot values (%s, %s, %s)", [slot, job_id, key])
