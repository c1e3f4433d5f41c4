"""Tables of a size that matters for plans, and the statements' arguments on them."""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from typing import Any

from psycopg import Connection

from tests.sql.calls import MINUTE, NOTHING, STRAIGHT, Held


def never_analysed(conn: Connection[Any]) -> None:
    """Keep the server from gathering statistics of our tables behind the test's back."""
    for table in ("job", "settled", "attempt"):
        conn.execute(f"alter table jobs.{table} set (autovacuum_enabled = off)".encode())


def load_jobs(conn: Connection[Any], count: int, *, queues: int = 50, due: float = 0.5) -> None:
    """Ready jobs over queues q0, q1, ... and all priorities: a share due, the rest next month."""
    conn.execute(
        """
        insert into jobs.job (
            id, run_id, queue, name, max_attempts, priority, available_at, idempotency_key,
            unique_key, input
        )
        select
            -- In order, as UUIDs of version 7 are.
            (
                lpad(to_hex(%(stamp)s + i), 12, '0') || '7'
                || substr(md5((%(stamp)s + i)::text), 1, 3) || '8'
                || substr(md5((%(stamp)s + i)::text), 4, 15)
            )::uuid,
            gen_random_uuid(), 'q' || i %% %(queues)s, 'n' || i %% 7, 3,
            i / 7 %% 4,
            case
                when random() < %(due)s then now() - random() * interval '1 day'
                else now() + interval '1 day' + random() * interval '30 days'
            end,
            case when i %% 3 = 0 then gen_random_uuid()::text end,
            case when i %% 3 = 0 then sha256(gen_random_uuid()::text::bytea) end,
            '{"path": "/srv/data/incoming/2026/11/30/0001.csv"}'
        from generate_series(1, %(count)s) as s (i)
        """,
        {"count": count, "queues": queues, "due": due, "stamp": secrets.randbelow(2**40)},
    )


def load_settled(conn: Connection[Any], count: int, *, queues: int = 50) -> None:
    """Completed jobs of the last days."""
    conn.execute(
        """
        insert into jobs.settled (
            id, settled_at, claims, revoked, attempt, state, run_id, created_at, claimed_at,
            max_attempts, priority, dead_letter, queue, name, tenant, idempotency_scope, input
        )
        select gen_random_uuid(), now() - i * interval '1 second', 1, 0, 1, 'completed',
            gen_random_uuid(), now(), now(), 3, i %% 4, true, 'q' || i %% %(queues)s, 'n' || i %% 7,
            '', 'live', '{"path": "/srv/data/incoming/2026/11/30/0001.csv"}'
        from generate_series(1, %(count)s) as s (i)
        """,
        {"count": count, "queues": queues},
    )


def claiming(queues: dict[str, int], *, rescue: bool = False, **steer: Any) -> dict[str, Any]:
    """Arguments of ClaimJobs."""
    return {
        "queues": list(queues),
        "free": list(queues.values()),
        "worker": "w1",
        "lease": MINUTE,
        "rescue": rescue,
        "rescue_limit": 100,
        "limited": [],
        "limits": [],
        "park_limit": 100,
        "sweep": False,
        "ahead": False,
        **STRAIGHT,
        **steer,
    }


def renewing(held: Iterable[Held]) -> dict[str, Any]:
    """Arguments of RenewLeases."""
    pairs = list(held)
    return {
        "ids": [id for id, _ in pairs],
        "claims": [claims for _, claims in pairs],
        "worker": "w1",
        "lease": MINUTE,
    }


def settling(held: Iterable[Held], *outcomes: str, error: bool = False) -> dict[str, Any]:
    """Arguments of SettleJobs; the outcomes are taken in turn."""
    pairs = list(held)
    count = len(pairs)
    failed = "ValueError" if error else None
    return {
        "ids": [id for id, _ in pairs],
        "claims": [claims for _, claims in pairs],
        "outcomes": [outcomes[n % len(outcomes)] for n in range(count)],
        "delays": [NOTHING] * count,
        "error_types": [failed] * count,
        "error_messages": ["no luck" if error else None] * count,
        "tracebacks": [None] * count,
        "results": [None] * count,
        "worker": "w1",
        "release": True,
    }


def wide(dsn: str) -> Connection[Any]:
    """A session that commits each statement."""
    return Connection.connect(dsn, autocommit=True)
