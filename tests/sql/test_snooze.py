"""SettleJobs, outcome snoozed: later, and as if the job had not been tried (O-19)."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest
from psycopg import Connection

from jobs.retry import Retry
from tests.sql import tables
from tests.sql.calls import (
    HOUR,
    NOTHING,
    Held,
    Settle,
    claim_ids,
    claim_one,
    made,
    retry,
    running,
    settle,
)

pytestmark = pytest.mark.majors

Conn = Connection[Any]

FIRST = Retry(jitter=False, delay=dt.timedelta(seconds=5))


def snoozed(held: Held, delay: dt.timedelta = NOTHING) -> Settle:
    return Settle(held, "snoozed", delay)


def test_it_is_ready_after_the_delay_and_nothing_is_counted(conn: Conn) -> None:
    held = running(conn)
    before = tables.job(conn, held[0])
    assert settle(conn, snoozed(held, HOUR)) == [("landed", "ready")]
    after = tables.job(conn, held[0])
    assert after["available_at"] - before["claimed_at"] >= HOUR
    assert (after["attempt"], after["claims"], after["last_error"]) == (0, 1, None)
    assert (after["worker"], after["lease_expires_at"]) == (None, None)
    assert tables.attempts(conn, held[0]) == []
    assert tables.counters(conn) == {}
    assert claim_ids(conn) == set()


def test_the_error_of_an_attempt_before_it_stays(conn: Conn) -> None:
    held = running(conn)
    settle(conn, retry(held, message="boom"))
    row = claim_one(conn)
    settle(conn, snoozed((row.id, row.claims)))
    kept = tables.job(conn, held[0])
    assert (kept["last_error"], kept["attempt"]) == ("ValueError: boom", 1)
    assert len(tables.attempts(conn, held[0])) == 1


def test_on_the_last_attempt_it_is_not_the_end(conn: Conn) -> None:
    held = running(conn, max_attempts=1)
    assert settle(conn, snoozed(held)) == [("landed", "ready")]
    assert claim_one(conn).attempt == 1


def test_a_cancel_that_was_asked_for_ends_it(conn: Conn) -> None:
    held = running(conn)
    conn.execute("update jobs.job set cancel_requested_at = now()")
    assert settle(conn, snoozed(held, HOUR)) == [("landed", "cancelled")]


def test_a_waiting_sibling_does_not(conn: Conn) -> None:
    waiting = {"idempotency_scope": "waiting", "idempotency_key": "k"}
    held = running(conn, **waiting)
    made(conn, **waiting)
    assert settle(conn, snoozed(held)) == [("landed", "ready")]


def test_a_repeat_of_it_is_one(conn: Conn) -> None:
    held = running(conn)
    settle(conn, snoozed(held))
    assert settle(conn, snoozed(held, HOUR))[0][0] == "repeated"
    assert claim_ids(conn) == {held[0]}, "the second delay has no effect"


@pytest.mark.parametrize(
    "times",
    [
        200,
        pytest.param(40_000, marks=[pytest.mark.slow, pytest.mark.timeout(600)]),
    ],
)
def test_o19_however_often_the_first_failure_waits_the_first_delay(conn: Conn, times: int) -> None:
    id = made(conn)
    for number in range(1, times + 1):
        row = claim_one(conn)
        assert (row.attempt, row.claims, row.max_attempts) == (1, number, 3)
        settle(conn, snoozed((row.id, row.claims)))
    row = claim_one(conn)
    assert FIRST.delay_for(row.attempt) == FIRST.delay
    assert settle(conn, retry((row.id, row.claims), FIRST.delay_for(row.attempt))) == [
        ("landed", "ready")
    ]
    kept = tables.job(conn, id)
    assert (kept["attempt"], kept["max_attempts"], kept["claims"]) == (1, 3, times + 1)
    assert [attempt[:2] for attempt in tables.attempts(conn, id)] == [(times + 1, 1)]
    assert tables.counters(conn) == {"retried": 1}


def test_o19_counters_near_the_end_of_an_integer(conn: Conn) -> None:
    id = made(conn, max_attempts=2**31 - 1)
    conn.execute("update jobs.job set attempt = %s, claims = %s", (2**31 - 2, 2**31 - 2))
    for claims in (2**31 - 1, 2**31, 2**31 + 1):
        row = claim_one(conn)
        assert (row.attempt, row.claims) == (2**31 - 1, claims)
        settle(conn, snoozed((row.id, row.claims)))
    row = claim_one(conn)
    assert FIRST.delay_for(row.attempt) == FIRST.max_delay
    assert settle(conn, retry((row.id, row.claims))) == [("landed", "dead")]
    assert tables.settled(conn, id)["attempt"] == 2**31 - 1
