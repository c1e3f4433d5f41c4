"""The hot statements keep the budget in budget.toml: buffers, WAL bytes, plans, indexes.

On a server that nobody else uses and on seeded data, so that the counts are the same at every run.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from tests.cost import seeded
from tests.cost.budget import limits, verdict
from tests.sql.calls import MINUTE, Item, enqueue_many, new_id
from tests.sql.test_enqueue_many import arrays
from tests.sql.test_insert_jobs import arguments
from tests.support.buffers import Node, Plan, explain

pytestmark = pytest.mark.lone

Conn = psycopg.Connection[Any]

# Reads of a table that grow with what is asked for, not with what is there.
_BY_INDEX = {"Index Scan", "Index Only Scan", "Bitmap Heap Scan", "ModifyTable"}
_TABLES = ("job", "settled", "attempt", "counter", "pause")


@pytest.fixture
def place(database: str) -> str:
    """DSN of a seeded database."""
    with psycopg.connect(database, autocommit=True) as conn:
        seeded.seed(conn)
    return database


@pytest.fixture
def worker(place: str) -> Iterator[Conn]:
    """A session planned as a worker's. Each statement commits, so that what dies can be pruned."""
    with psycopg.connect(place, autocommit=True, options=seeded.AS_OUR_WORKERS) as conn:
        # The first statements of a session read the catalogs and find the ends of the tables.
        enqueue_many(conn, [Item() for _ in range(3)], queue="warm")
        explain(conn, "ClaimJobs", generic=True, **seeded.claiming({"warm": 3}))
        explain(conn, "SettleJobs", generic=True, **seeded.settle(conn))
        yield conn


def keep(plan: Plan, *path: str) -> None:
    """Both counts of a plan keep their limits."""
    table = limits(*path)
    name = " ".join(path)
    found = [
        verdict(f"{name}, buffers", plan.buffers, table["buffers"]),
        verdict(f"{name}, WAL bytes", plan.wal_bytes, table["wal_bytes"]),
    ]
    assert not any(found), "\n".join([*found, str(plan)])


def refuse_scans(plan: Plan) -> None:
    """No table is read but through an index."""
    for table in _TABLES:
        assert {node.kind for node in plan.on(table)} <= _BY_INDEX, str(plan)


def sorts(plan: Plan) -> list[Node]:
    """The nodes that sort something."""
    return [node for node in plan.nodes if "Sort" in node.kind and node.rows]


def refuse_large_sorts(plan: Plan, count: int) -> None:
    """Nothing is sorted but the rows that the statement was asked about."""
    # A sort is followed by what it reads; of its result a limit may take only a part.
    read = [plan.nodes[plan.nodes.index(node) + 1].rows for node in sorts(plan)]
    assert all(rows <= count for rows in read), str(plan)


@pytest.mark.parametrize("count", [0, 1, 100])
def test_a_claim(worker: Conn, count: int) -> None:
    plan = explain(worker, "ClaimJobs", generic=True, **seeded.claim(count))
    assert plan.rows == count
    refuse_scans(plan)
    assert sorts(plan) == []
    keep(plan, "claim", str(count))


@pytest.mark.parametrize("count", [1, 100])
def test_a_settle_of_completed_jobs(worker: Conn, count: int) -> None:
    explain(worker, "ClaimJobs", generic=True, **seeded.claim(count))
    plan = explain(worker, "SettleJobs", generic=True, **seeded.settle(worker))
    assert plan.rows == count
    refuse_scans(plan)
    refuse_large_sorts(plan, count)
    keep(plan, "settle", str(count))


@pytest.mark.parametrize("count", [1, 100])
def test_a_renewal(worker: Conn, count: int) -> None:
    explain(worker, "ClaimJobs", generic=True, **seeded.claim(count))
    plan = explain(worker, "RenewLeases", generic=True, **seeded.renew(worker))
    assert plan.rows == count
    refuse_scans(plan)
    assert sorts(plan) == []
    keep(plan, "renew", str(count))


@pytest.mark.parametrize("count", [1, 100])
def test_an_enqueue(worker: Conn, count: int) -> None:
    if count == 1:
        asked: dict[str, Any] = {
            key: value
            for key, value in arrays([None]).items()
            if key in ("queue", "name", "max_attempts", "dead_letter", "idempotency_scope")
        } | {
            "id": new_id(),
            "run_id": new_id(),
            "tenant": "",
            "priority": 0,
            "run_at": None,
            "delay": MINUTE,
            "idempotency_key": None,
            "concurrency_key": None,
            "concurrency_limit": None,
            "when_busy": None,
            "traceparent": None,
            "enqueued_by": None,
            "input": seeded.INPUT,
            "id_supplied": False,
        }
        plan = explain(worker, "EnqueueJob", generic=True, **asked)
    else:
        inputs = {"inputs": [seeded.INPUT] * count, "ids_supplied": False}
        plan = explain(worker, "EnqueueJobs", generic=True, **arrays([None] * count) | inputs)
    assert plan.rows == count
    refuse_scans(plan)
    refuse_large_sorts(plan, count)
    keep(plan, "enqueue", str(count))


def test_an_insert_of_jobs_without_keys(worker: Conn) -> None:
    plan = explain(
        worker, "InsertJobs", generic=True, **arguments(100, inputs=[seeded.INPUT] * 100)
    )
    assert sorts(plan) == []
    keep(plan, "insert", "100")


def test_the_number_of_indexes(place: str) -> None:
    with psycopg.connect(place) as conn:
        for kind, keyed in (("indexes", False), ("indexes_of_a_key", True)):
            for table, limit in limits(kind).items():
                row = conn.execute(
                    """
                    select count(*)
                    from pg_index as i
                    inner join pg_attribute as a
                        on a.attrelid = i.indrelid and a.attnum = i.indkey[0]
                    where i.indrelid = %s::regclass
                        and (a.attname = 'concurrency_key' and i.indpred is not null) = %s
                    """,
                    [table, keyed],
                ).fetchone()
                assert row == (limit,), table


class TestTheTestItself:
    """A budget that nothing can break, or that hides a regression, is none."""

    def test_more_than_the_budget_is_refused(self) -> None:
        assert "above" in verdict("x", 11, 10)

    def test_a_budget_that_is_far_too_high_is_refused(self) -> None:
        assert "lower it" in verdict("x", 100, 160)

    @pytest.mark.parametrize(("measured", "limit"), [(10, 10), (100, 119), (0, 2)])
    def test_what_keeps_it_is_accepted(self, measured: float, limit: float) -> None:
        assert verdict("x", measured, limit) == ""

    def test_a_sequential_scan_and_its_sort_are_seen(self, place: str) -> None:
        with psycopg.connect(place, options="-c enable_indexscan=off") as conn:
            conn.execute("set enable_bitmapscan = off; set enable_indexonlyscan = off")
            plan = explain(conn, "ClaimJobs", **seeded.claim(1))
        with pytest.raises(AssertionError):
            refuse_scans(plan)
        with pytest.raises(AssertionError):
            refuse_large_sorts(plan, 1)
