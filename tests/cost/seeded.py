"""Tables of the same content at every run, and the hot statements' arguments on them."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from psycopg import Connection

from tests.sql.volume import claiming, renewing, settling

Conn = Connection[Any]

# As a worker plans: once for the session.
AS_OUR_WORKERS = "-c plan_cache_mode=force_generic_plan -c enable_seqscan=off"
QUEUE = "mail"
BACKLOG = 20_000
INPUT = '{"n": 12345}'


def seed(conn: Conn) -> None:
    """Due jobs, as many that are due tomorrow, and as many finished ones.

    Ids are in order of creation, as those that the library makes.
    """
    for state in ("due", "later"):
        conn.execute(
            """
            insert into jobs.job (id, run_id, queue, name, max_attempts, available_at, input)
            select lpad(to_hex(%(first)s + i), 32, '0')::uuid, md5(i::text)::uuid, %(queue)s,
                'send', 3, now() + %(after)s::interval + i * interval '1 millisecond', %(input)s
            from generate_series(1, %(count)s::integer) as s (i)
            """,
            {
                "first": 0 if state == "due" else BACKLOG,
                "queue": QUEUE,
                "after": "-1 hour" if state == "due" else "1 day",
                "input": INPUT,
                "count": BACKLOG,
            },
        )
    conn.execute(
        """
        insert into jobs.settled (
            id, settled_at, claims, revoked, attempt, state, run_id, created_at, claimed_at,
            max_attempts, priority, dead_letter, queue, name, tenant, idempotency_scope, input
        )
        select md5(i::text)::uuid, now() - i * interval '1 second', 1, 0, 1, 'completed',
            md5(i::text)::uuid, now(), now(), 3, 0, true, %(queue)s, 'send', '', 'live', %(input)s
        from generate_series(1, %(count)s::integer) as s (i)
        """,
        {"queue": QUEUE, "input": INPUT, "count": BACKLOG},
    )
    conn.execute("vacuum (analyze) jobs.job, jobs.settled")


def claim(count: int) -> dict[str, Any]:
    """Arguments of a claim of so many; 0 asks for a hundred in a queue that holds nothing."""
    return claiming({QUEUE: count} if count else {"nothing": 100})


def held(conn: Conn) -> list[tuple[UUID, int]]:
    """What is running."""
    rows = conn.execute("select id, claims from jobs.job where state = 'running' order by id")
    return [(id, claims) for id, claims in rows]


def settle(conn: Conn) -> dict[str, Any]:
    """Arguments that complete what is running."""
    return settling(held(conn), "completed")


def renew(conn: Conn) -> dict[str, Any]:
    """Arguments that renew what is running."""
    return renewing(held(conn))
