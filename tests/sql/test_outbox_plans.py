"""Plans of the outbox on a table of a size that matters, with statistics and without."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from psycopg import Connection

from tests.sql.staging import take
from tests.support.buffers import Plan, explain
from tests.support.server import Clones

pytestmark = pytest.mark.majors

Conn = Connection[Any]
ROWS = 60_000
BATCH = 1_000
BY_INDEX = {"Index Scan", "Index Only Scan", "Bitmap Heap Scan", "ModifyTable", "LockRows"}
LEASE = dt.timedelta(seconds=30)


@pytest.fixture(scope="module", params=["analysed", "unanalysed"])
def staged(clones: Clones, request: pytest.FixtureRequest) -> Iterator[str]:
    """DSN of a database in whose outbox two thirds are published and the rest waits."""
    with clones.clone() as dsn:
        with psycopg.connect(dsn, autocommit=True) as conn:
            conn.execute("alter table jobs.outbox set (autovacuum_enabled = off)")
            conn.execute(
                "insert into jobs.outbox (id, run_id, staged_at, published_at, outcome,"
                " published_as, max_attempts, queue, name, input)"
                " select gen_random_uuid(), gen_random_uuid(), now() - (%(rows)s - n) * interval"
                " '1 ms', p.at, case when p.at is not null then 'created' end,"
                " case when p.at is not null then gen_random_uuid() end, 1, 'q', 'n', '{}'"
                " from generate_series(1, %(rows)s) as n cross join lateral (select case"
                " when n <= %(rows)s * 2 / 3 then now() - interval '8 days' end as at) as p",
                {"rows": ROWS},
            )
            if request.param == "analysed":
                conn.execute("vacuum analyze jobs.outbox")
        yield dsn


@pytest.fixture(
    params=[
        pytest.param("-c plan_cache_mode=force_generic_plan -c enable_seqscan=off", id="ours"),
        pytest.param("", id="generic"),
    ]
)
def probe(staged: str, request: pytest.FixtureRequest) -> Iterator[Conn]:
    """A session in a transaction that is rolled back."""
    with psycopg.connect(staged, options=request.param) as conn:
        yield conn
        conn.rollback()


def by_index(plan: Plan) -> None:
    """The outbox is read through an index, and nothing is compared with everything."""
    assert {node.kind for node in plan.on("outbox")} <= BY_INDEX, str(plan)
    assert all(node.rows * node.loops <= 3 * BATCH for node in plan.nodes), str(plan)


def test_a_claim_walks_the_index_and_stops(probe: Conn) -> None:
    token = take(probe)
    plan = explain(
        probe,
        "ClaimOutbox",
        generic=True,
        token=token,
        holder="r",
        lease=LEASE,
        renew_within=LEASE / 2,
        most=BATCH,
    )
    assert plan.rows == BATCH
    by_index(plan)
    assert "outbox_waiting_idx" in plan.indexes


def test_a_mark_is_linear_in_its_rows(probe: Conn) -> None:
    token = take(probe)
    found = probe.execute(
        "select id from jobs.outbox where published_at is null order by staged_at limit %s", [BATCH]
    ).fetchall()
    ids = [row[0] for row in found]
    plan = explain(
        probe,
        "MarkOutbox",
        generic=True,
        token=token,
        ids=ids,
        outcomes=["created"] * BATCH,
        published_as=ids,
        holder="r",
    )
    by_index(plan)
    assert "outbox_pkey" in plan.indexes


def test_pruning_walks_its_index(probe: Conn) -> None:
    plan = explain(probe, "PruneOutbox", generic=True, keep=dt.timedelta(days=7), most=BATCH)
    by_index(plan)
    assert {"outbox_published_idx", "outbox_pkey"} <= plan.indexes


def test_a_page_and_the_figures_read_as_much_as_they_show(probe: Conn) -> None:
    plan = explain(
        probe,
        "ListOutbox",
        generic=True,
        waiting=True,
        parked=True,
        after_at=None,
        after_id=None,
        most=100,
    )
    assert plan.rows == 100
    by_index(plan)
    first = plan.buffers
    after_at, after_id = probe.execute(
        "select staged_at, id from jobs.outbox where published_at is null"
        " order by staged_at, id offset %s limit 1",
        [ROWS // 3 - 150],
    ).fetchone() or (None, None)
    plan = explain(
        probe,
        "ListOutbox",
        generic=True,
        waiting=True,
        parked=True,
        after_at=after_at,
        after_id=after_id,
        most=100,
    )
    assert plan.rows == 100
    by_index(plan)
    assert plan.buffers <= first + 10, "a page from the end costs a page"
    plan = explain(probe, "ReadOutboxStats", generic=True, most=BATCH)
    by_index(plan)
