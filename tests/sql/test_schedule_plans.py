"""Plans and buffers of a fire and of a tick beside many schedules and many jobs."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from psycopg import Connection

from tests.sql.calls import new_id
from tests.sql.scheduling import SECOND, arm, fire, read, set_back, tick
from tests.sql.test_plans import AS_OUR_WORKERS
from tests.sql.volume import load_jobs, never_analysed
from tests.support.buffers import explain
from tests.support.server import Clones

pytestmark = pytest.mark.majors

JOBS = 20_000
SCHEDULES = 2_000


@pytest.fixture(scope="module")
def loaded(clones: Clones) -> Iterator[str]:
    with clones.clone() as dsn:
        with psycopg.connect(dsn, autocommit=True) as conn:
            never_analysed(conn)
            load_jobs(conn, JOBS)
            conn.execute(
                "insert into jobs.schedule (name, source, cron, tz, job, input)"
                " select 's' || n, 'stored', '0 3 * * *', 'UTC', 'work', '{}'"
                " from generate_series(1, %s) as n",
                [SCHEDULES],
            )
        yield dsn


@pytest.fixture(params=[AS_OUR_WORKERS, ""], ids=["as our services", "as it comes"])
def conn(loaded: str, request: pytest.FixtureRequest) -> Iterator[Connection[Any]]:
    with psycopg.connect(loaded, autocommit=True, options=request.param) as conn:
        yield conn


def firing(conn: Connection[Any], count: int) -> dict[str, Any]:
    """Arguments of a fire of so many jobs."""
    arm(conn, "mine")
    set_back(conn, "mine")
    row = read(conn, "mine")
    occurrence = row.watermark + SECOND
    return {
        "name": "mine",
        "watermark": row.watermark,
        "revision": row.revision,
        "occurrence": occurrence,
        "next_watermark": occurrence,
        "catch_up_left": None,
        "catch_up_until": None,
        "ids": [new_id() for _ in range(count)],
        "run_ids": [new_id() for _ in range(count)],
        "queues": ["q"] * count,
        "names": ["work"] * count,
        "tenants": [""] * count,
        "priorities": [0] * count,
        "run_ats": [None] * count,
        "delays": [dt.timedelta(0)] * count,
        "max_attempts": [3] * count,
        "dead_letters": [True] * count,
        "idempotency_scopes": ["live"] * count,
        "idempotency_keys": [f"{occurrence.isoformat()}#{new_id()}" for _ in range(count)],
        "concurrency_keys": [None] * count,
        "concurrency_limits": [None] * count,
        "when_busys": [None] * count,
        "inputs": ["{}"] * count,
        "enqueued_by": "task mine",
        "role": "scheduler:one",
        "holder": "one",
        "lease": dt.timedelta(seconds=30),
    }


@pytest.mark.parametrize("generic", [True, False], ids=["generic", "custom"])
def test_a_fire_reads_its_own_row_and_writes_its_jobs(conn: Connection[Any], generic: bool) -> None:
    plan = explain(conn, "FireSchedule", generic=generic, **firing(conn, 20))
    assert plan.indexes >= {"schedule_pkey"}
    assert not any(node.kind == "Seq Scan" and node.relation == "job" for node in plan.nodes)
    # a probe and an insert into the table and its indexes for each job, as an enqueue has
    assert plan.buffers < 20 * 25 + 100, str(plan)


def test_one_that_was_fired_already_costs_a_look(conn: Connection[Any]) -> None:
    given = firing(conn, 20)
    given["watermark"] -= SECOND
    plan = explain(conn, "FireSchedule", generic=True, **given)
    assert plan.buffers < 60, str(plan)


def test_a_tick_reads_the_schedules_and_nothing_else(conn: Connection[Any]) -> None:
    tick(conn)
    plan = explain(
        conn,
        "TickScheduler",
        generic=True,
        role="scheduler:one",
        holder="one",
        lease=dt.timedelta(seconds=30),
    )
    pages = conn.execute("select pg_relation_size('jobs.schedule') / 8192").fetchone()
    assert pages is not None
    assert plan.buffers < pages[0] + 60, str(plan)


def test_fires_of_one_schedule_stay_on_their_page(quiet: Connection[Any]) -> None:
    arm(quiet)
    set_back(quiet)
    for _ in range(50):
        assert fire(quiet, count=0).verdict == "fired"
    quiet.execute("select pg_stat_force_next_flush()")
    row = quiet.execute(
        "select n_tup_upd, n_tup_hot_upd from pg_stat_user_tables where relname = 'schedule'"
    ).fetchone()
    assert row is not None
    assert row[0] >= 51
    assert row[1] >= row[0] - 2
