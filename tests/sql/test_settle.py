"""SettleJobs: what each outcome leaves behind, and batches that hold odd ones."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest
from psycopg import Connection

from tests.sql import tables
from tests.sql.calls import (
    HOUR,
    MINUTE,
    NOTHING,
    Held,
    Item,
    Settle,
    claim,
    claim_ids,
    claim_one,
    dead,
    enqueue,
    enqueue_many,
    made,
    new_id,
    retry,
    running,
    seed,
    settle,
    settle_rows,
)
from tests.sql.test_rescue import copy_to_settled

pytestmark = pytest.mark.majors

Conn = Connection[Any]


WAITING = {"idempotency_scope": "waiting", "idempotency_key": "k"}


def released(held: Held, delay: dt.timedelta = NOTHING) -> Settle:
    return Settle(held, "released", delay)


class TestCompleted:
    def test_the_row_moves_with_everything_on_it(self, conn: Conn) -> None:
        held = running(
            conn,
            name="mail",
            tenant="t",
            priority=2,
            idempotency_key="k",
            traceparent="00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            enqueued_by="alice",
            input='{"b":  [1, 2],"a": null}',
        )
        before = tables.job(conn, held[0])
        assert settle(conn, held) == [("landed", "completed")]
        grave = tables.settled(conn, held[0])
        own = {"xmin", "xmax", "ctid", "settled_at", "state", "stop_reason", "result"}
        assert {key: grave[key] for key in grave.keys() - own} == {
            key: before[key] for key in grave.keys() - own
        }
        assert (grave["state"], grave["stop_reason"]) == ("completed", None)
        assert grave["settled_at"] >= grave["claimed_at"]
        assert tables.counters(conn) == {"completed": 1}

    def test_the_error_of_an_earlier_attempt_stays_readable(self, conn: Conn) -> None:
        held = running(conn)
        settle(conn, retry(held, message="first"))
        row = claim_one(conn)
        settle(conn, (row.id, row.claims))
        assert tables.settled(conn, held[0])["last_error"] == "ValueError: first"

    def test_the_key_is_free_again(self, conn: Conn) -> None:
        held = running(conn, idempotency_key="k")
        assert enqueue(conn, idempotency_key="k") is None
        settle(conn, held)
        assert enqueue(conn, idempotency_key="k") is not None


class TestRetry:
    def test_it_is_ready_again_after_the_delay(self, conn: Conn) -> None:
        held = running(conn)
        before = tables.job(conn, held[0])
        assert settle(conn, retry(held, HOUR, "boom")) == [("landed", "ready")]
        after = tables.job(conn, held[0])
        assert after["available_at"] - before["claimed_at"] >= HOUR
        assert {
            key: after[key] for key in ("state", "worker", "lease_expires_at", "rescue_at")
        } == {
            "state": "ready",
            "worker": None,
            "lease_expires_at": None,
            "rescue_at": None,
        }
        assert (after["attempt"], after["claims"], after["revoked"]) == (1, 1, 0)
        assert after["last_error"] == "ValueError: boom"
        assert tables.attempts(conn, held[0]) == [(1, 1, "ValueError", "boom", "Traceback ...")]
        assert tables.counters(conn) == {"retried": 1}

    def test_without_a_delay_it_is_due_at_once(self, conn: Conn) -> None:
        held = running(conn)
        settle(conn, retry(held))
        assert claim_ids(conn) == {held[0]}

    def test_a_failed_job_lines_up_behind_those_that_were_due(self, conn: Conn) -> None:
        held = running(conn)
        other = made(conn)
        settle(conn, retry(held))
        assert [claim_one(conn, queues=1).id for _ in range(2)] == [other, held[0]]

    @pytest.mark.parametrize(("dead_letter", "state"), [(True, "dead"), (False, "failed")])
    def test_at_the_ceiling_it_is_exhausted(
        self, conn: Conn, dead_letter: bool, state: str
    ) -> None:
        held = running(conn, max_attempts=1, dead_letter=dead_letter)
        assert settle(conn, retry(held, message="boom")) == [("landed", state)]
        grave = tables.settled(conn, held[0])
        assert (grave["state"], grave["stop_reason"]) == (state, "exhausted")
        assert grave["last_error"] == "ValueError: boom"
        assert len(tables.attempts(conn, held[0])) == 1
        assert tables.counters(conn) == {state: 1}

    def test_it_is_tried_as_often_as_it_was_told(self, conn: Conn) -> None:
        id = made(conn, max_attempts=3)
        states = []
        while rows := claim(conn):
            states += settle(conn, retry((rows[0].id, rows[0].claims)))
        assert states == [("landed", "ready"), ("landed", "ready"), ("landed", "dead")]
        assert [row[:2] for row in tables.attempts(conn, id)] == [(1, 1), (2, 2), (3, 3)]


class TestDead:
    @pytest.mark.parametrize(("dead_letter", "state"), [(True, "dead"), (False, "failed")])
    def test_a_terminal_error_ends_it_with_attempts_left(
        self, conn: Conn, dead_letter: bool, state: str
    ) -> None:
        held = running(conn, max_attempts=9, dead_letter=dead_letter)
        assert settle(conn, dead(held, "no such user")) == [("landed", state)]
        grave = tables.settled(conn, held[0])
        assert (grave["state"], grave["stop_reason"]) == (state, "terminal")
        assert grave["last_error"] == "TypeError: no such user"
        assert tables.counters(conn) == {state: 1}


class TestReleased:
    def test_the_attempt_is_given_back(self, conn: Conn) -> None:
        held = running(conn)
        settle(conn, retry(held))
        row = claim_one(conn)
        assert (row.attempt, row.claims) == (2, 2)
        assert settle(conn, released((row.id, row.claims))) == [("landed", "ready")]
        kept = tables.job(conn, held[0])
        assert (kept["attempt"], kept["claims"]) == (1, 2)
        assert kept["last_error"] == "ValueError: no luck"
        assert len(tables.attempts(conn, held[0])) == 1
        assert tables.counters(conn) == {"retried": 1}

    def test_never_below_zero(self, conn: Conn) -> None:
        held = running(conn)
        conn.execute("update jobs.job set attempt = 0")
        settle(conn, released(held))
        assert tables.job(conn, held[0])["attempt"] == 0

    def test_on_the_last_attempt_too(self, conn: Conn) -> None:
        held = running(conn, max_attempts=1)
        assert settle(conn, released(held)) == [("landed", "ready")]
        row = claim_one(conn)
        assert (row.attempt, row.claims) == (1, 2)

    def test_it_waits_out_its_delay(self, conn: Conn) -> None:
        held = running(conn)
        before = tables.job(conn, held[0])
        settle(conn, released(held, HOUR))
        after = tables.job(conn, held[0])
        assert after["available_at"] - before["claimed_at"] >= HOUR

    def test_handing_back_for_ever_changes_neither_attempt_nor_limit(self, conn: Conn) -> None:
        """O-19: the first real failure after any number of them is the first attempt."""
        id = made(conn)
        conn.execute("update jobs.job set claims = 40000")
        for _ in range(100):
            row = claim_one(conn)
            settle(conn, released((row.id, row.claims)))
        row = claim_one(conn)
        assert (row.claims, row.attempt, row.max_attempts) == (40101, 1, 3)
        settle(conn, retry((row.id, row.claims)))
        assert [row[:2] for row in tables.attempts(conn, id)] == [(40101, 1)]


class TestErrors:
    def test_the_last_error_survives_a_settle_that_brings_none(self, conn: Conn) -> None:
        held = running(conn)
        settle(conn, retry(held, message="first"))
        row = claim_one(conn)
        settle(conn, Settle((row.id, row.claims), "retry"))
        assert tables.job(conn, held[0])["last_error"] == "ValueError: first"
        assert len(tables.attempts(conn, held[0])) == 1

    def test_an_error_without_a_message_is_an_error(self, conn: Conn) -> None:
        held = running(conn)
        settle(conn, Settle(held, "retry", NOTHING, "KeyError", None, None))
        assert tables.job(conn, held[0])["last_error"] == "KeyError: "
        assert tables.attempts(conn, held[0]) == [(1, 1, "KeyError", "", None)]

    def test_the_row_keeps_the_head_of_a_long_message_and_the_attempt_all_of_it(
        self, conn: Conn
    ) -> None:
        held = running(conn)
        message = "é" * 100_000
        settle(conn, retry(held, message=message))
        assert tables.job(conn, held[0])["last_error"] == "ValueError: " + "é" * 1000
        assert tables.attempts(conn, held[0])[0][3] == message

    def test_a_message_may_hold_anything_but_nul(self, conn: Conn) -> None:
        held = running(conn)
        message = "NULL,{}\"\\\n\t\r'%s$1\x01\U0001f600"
        settle(
            conn,
            retry(held, message=message),
        )
        assert tables.attempts(conn, held[0])[0][3] == message


class TestWaitingScope:
    def test_a_failure_with_a_waiting_sibling_is_superseded(self, conn: Conn) -> None:
        """O-14: never an error, the sibling runs, the reason is on record."""
        held = running(conn, **WAITING)
        sibling = made(conn, **WAITING)
        assert settle(conn, retry(held, message="boom")) == [("landed", "cancelled")]
        grave = tables.settled(conn, held[0])
        assert (grave["state"], grave["stop_reason"]) == ("cancelled", "superseded")
        assert grave["last_error"] == "ValueError: boom"
        assert len(tables.attempts(conn, held[0])) == 1
        assert tables.counters(conn) == {"cancelled": 1}
        assert claim_ids(conn) == {sibling}

    def test_a_hand_back_is_not(self, conn: Conn) -> None:
        held = running(conn, **WAITING)
        made(conn, **WAITING)
        assert settle(conn, released(held)) == [("landed", "ready")]
        assert len(claim_ids(conn)) == 2

    def test_nor_a_failure_without_a_sibling_of_the_same_name_tenant_and_key(
        self, conn: Conn
    ) -> None:
        held = running(conn, **WAITING)
        for other in ({"tenant": "t"}, {"name": "m"}, {"idempotency_key": "k2"}):
            made(conn, **(WAITING | other))
        assert settle(conn, retry(held)) == [("landed", "ready")]

    def test_exhausted_beats_superseded(self, conn: Conn) -> None:
        held = running(conn, max_attempts=1, **WAITING)
        made(conn, **WAITING)
        assert settle(conn, retry(held)) == [("landed", "dead")]

    def test_a_whole_crowd_of_one_key_fails_without_a_conflict(self, conn: Conn) -> None:
        held = [running(conn, **WAITING) for _ in range(5)]
        assert settle(conn, *map(retry, held)) == [("landed", "ready")] * 5
        sibling = made(conn, **WAITING)
        again = claim(conn)
        assert {row.id for row in again} == {id for id, _ in held} | {sibling}

    def test_jobs_that_share_a_key_do_not_stop_a_thousand_others(self, conn: Conn) -> None:
        """O-15: there is no promotion step, and a claim cannot meet the unique index."""
        first = running(conn, **WAITING)
        settle(conn, retry(first))
        second = made(conn, **WAITING)
        others = seed(conn, 1000, queue="'q' || i % 7")
        queues = {"q": 1000} | {f"q{n}": 1000 for n in range(7)}
        assert claim_ids(conn, queues) == {first[0], second, *others}


class TestDelays:
    @pytest.mark.parametrize("delay", [-HOUR, dt.timedelta.min, dt.timedelta(days=-(10**8)), None])
    def test_a_negative_or_missing_one_is_none(
        self, conn: Conn, delay: dt.timedelta | None
    ) -> None:
        held = running(conn)
        assert settle(conn, Settle(held, "retry", delay)) == [("landed", "ready")]
        kept = tables.job(conn, held[0])
        assert kept["available_at"] >= kept["claimed_at"]
        assert claim_ids(conn) == {held[0]}

    @pytest.mark.parametrize(
        "delay", [dt.timedelta.max, dt.timedelta(days=36525 * 3), dt.timedelta(days=106_000_001)]
    )
    def test_centuries_are_cut_at_ten_years(self, conn: Conn, delay: dt.timedelta) -> None:
        held, other = running(conn), running(conn)
        asked = [retry(held, delay), retry(other, MINUTE)]
        assert settle(conn, *asked) == [("landed", "ready")] * 2
        kept = tables.job(conn, held[0])
        ten_years = dt.timedelta(days=3650)
        assert ten_years <= kept["available_at"] - kept["claimed_at"] < ten_years + HOUR


class TestNumbers:
    @pytest.mark.parametrize("limit", [2**15, 2**31 - 1, 2**31, 2**63 - 2, 2**63 - 1])
    def test_counters_near_their_limits_land(self, conn: Conn, limit: int) -> None:
        """O-19, and the counters of O-20."""
        held, last = running(conn), running(conn)
        conn.execute("update jobs.job set max_attempts = %s, attempt = %s", [limit, limit - 1])
        conn.execute("update jobs.job set attempt = %s where id = %s", [limit, last[0]])
        assert settle(conn, retry(held), retry(last)) == [("landed", "ready"), ("landed", "dead")]
        row = claim_one(conn)
        assert (row.attempt, row.max_attempts) == (limit, limit)


class TestBatches:
    def test_every_outcome_in_one(self, conn: Conn) -> None:
        held = [running(conn) for _ in range(5)]
        last = running(conn, max_attempts=1, dead_letter=False)
        asked = [
            Settle(held[0]),
            retry(held[1]),
            dead(held[2]),
            released(held[3]),
            Settle(held[4]),
            retry(last),
        ]
        assert [state for verdict, state in settle(conn, *asked) if verdict == "landed"] == [
            "completed",
            "ready",
            "dead",
            "ready",
            "completed",
            "failed",
        ]
        assert tables.counters(conn) == {"completed": 2, "retried": 1, "dead": 1, "failed": 1}

    def test_counters_are_kept_by_name_and_minute(self, conn: Conn) -> None:
        held = [running(conn, name=name) for name in ("a", "a", "b")]
        settle(conn, *held)
        rows = conn.execute(
            "select name, amount, bucket = date_trunc('minute', bucket) from jobs.counter"
        ).fetchall()
        assert sorted(rows) == [("a", 2, True), ("b", 1, True)]

    def test_an_empty_one_answers_nothing(self, conn: Conn) -> None:
        assert settle(conn) == []
        assert tables.counters(conn) == {}

    def test_unknown_ids_are_lost_and_disturb_nobody(self, conn: Conn) -> None:
        held, waiting = running(conn), made(conn)
        assert settle(conn, (new_id(), 1), held, (waiting, 0), (waiting, 1)) == [
            ("lost", None),
            ("landed", "completed"),
            ("lost", None),
            ("lost", None),
        ]

    @pytest.mark.parametrize(("first", "state"), [("completed", "completed"), ("retry", "ready")])
    def test_the_first_of_a_repeated_pair_decides(self, conn: Conn, first: str, state: str) -> None:
        held = running(conn)
        others = ["dead", "completed", "retry", "released"]
        asked = [Settle(held, outcome, error_type="E") for outcome in [first, *others]]
        (row,) = settle_rows(conn, asked)
        assert (row.verdict, row.state) == ("landed", state)
        assert tables.where(conn, [held[0]]) == {state: 1}
        assert sum(tables.counters(conn).values()) == 1
        assert len(tables.attempts(conn, held[0])) == 1

    def test_two_tokens_of_one_job_are_told_apart(self, conn: Conn) -> None:
        """A process that lost a lease unnoticed and claimed the job again settles both at once."""
        first = running(conn)
        tables.lapse(conn, first[0])
        row = claim_one(conn, rescue=True)
        assert settle(conn, first, (row.id, row.claims)) == [
            ("lost", None),
            ("landed", "completed"),
        ]
        assert tables.counters(conn) == {"rescued": 1, "completed": 1}

    def test_an_id_that_is_finished_already_stops_nobody(self, conn: Conn) -> None:
        odd, other = running(conn), running(conn)
        copy_to_settled(conn, odd[0])
        assert [verdict for verdict, _ in settle(conn, odd, other)] == ["landed"] * 2
        assert tables.settled(conn, other[0])["state"] == "completed"
        assert tables.settled(conn, odd[0])["state"] == "completed"

    def test_a_payload_of_any_kind_moves_unread(self, conn: Conn) -> None:
        payloads = [r'"\ud800"', r'{"a": "\u0000"}', "1e999999", "[" * 5000 + "]" * 5000]
        answers = enqueue_many(conn, [Item(input=payload) for payload in payloads])
        held = [(row.id, row.claims) for row in claim(conn)]
        assert settle(conn, *held) == [("landed", "completed")] * 4
        kept = [tables.settled(conn, answer.id)["input"] for answer in answers if answer.id]
        assert kept == payloads
