"""InsertJobs: what EnqueueJobs writes and wakes, without a look at anything that is there."""

from __future__ import annotations

import datetime as dt
from typing import Any
from uuid import UUID

import pytest
from psycopg import Connection, errors

from jobs_sql.bulk import insert_jobs
from tests.conftest import Connect
from tests.sql import tables
from tests.sql.calls import HOUR, NOTHING, Item, claim_one, enqueue_many, new_id
from tests.sql.test_wake import heard, put_wake, wakes
from tests.support.buffers import explain

pytestmark = pytest.mark.majors

Conn = Connection[Any]


def arguments(count: int = 1, **over: Any) -> dict[str, Any]:
    """So many jobs; ``over`` replaces single arguments."""
    given: dict[str, Any] = {
        "ids": [new_id() for _ in range(count)],
        "run_ids": [new_id() for _ in range(count)],
        "tenants": [""] * count,
        "priorities": [0] * count,
        "inputs": ["{}"] * count,
        "delay": NOTHING,
        "queue": "q",
        "name": "job",
        "max_attempts": 3,
        "dead_letter": True,
        "idempotency_scope": "live",
        "traceparent": None,
        "enqueued_by": None,
    }
    return given | over


def inserted(conn: Conn, count: int = 1, **over: Any) -> list[UUID]:
    """Insert jobs; return their ids."""
    given = arguments(count, **over)
    insert_jobs(conn, **given)
    ids: list[UUID] = given["ids"]
    return ids


def test_rows_are_those_of_an_enqueue(conn: Conn) -> None:
    trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    alike: dict[str, Any] = {
        "queue": "mail",
        "name": "send",
        "max_attempts": 9,
        "dead_letter": False,
        "idempotency_scope": "waiting",
        "traceparent": trace,
        "enqueued_by": "alice",
    }
    text = '{"n":  1}'
    (id,) = inserted(conn, tenants=["t"], priorities=[2], inputs=[text], delay=HOUR, **alike)
    item = Item(key=None, tenant="t", priority=2, input=text, delay=HOUR)
    (answer,) = enqueue_many(conn, [item], **alike)
    assert answer.id is not None
    own = ("id", "run_id", "available_at", "created_at", "ctid", "xmin")
    mine, other = tables.job(conn, id), tables.job(conn, answer.id)
    assert {k: v for k, v in mine.items() if k not in own} == {
        k: v for k, v in other.items() if k not in own
    }
    late = mine["available_at"] - mine["created_at"]
    assert abs(late - HOUR) < dt.timedelta(seconds=1)


def test_one_bad_row_inserts_nothing(conn: Conn) -> None:
    with pytest.raises(errors.CheckViolation):
        inserted(conn, 3, priorities=[0, 7, 0])
    assert tables.everything(conn)["job"] == []


def test_they_are_due_in_the_order_given(conn: Conn) -> None:
    ids = [new_id() for _ in range(40)]
    shuffled = [*ids[::-2], *ids[::2]]
    inserted(conn, 40, ids=shuffled)
    assert [claim_one(conn, queues={"q": 1}).id for _ in shuffled] == shuffled


@pytest.fixture
def ear(connect: Connect) -> Conn:
    """A session that listens."""
    conn = connect()
    conn.execute("listen jobs_wake")
    return conn


class TestWake:
    def test_once_for_all(self, conn: Conn, ear: Conn) -> None:
        inserted(conn, 20)
        assert heard(ear) == ["q"]
        assert wakes(conn) == 1

    def test_not_for_what_is_due_later(self, conn: Conn, ear: Conn) -> None:
        inserted(conn, delay=dt.timedelta(seconds=6))
        assert heard(ear) == []
        inserted(conn, delay=dt.timedelta(seconds=4))
        assert heard(ear) == ["q"]

    @pytest.mark.parametrize(("age", "woken"), [("10 milliseconds", []), ("1 second", ["q"])])
    def test_not_soon_after_another(
        self, conn: Conn, ear: Conn, age: str, woken: list[str]
    ) -> None:
        put_wake(conn, age)
        inserted(conn)
        assert heard(ear) == woken

    def test_not_where_it_is_turned_off(self, conn: Conn, ear: Conn) -> None:
        conn.execute("set jobs.wake = off")
        inserted(conn)
        assert heard(ear) == []


def test_it_costs_no_sort_and_no_look(conn: Conn) -> None:
    plan = explain(conn, "InsertJobs", **arguments(100))
    assert not [node for node in plan.nodes if node.kind in ("Sort", "WindowAgg")]
    assert {node.relation for node in plan.nodes} <= {None, "job", "wake"}
    assert not [node for node in plan.nodes if node.kind == "Seq Scan"]
