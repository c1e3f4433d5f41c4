"""Jobs claimed ahead of the slots of a worker: a lapse says nothing of them, once."""

from __future__ import annotations

from typing import Any

import pytest
from psycopg import Connection

from tests.sql import tables
from tests.sql.calls import claim, claim_one, made, retry, settle

pytestmark = pytest.mark.majors

Conn = Connection[Any]


def test_the_attempt_of_one_that_may_not_have_begun_does_not_count(conn: Conn) -> None:
    id = made(conn, max_attempts=1)
    assert claim_one(conn, ahead=True).attempt == 1
    tables.lapse(conn, id)
    row = claim_one(conn, rescue=True)
    assert (row.id, row.attempt, row.claims) == (id, 1, 2)
    assert [attempt[:2] for attempt in tables.attempts(conn, id)] == [(1, 1)]


def test_it_counts_the_next_time(conn: Conn) -> None:
    id = made(conn, max_attempts=1)
    claim_one(conn, ahead=True)
    tables.lapse(conn, id)
    claim_one(conn, rescue=True)
    tables.lapse(conn, id)
    assert [row.verdict for row in claim(conn, rescue=True)] == ["buried"]
    assert tables.settled(conn, id)["state"] == "dead"


def test_without_it_every_lapse_counts(conn: Conn) -> None:
    id = made(conn, max_attempts=2)
    claim_one(conn)
    tables.lapse(conn, id)
    assert claim_one(conn, rescue=True).attempt == 2
    tables.lapse(conn, id)
    assert [row.verdict for row in claim(conn, rescue=True)] == ["buried"]


def test_an_attempt_that_failed_counts_however_it_was_claimed(conn: Conn) -> None:
    id = made(conn, max_attempts=2)
    row = claim_one(conn, ahead=True)
    settle(conn, retry((row.id, row.claims)))
    row = claim_one(conn)
    assert row.attempt == 2
    tables.lapse(conn, id)
    assert [row.verdict for row in claim(conn, rescue=True)] == ["buried"]


def test_a_cancel_ends_it_all_the_same(conn: Conn) -> None:
    id = made(conn, max_attempts=1)
    claim_one(conn, ahead=True)
    conn.execute("update jobs.job set cancel_requested_at = now() where id = %s", [id])
    tables.lapse(conn, id)
    assert [row.verdict for row in claim(conn, rescue=True)] == ["cancelled"]
    assert tables.settled(conn, id)["state"] == "cancelled"
