"""Keyed concurrency, one statement after the other: slots, lines, promotion, refusal."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest
from psycopg import Connection

from tests.sql import tables
from tests.sql.calls import HOUR, Settle, made, retry, settle, settle_rows
from tests.sql.keys import (
    NOBODY,
    ages,
    ids,
    keyed,
    leave_slot,
    promote,
    slots,
    state,
    states,
    take,
    tokens,
)

pytestmark = pytest.mark.majors

Conn = Connection[Any]


class TestClaim:
    def test_a_running_job_holds_a_slot(self, conn: Conn) -> None:
        id = keyed(conn)
        assert ids(take(conn)["claimed"]) == [id]
        assert slots(conn) == {1: id}

    def test_a_job_without_a_key_holds_none(self, conn: Conn) -> None:
        made(conn)
        take(conn)
        assert conn.execute("select count(*) from jobs.slot").fetchone() == (0,)

    @pytest.mark.parametrize("limit", [1, 2, 5])
    def test_one_claim_takes_as_many_as_the_limit(self, conn: Conn, limit: int) -> None:
        all_ids = ages(conn, 7, limit=limit)
        found = take(conn)
        assert ids(found["claimed"]) == sorted(all_ids[:limit])
        assert states(conn) == {"running": limit, "blocked": 7 - limit}
        assert set(slots(conn)) == set(range(1, limit + 1))

    def test_the_next_claims_take_what_is_left_of_it(self, conn: Conn) -> None:
        ages(conn, 4, limit=3)
        assert len(take(conn, 2)["claimed"]) == 2
        assert len(take(conn, 2)["claimed"]) == 1
        assert states(conn) == {"running": 3, "blocked": 1}

    def test_what_is_parked_is_told_once_a_key_and_queue(self, conn: Conn) -> None:
        ages(conn, 4)
        ages(conn, 3, key="other")
        rows = take(conn, 20)["parked"]
        assert {(row.concurrency_key, row.queue) for row in rows} == {("k", "q"), ("other", "q")}
        assert len(rows) == 2
        assert {row.id for row in rows} == {NOBODY}

    def test_keys_and_jobs_without_one_are_apart(self, conn: Conn) -> None:
        ages(conn, 3)
        others = [made(conn), keyed(conn, "other")]
        found = take(conn)
        assert set(others) < set(ids(found["claimed"]))
        assert len(found["claimed"]) == 3

    def test_a_crowd_is_parked_with_the_one_that_was_found(self, conn: Conn) -> None:
        ages(conn, 30)
        take(conn, 1)
        take(conn, 1, park_limit=5)
        assert states(conn) == {"running": 1, "blocked": 6, "ready": 23}
        take(conn, 1, park_limit=100)
        assert states(conn) == {"running": 1, "blocked": 29}

    def test_the_crowd_is_of_all_priorities_and_due(self, conn: Conn) -> None:
        ages(conn, 1)
        take(conn)
        for priority in range(4):
            keyed(conn, priority=priority)
        later = keyed(conn, delay=HOUR)
        take(conn, 1)
        assert states(conn) == {"running": 1, "blocked": 4, "ready": 1}
        assert state(conn, later) == "ready"

    def test_work_of_others_comes_at_the_next_claim(self, conn: Conn) -> None:
        ages(conn, 500)
        take(conn, 1)
        other = made(conn)
        assert "claimed" not in take(conn, 5, park_limit=1000)
        assert ids(take(conn, 5)["claimed"]) == [other]

    def test_one_that_is_not_full_parks_nobody(self, conn: Conn) -> None:
        ages(conn, 3, limit=3)
        assert set(take(conn)) == {"claimed"}

    def test_slots_above_a_lowered_limit_count(self, conn: Conn) -> None:
        held = tokens((ages(conn, 4, limit=4) and take(conn))["claimed"])
        keyed(conn, limit=4)
        assert set(take(conn, limits={"n": 2})) == {"parked"}
        settle(conn, *held[:2])
        assert set(take(conn, limits={"n": 2})) == {"parked"}, "two run, which is the limit now"
        assert promote(conn, "k", limits={"n": 2}) == []
        settle(conn, held[2])
        assert len(take(conn, limits={"n": 2})["claimed"]) == 1

    def test_the_limit_of_the_declaration_wins_over_the_rows(self, conn: Conn) -> None:
        ages(conn, 5, limit=1)
        assert len(take(conn, limits={"n": 3, "other": 9})["claimed"]) == 3

    def test_a_name_without_a_declared_limit_keeps_its_rows(self, conn: Conn) -> None:
        ages(conn, 5, limit=2)
        assert len(take(conn, limits={"other": 9})["claimed"]) == 2

    def test_a_retry_goes_to_the_end_of_the_line(self, conn: Conn) -> None:
        first, second = ages(conn, 2)
        (held,) = tokens(take(conn)["claimed"])
        assert held[0] == first
        settle(conn, retry(held))
        found = take(conn)
        assert ids(found["claimed"]) == [second]
        assert states(conn) == {"running": 1, "blocked": 1}


class TestTheLine:
    def test_a_newcomer_does_not_pass_those_who_wait(self, conn: Conn) -> None:
        ages(conn, 3)
        (held,) = tokens(take(conn)["claimed"])
        newcomer = keyed(conn, run_at=dt.datetime(1970, 1, 1, tzinfo=dt.UTC))
        settle(conn, held)
        assert promote(conn, "k") == []
        conn.execute(
            "update jobs.job set state = 'blocked' where state = 'ready' and id <> %s", [newcomer]
        )
        assert set(take(conn)) == {"parked"}, "there is room, but there is a line as well"
        assert state(conn, newcomer) == "blocked"

    def test_one_of_a_higher_priority_does(self, conn: Conn) -> None:
        ages(conn, 3, priority=2)
        (held,) = tokens(take(conn)["claimed"])
        urgent = keyed(conn, priority=1)
        settle(conn, Settle(held, "released"))  # handed back: nobody is let out of the line
        assert ids(take(conn)["claimed"]) == [urgent]

    def test_they_come_out_in_order_of_priority_and_age(self, conn: Conn) -> None:
        low = ages(conn, 2, priority=1)
        high = ages(conn, 2, priority=0)
        order = []
        found = take(conn)
        while "claimed" in found:
            (held,) = tokens(found["claimed"])
            order.append(held[0])
            settle(conn, held)
            found = take(conn)
        assert order == high + low

    def test_who_was_let_out_in_vain_keeps_his_place(self, conn: Conn) -> None:
        _, second, third = ages(conn, 3)
        take(conn)
        conn.execute(
            "update jobs.job set state = 'ready', available_at = clock_timestamp() where id = %s",
            [second],
        )
        assert set(take(conn)) == {"parked"}
        assert tables.job(conn, second)["waiting_since"] < tables.job(conn, third)["waiting_since"]

    def test_a_failed_attempt_forgets_it(self, conn: Conn) -> None:
        _, second, third = ages(conn, 3)
        (held,) = tokens(take(conn)["claimed"])
        settle(conn, held)
        (held,) = tokens(take(conn)["claimed"])
        assert held[0] == second
        settle(conn, retry(held))
        assert tables.job(conn, second)["waiting_since"] is None
        assert ids(take(conn)["claimed"]) == [third]

    def test_who_is_let_out_is_due_now(self, conn: Conn) -> None:
        """So that a claim that has passed by the old due times finds him."""
        _, second = ages(conn, 2)
        (held,) = tokens(take(conn)["claimed"])
        settle(conn, held)
        row = tables.job(conn, second)
        assert row["state"] == "ready"
        assert row["available_at"] > row["created_at"]


class TestSettle:
    @pytest.mark.parametrize("outcome", ["completed", "dead", "retry", "cancelled", "snoozed"])
    def test_it_lets_the_slot_go_and_the_next_one_out(self, conn: Conn, outcome: str) -> None:
        _, second, third = ages(conn, 3)
        (held,) = tokens(take(conn)["claimed"])
        (row,) = settle_rows(conn, [Settle(held, outcome, HOUR)])
        assert (row.vacant_key, row.promoted_queues) == (None, ["q"])
        assert slots(conn) == {}
        assert (state(conn, second), state(conn, third)) == ("ready", "blocked")

    def test_one_that_is_handed_back_for_at_once_goes_first(self, conn: Conn) -> None:
        """O-35 (b): it is claimable at once, and nobody waits without a holder."""
        first, *_ = ages(conn, 3)
        (held,) = tokens(take(conn)["claimed"])
        (row,) = settle_rows(conn, [Settle(held, "released")])
        assert row.promoted_queues == []
        assert slots(conn) == {}
        assert ids(take(conn, worker="w2")["claimed"]) == [first]

    def test_nobody_in_the_line_is_told(self, conn: Conn) -> None:
        keyed(conn)
        (held,) = tokens(take(conn)["claimed"])
        (row,) = settle_rows(conn, [Settle(held)])
        assert (row.vacant_key, row.promoted_queues) == ("k", [])

    def test_a_job_without_a_key_says_nothing_of_it(self, conn: Conn) -> None:
        made(conn)
        (held,) = tokens(take(conn)["claimed"])
        (row,) = settle_rows(conn, [Settle(held)])
        assert (row.vacant_key, row.promoted_queues) == (None, None)

    def test_several_of_a_batch_let_out_as_many(self, conn: Conn) -> None:
        ages(conn, 6, limit=3)
        held = tokens(take(conn)["claimed"])
        rows = settle_rows(conn, [Settle(one) for one in held[:2]])
        assert [row.vacant_key for row in rows] == [None, None]
        assert states(conn) == {"running": 1, "ready": 2, "blocked": 1}

    def test_a_lost_settle_leaves_the_slot(self, conn: Conn) -> None:
        id = keyed(conn)
        (held,) = tokens(take(conn)["claimed"])
        tables.lapse(conn, id)
        take(conn, rescue=True, worker="w2")
        assert settle(conn, held) == [("lost", None)]
        assert slots(conn) == {1: id}

    def test_in_the_transaction_of_the_body_the_slot_stays(self, conn: Conn) -> None:
        first, second = ages(conn, 2)
        (held,) = tokens(take(conn)["claimed"])
        settle_rows(conn, [Settle(held)], release=False)
        assert slots(conn) == {1: first}
        assert state(conn, second) == "blocked"

    def test_its_repeat_lets_it_go(self, conn: Conn) -> None:
        _, second = ages(conn, 2)
        (held,) = tokens(take(conn)["claimed"])
        settle_rows(conn, [Settle(held)], release=False)
        (row,) = settle_rows(conn, [retry(held)])
        assert (row.verdict, row.promoted_queues) == ("repeated", ["q"])
        assert slots(conn) == {}
        assert state(conn, second) == "ready"

    def test_a_repeat_after_another_claim_does_not(self, conn: Conn) -> None:
        id = keyed(conn)
        (held,) = tokens(take(conn)["claimed"])
        settle(conn, retry(held))
        take(conn, worker="w2")
        assert settle(conn, held) == [("repeated", None)]
        assert slots(conn) == {1: id}


class TestRescue:
    def test_a_rescued_holder_keeps_its_slot(self, conn: Conn) -> None:
        """O-04: it does not count as another one that is in its own way."""
        first, second = ages(conn, 2)
        take(conn)
        tables.lapse(conn, first)
        assert ids(take(conn, rescue=True, worker="w2")["claimed"]) == [first]
        assert slots(conn) == {1: first}
        assert state(conn, second) == "blocked"

    def test_a_burial_frees_it(self, conn: Conn) -> None:
        first, second = ages(conn, 2, max_attempts=1)
        take(conn)
        tables.lapse(conn, first)
        (row,) = take(conn, rescue=True, worker="w2")["buried"]
        assert (row.id, row.concurrency_key) == (first, "k")
        assert slots(conn) == {}
        assert promote(conn, "k") == [("promoted", "k", "q")]
        assert ids(take(conn)["claimed"]) == [second]

    def test_the_grave_keeps_key_limit_and_manner(self, conn: Conn) -> None:
        id = keyed(conn, limit=7, max_attempts=1)
        take(conn)
        tables.lapse(conn, id)
        take(conn, rescue=True)
        row = tables.settled(conn, id)
        assert [row[name] for name in ("concurrency_key", "concurrency_limit", "when_busy")] == [
            "k",
            7,
            "wait",
        ]


class TestFail:
    def test_it_is_refused_while_another_runs(self, conn: Conn) -> None:
        holder = keyed(conn)
        take(conn)
        id = keyed(conn, when_busy="fail", limit=1)
        (row,) = take(conn)["refused"]
        assert (row.id, row.concurrency_key, row.claims) == (id, "k", 0)
        end = tables.settled(conn, id)
        assert (end["state"], end["stop_reason"]) == ("failed", "refused")
        assert (end["attempt"], end["claims"], end["worker"]) == (0, 0, None)
        assert tables.counters(conn) == {"refused": 1}
        assert slots(conn) == {1: holder}

    def test_of_two_in_one_claim_one_runs(self, conn: Conn) -> None:
        ages(conn, 2, when_busy="fail")
        found = take(conn)
        assert (len(found["claimed"]), len(found["refused"])) == (1, 1)

    def test_it_runs_where_there_is_room(self, conn: Conn) -> None:
        id = keyed(conn, when_busy="fail")
        assert ids(take(conn)["claimed"]) == [id]

    def test_a_slot_of_its_own_that_was_left_is_no_proof(self, conn: Conn) -> None:
        id = keyed(conn, when_busy="fail")
        leave_slot(conn, id)
        assert set(take(conn)) == {"parked"}
        assert state(conn, id) == "blocked"
        assert promote(conn, most=10, tidy=True) == [("promoted", "k", "q")]
        assert ids(take(conn)["claimed"]) == [id]

    def test_a_slot_whose_job_has_ended_is_none_either(self, conn: Conn) -> None:
        keyed(conn)
        (held,) = tokens(take(conn)["claimed"])
        settle_rows(conn, [Settle(held)], release=False)
        id = keyed(conn, when_busy="fail")
        assert set(take(conn)) == {"parked"}
        settle(conn, held)
        assert ids(take(conn)["claimed"]) == [id]

    def test_nor_is_one_whose_lease_has_lapsed(self, conn: Conn) -> None:
        holder = keyed(conn)
        take(conn)
        tables.lapse(conn, holder)
        id = keyed(conn, when_busy="fail")
        assert set(take(conn)) == {"parked"}
        assert state(conn, id) == "blocked"

    def test_a_retry_that_meets_another_is_refused(self, conn: Conn) -> None:
        id = keyed(conn, when_busy="fail")
        (held,) = tokens(take(conn)["claimed"])
        settle(conn, retry(held))
        keyed(conn, run_at=dt.datetime(1970, 1, 1, tzinfo=dt.UTC))
        assert len(take(conn, 1)["claimed"]) == 1
        assert ids(take(conn)["refused"]) == [id]
        end = tables.settled(conn, id)
        assert (end["attempt"], end["last_error"]) == (1, "ValueError: no luck")
