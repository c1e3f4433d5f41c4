from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from psycopg import Connection

from jobs_sql import claim
from tests.sql.calls import STRAIGHT
from tests.support.buffers import encoded, explain

pytestmark = pytest.mark.majors

CLAIM: dict[str, Any] = {
    "queues": ["a", 'quo"ted'],
    "free": [3, 3],
    "rescue": True,
    "rescue_limit": 3,
    "limited": [],
    "limits": [],
    "park_limit": 0,
    "sweep": False,
    "worker": "w",
    "lease": timedelta(seconds=30),
    "ahead": False,
    **STRAIGHT,
}


@pytest.fixture
def backlog(conn: Connection[Any], quiet_table: Callable[..., None]) -> None:
    conn.execute(
        "insert into jobs.job (id, run_id, max_attempts, queue, name, input)"
        " select gen_random_uuid(), gen_random_uuid(), 3, 'a', 'n', '{}'"
        " from generate_series(1, 500)"
    )
    quiet_table("jobs.job")


def claimed(conn: Connection[Any]) -> int:
    row = conn.execute("select count(*) from jobs.job where state = 'running'").fetchone()
    assert row is not None
    return int(row[0])


def test_parameters_are_those_that_the_function_sends(conn: Connection[Any]) -> None:
    text, values = encoded(conn, "ClaimJobs", **CLAIM)
    assert text == claim.CLAIM_JOBS
    assert values[:3] == ('{"a","quo\\"ted"}', "{3,3}", "t")


@pytest.mark.usefixtures("backlog")
@pytest.mark.parametrize("generic", [False, True])
def test_it_runs_once_and_is_measured(conn: Connection[Any], generic: bool) -> None:
    plan = explain(conn, "ClaimJobs", generic=generic, **CLAIM)

    assert claimed(conn) == 3 == plan.rows
    assert "job_ready_idx" in plan.indexes
    assert plan.on("job")
    assert 0 < plan.buffers < 200
    assert plan.wal_bytes > 0
    assert plan.wal_records >= 3
    # The connection is as it was.
    assert conn.execute("show plan_cache_mode").fetchone() == ("auto",)
    assert conn.execute("select count(*) from pg_prepared_statements").fetchone() == (0,)


@pytest.mark.usefixtures("backlog")
def test_equal_calls_give_equal_numbers(connect: Callable[..., Connection[Any]]) -> None:
    seen = []
    for _ in range(2):
        conn = connect(autocommit=False)  # a fresh session: cold caches
        plan = explain(conn, "ClaimJobs", **CLAIM)
        seen.append((plan.buffers, plan.wal_records, [str(node) for node in plan.nodes]))
        conn.rollback()
        conn.close()
    # The first run leaves dead versions of three rows, which the second steps over.
    assert abs(seen[0][0] - seen[1][0]) <= 12
    assert seen[0][1] == seen[1][1]


@pytest.mark.usefixtures("backlog")
def test_a_part_that_runs_after_the_main_query_is_counted(
    conn: Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    # What the top node shows leaves out a CTE that nobody reads.
    text = "with /* jobs:claim_jobs */ gone as (delete from jobs.job) select 1"
    monkeypatch.setattr("tests.support.buffers.encoded", lambda *_, **__: (text, ()))
    plan = explain(conn, "ClaimJobs")
    assert plan.nodes[0].buffers < 10
    assert plan.buffers > 500


def test_quiet_tables_hold_still(conn: Connection[Any], quiet_table: Callable[..., None]) -> None:
    conn.execute("create table public.t as select generate_series(1, 1000) as n")
    quiet_table("public.t")
    seen = conn.execute(
        "select reltuples, reloptions from pg_class where oid = 'public.t'::regclass"
    ).fetchone()
    assert seen == (1000, ["autovacuum_enabled=off"])
