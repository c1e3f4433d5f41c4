"""What looking at jobs costs beside 100,000 completed ones, for any values and any plan."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from uuid import UUID

import psycopg
import pytest
from psycopg import Connection

from jobs.inspect import list_jobs
from tests.sql.calls import seed
from tests.support.buffers import Plan, explain

Conn = Connection[Any]

DEAD = 200
LIVE = 300
PAGE = 100
# A row of a walk costs its page; the rest is the way down the indexes.
WAY_DOWN = 20


@pytest.fixture(scope="module")
def history(module_database: str) -> Iterator[Conn]:
    """100,000 finished jobs in random order, 200 of them dead, and 300 live ones."""
    with psycopg.connect(module_database, autocommit=True) as conn:
        conn.execute(
            """
            insert into jobs.settled (
                id, claims, revoked, attempt, state, run_id, created_at, max_attempts, priority,
                dead_letter, queue, name, tenant, idempotency_scope, input
            )
            select
                gen_random_uuid(), 1, 0, 1, case when i %% 500 = 0 then 'dead' else 'completed' end,
                gen_random_uuid(), now(), 1, 0, true, 'q' || i %% 5, 'n', '', 'live', '{}'
            from generate_series(1, %s * 500) as s (i)
            """,
            [DEAD],
        )
        seed(conn, LIVE, state="case when i % 2 = 0 then 'ready' else 'suspended' end")
        # Now, and not while a test looks.
        for table in ("jobs.settled", "jobs.job"):
            conn.execute(f"alter table {table} set (autovacuum_enabled = false)".encode())
            conn.execute(f"vacuum analyze {table}".encode())
        yield conn


@pytest.fixture(scope="module")
def middle(history: Conn) -> UUID:
    """The id in the middle of the finished jobs."""
    row = history.execute("select id from jobs.settled order by id offset 50000 limit 1").fetchone()
    assert row is not None
    id: UUID = row[0]
    return id


def plan_of(conn: Conn, name: str, *, generic: bool, **given: Any) -> Plan:
    filters = {"cursor": None, "state": None, "queue": None, "name": None, "tenant": None}
    return explain(conn, name, generic=generic, **(filters | {"page_size": PAGE + 1} | given))


pytestmark = [pytest.mark.majors, pytest.mark.parametrize("generic", [False, True])]


def test_stats_read_no_completed_job(history: Conn, generic: bool) -> None:
    plan = explain(history, "ReadQueueStats", generic=generic)
    (heap,) = plan.on("settled")
    assert plan.indexes == {"settled_unsuccessful_idx"}, plan
    assert heap.rows == DEAD
    assert heap.raw.get("Rows Removed by Filter", 0) == 0
    live = sum(node.buffers for node in plan.on("job"))
    assert plan.buffers <= live + DEAD + WAY_DOWN, plan


@pytest.mark.parametrize("order", ["Newest", "Oldest"])
@pytest.mark.parametrize("queue", [None, "q0"])
@pytest.mark.parametrize("state", ["dead", "failed"])
def test_dead_letters_are_found_without_the_completed_jobs(
    history: Conn, generic: bool, order: str, queue: str | None, state: str
) -> None:
    plan = plan_of(history, f"ListUnsuccessful{order}", generic=generic, state=state, queue=queue)
    assert plan.indexes == {"settled_unsuccessful_idx"}, plan
    assert plan.buffers <= (DEAD if state == "dead" else 0) + WAY_DOWN, plan


@pytest.mark.parametrize("order", ["Newest", "Oldest"])
@pytest.mark.parametrize("state", [None, "completed"])
def test_a_page_from_the_middle_costs_a_page(
    history: Conn, middle: UUID, generic: bool, order: str, state: str | None
) -> None:
    for cursor in (None, middle):
        plan = plan_of(history, f"ListJobs{order}", generic=generic, cursor=cursor, state=state)
        assert plan.rows == PAGE + 1
        assert "settled_pkey" in plan.indexes, plan
        assert plan.buffers <= 2 * PAGE + WAY_DOWN, plan


@pytest.mark.parametrize("order", ["Newest", "Oldest"])
@pytest.mark.parametrize("state", ["ready", "delayed", "running"])
def test_a_live_state_leaves_the_finished_jobs_alone(
    history: Conn, generic: bool, order: str, state: str
) -> None:
    plan = plan_of(history, f"ListJobs{order}", generic=generic, state=state)
    assert sum(node.buffers for node in plan.on("settled")) == 0, plan
    assert plan.buffers <= 2 * LIVE, plan


@pytest.mark.parametrize("state", ["failed", "dead", "cancelled"])
def test_unsuccessful_states_take_the_statement_made_for_them(
    history: Conn, generic: bool, state: Any
) -> None:
    """Also once the session has prepared it and the server plans for all values."""
    conn = psycopg.connect(history.info.dsn, prepare_threshold=0 if generic else None)
    with conn:
        for _ in range(12):
            for newest_first in (True, False):
                page = list_jobs(conn, state=state, newest_first=newest_first, page_size=10)
                assert len(page.jobs) == (10 if state == "dead" else 0)
        prepared = conn.execute("select statement from pg_prepared_statements").fetchall()
    kinds = {text.split("/* jobs:")[1].split(" ")[0] for (text,) in prepared if "jobs:" in text}
    both = {"list_unsuccessful_newest", "list_unsuccessful_oldest"}
    assert kinds == (both if generic else set())
