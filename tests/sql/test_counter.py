"""Deltas of outcomes are folded into coarser sums, and no figure is lost by it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from psycopg import Connection

from jobs.inspect import outcome_counts
from jobs_sql.counter import fold_counters
from tests.support.stepped import Session

Conn = Connection[Any]

pytestmark = pytest.mark.majors

YEARS = timedelta(days=3650)


def put(conn: Conn, age: str, *, tier: int = 0, name: str = "mail", amount: int = 1) -> None:
    conn.execute(
        """
        insert into jobs.counter (bucket, amount, tier, name, outcome)
        values (date_trunc('minute', now() - %s::interval, 'UTC'), %s, %s, %s, 'completed')
        """,
        [age, amount, tier, name],
    )


def tiers(conn: Conn) -> list[tuple[int, int]]:
    """Tier and amount of every row, in order."""
    return [
        (tier, amount)
        for tier, amount in conn.execute("select tier, amount from jobs.counter order by 1, 2")
    ]


def total(conn: Conn) -> int:
    return sum(count.amount for count in outcome_counts(conn, YEARS))


def test_deltas_of_a_minute_become_one_row_and_recent_ones_stay(conn: Conn) -> None:
    for _ in range(3):
        put(conn, "30 minutes")
    put(conn, "30 minutes", name="other", amount=5)
    put(conn, "1 minute", amount=7)
    before = total(conn)
    assert fold_counters(conn, most=100) == 4
    assert tiers(conn) == [(0, 7), (1, 3), (1, 5)]
    assert total(conn) == before
    assert fold_counters(conn, most=100) == 0


def test_minutes_become_hours_and_hours_days_on_their_boundaries(conn: Conn) -> None:
    for minute in range(60):
        put(conn, f"3 days {minute} minutes", tier=1)
    for hour in range(24):
        put(conn, f"90 days {hour} hours", tier=2)
    before = total(conn)
    assert fold_counters(conn, most=1000) == 84
    # sixty minutes touch one hour or two, twenty-four hours one day or two
    rows = tiers(conn)
    assert [sum(n for tier, n in rows if tier == of) for of in (0, 1, 2, 3)] == [0, 0, 60, 24]
    assert len(rows) <= 4
    assert total(conn) == before
    off = conn.execute(
        "select count(*) from jobs.counter where bucket <> date_trunc("
        "case tier when 2 then 'hour' else 'day' end, bucket, 'UTC')"
    ).fetchone()
    assert off == (0,)


def test_a_day_is_never_folded_again(conn: Conn) -> None:
    put(conn, "900 days", tier=3)
    assert fold_counters(conn, most=100) == 0


def test_no_more_than_asked_a_tier(conn: Conn) -> None:
    for minute in range(20, 30):
        put(conn, f"{minute} minutes")
    assert fold_counters(conn, most=4) == 4
    assert total(conn) == 10
    assert [tier for tier, _ in tiers(conn)] == [0] * 6 + [1] * 4


def test_two_that_fold_at_once_take_different_rows(
    conn: Conn, session: Callable[..., Session]
) -> None:
    for minute in range(20, 26):
        put(conn, f"{minute} minutes")
    one, other = session("one", autocommit=False), session("other")
    assert one.run(fold_counters, most=4) == 4
    assert other.run(fold_counters, most=100) == 2, "waits for nobody, sums nothing twice"
    one.run(Connection.commit)
    assert total(conn) == 6
    assert {tier for tier, _ in tiers(conn)} == {1}


def test_what_is_undone_was_not_folded(conn: Conn, session: Callable[..., Session]) -> None:
    put(conn, "20 minutes")
    one = session("one", autocommit=False)
    assert one.run(fold_counters, most=4) == 1
    one.run(Connection.rollback)
    assert tiers(conn) == [(0, 1)]
