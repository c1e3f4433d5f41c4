"""ReadDueAges: the oldest due job of each queue and priority, and what it costs."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest
from psycopg import AsyncConnection, Connection

from jobs.inspect import due_ages
from tests.sql.calls import HOUR, made, running, seed
from tests.support.buffers import explain

pytestmark = pytest.mark.majors

Conn = Connection[Any]


def test_the_oldest_of_each_that_is_due(conn: Conn) -> None:
    now = dt.datetime.now(dt.UTC)
    for hours in (1, 3, 2):
        made(conn, priority=2, run_at=now - hours * HOUR)
    made(conn, priority=0, run_at=now - 5 * HOUR)
    made(conn, priority=1, delay=HOUR)
    made(conn, queue="r", priority=3, run_at=now - 4 * HOUR)
    running(conn, queue="s")
    rows = [(one.queue, one.priority, round(one.oldest / HOUR)) for one in due_ages(conn)]
    assert rows == [("q", 0, 5), ("q", 2, 3), ("r", 3, 4)]


def test_nothing_due(conn: Conn) -> None:
    assert due_ages(conn) == []
    made(conn, delay=HOUR)
    assert due_ages(conn) == []


async def test_both_flavours(conn: Conn, aconn: AsyncConnection[Any]) -> None:
    made(conn)
    assert [row[:2] for row in await due_ages(aconn)] == [row[:2] for row in due_ages(conn)]


def test_it_does_not_see_how_many_wait(conn: Conn) -> None:
    seed(conn, 5_000, queue="'q' || i % 3", priority="i % 2")
    conn.execute("vacuum (analyze) jobs.job")
    for generic in (False, True):
        plan = explain(conn, "ReadDueAges", generic=generic)
        assert plan.rows == 6
        assert plan.buffers < 60, str(plan)
