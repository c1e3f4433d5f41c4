"""Keyed concurrency, step by step with sessions whose statements overlap.

Each rule of `jobs.worker.slots` is here because without it jobs stood still, or waited for somebody
else's transaction.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from psycopg import Connection

from tests.sql.calls import Settle, settle_rows
from tests.sql.keys import ages, ids, keyed, promote, slots, state, states, take, tokens
from tests.support.stepped import Session

pytestmark = pytest.mark.majors

Conn = Connection[Any]
Sessions = Callable[..., Session]


def commit(session: Session) -> None:
    """End the transaction of a session."""
    session.run(lambda c: c.commit())


def test_two_claims_of_one_key_meet_in_the_primary_key(conn: Conn, session: Sessions) -> None:
    first, second = ages(conn, 1)[0], keyed(conn, queue="r")
    one, two = session("one", autocommit=False), session("two")
    assert ids(one.run(take, {"q": 1})["claimed"]) == [first]
    late = two.start(take, {"r": 1})
    assert two.blocked(by=one).lock == "transactionid ShareLock"
    commit(one)
    (row,) = late.result()["again"]
    assert (row.concurrency_key, row.queue) == ("k", "r")
    assert state(conn, second) == "ready", "its snapshot is no evidence that the key is full"
    assert set(take(conn, {"r": 1})) == {"parked"}
    assert slots(conn) == {1: first}


def test_a_claim_that_rolls_back_leaves_the_slot_to_the_other(
    conn: Conn, session: Sessions
) -> None:
    ages(conn, 1)
    second = keyed(conn, queue="r")
    one, two = session("one", autocommit=False), session("two")
    one.run(take, {"q": 1})
    late = two.start(take, {"r": 1})
    two.blocked(by=one)
    one.run(lambda c: c.rollback())
    assert ids(late.result()["claimed"]) == [second]
    assert slots(conn) == {1: second}


def test_a_settle_that_does_not_see_who_is_being_parked(conn: Conn, session: Sessions) -> None:
    """It says that the key has room. The parker looks once it has committed, and lets him out."""
    ages(conn, 1)
    (held,) = tokens(take(conn)["claimed"])
    second = keyed(conn)
    parker = session("parker", autocommit=False)
    assert set(parker.run(take)) == {"parked"}
    (row,) = settle_rows(conn, [Settle(held)])
    assert (row.vacant_key, row.promoted_queues) == ("k", [])
    assert promote(conn, "k") == [], "the settler cannot see him yet either"
    commit(parker)
    assert state(conn, second) == "blocked", "he would stand still for ever"
    assert parker.run(promote, "k") == [("promoted", "k", "q")]
    commit(parker)
    assert state(conn, second) == "ready"


def test_a_parker_that_does_not_see_the_settle(conn: Conn, session: Sessions) -> None:
    """His look comes too early; the settler looks after its commit as well."""
    ages(conn, 1)
    (held,) = tokens(take(conn)["claimed"])
    second = keyed(conn)
    settler = session("settler", autocommit=False)
    settler.run(settle_rows, [Settle(held)])
    assert set(take(conn)) == {"parked"}
    assert promote(conn, "k") == [], "the slot is held, as far as anybody can see"
    commit(settler)
    assert state(conn, second) == "blocked"
    assert settler.run(promote, "k") == [("promoted", "k", "q")]


def test_a_head_that_another_claim_holds_is_asked_for_again(conn: Conn, session: Sessions) -> None:
    """A claim locks rows under its eyes that it does not take; a promoter passes them by."""
    ages(conn, 2)
    (held,) = tokens(take(conn)["claimed"])
    (blocked,) = conn.execute("select id from jobs.job where state = 'blocked'").fetchall()
    other = session("other", autocommit=False)
    other.run(lambda c: c.execute("select from jobs.job where id = %s for update", blocked))
    (row,) = settle_rows(conn, [Settle(held)])
    assert (row.vacant_key, row.promoted_queues) == ("k", [])
    assert promote(conn, "k") == [("again", "k", "q")]
    other.run(lambda c: c.rollback())
    assert promote(conn, "k") == [("promoted", "k", "q")]


def test_nobody_waits_for_the_transaction_of_a_body(conn: Conn, session: Sessions) -> None:
    """run.complete() leaves the slot alone, however long its transaction stays open."""
    ages(conn, 2, limit=2)
    held = tokens(take(conn, 1)["claimed"])
    body = session("body", autocommit=False)
    body.run(settle_rows, [Settle(held[0])], release=False)
    other = keyed(conn, limit=2)
    claimed = session("claimer").run(take, 10)["claimed"]
    assert len(claimed) == 1, "the other slot, at once"
    assert state(conn, other) in ("running", "blocked")
    assert promote(conn, most=10, tidy=True) == [], "and a sweep does not take it away"
    assert len(slots(conn)) == 2
    commit(body)
    rows = settle_rows(conn, [Settle(held[0])])
    assert [row.verdict for row in rows] == ["repeated"]
    assert len(slots(conn)) == 1


def test_a_rolled_back_completion_keeps_the_slot(conn: Conn, session: Sessions) -> None:
    (first,) = ages(conn, 1)
    (held,) = tokens(take(conn)["claimed"])
    body = session("body", autocommit=False)
    body.run(settle_rows, [Settle(held)], release=False)
    body.run(lambda c: c.rollback())
    assert slots(conn) == {1: first}
    assert state(conn, first) == "running"


def test_a_sweep_does_not_take_the_slot_of_a_claim_under_way(conn: Conn, session: Sessions) -> None:
    (first,) = ages(conn, 1)
    claimer = session("claimer", autocommit=False)
    claimer.run(take)
    assert promote(conn, "k", tidy=True) == []
    commit(claimer)
    assert promote(conn, "k", tidy=True) == []
    assert slots(conn) == {1: first}


def test_a_settle_does_not_wait_for_a_claim_of_its_key(conn: Conn, session: Sessions) -> None:
    ages(conn, 2, limit=2)
    (held,) = tokens(take(conn, 1)["claimed"])
    claimer = session("claimer", autocommit=False)
    assert len(claimer.run(take, 1)["claimed"]) == 1
    (row,) = session("settler").run(settle_rows, [Settle(held)])
    assert row.verdict == "landed"
    commit(claimer)
    assert states(conn) == {"running": 1}


@pytest.mark.parametrize("order", [("a", "b"), ("b", "a")])
def test_claims_of_several_keys_take_their_slots_in_one_order(
    conn: Conn, session: Sessions, order: tuple[str, str]
) -> None:
    """Whatever the order of their jobs: so that two claims never wait for each other in a ring."""
    for queue, keys in (("q", ("a", "b")), ("r", order)):
        for key in keys:
            ages(conn, 1, key=key, queue=queue)
    one, two = session("one", autocommit=False), session("two", autocommit=False)
    one.run(take, {"q": 2})
    late = two.start(take, {"r": 2})
    two.blocked(by=one)
    commit(one)
    assert len(late.result()["again"]) == 2
    commit(two)
    assert len(slots(conn, "a")) == len(slots(conn, "b")) == 1
