"""ClaimJobs without contention: what is taken, in which order, and what it leaves on the row."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest
from psycopg import Connection, errors

from jobs_sql.claim import claim_jobs
from tests.sql import tables
from tests.sql.calls import (
    HOUR,
    MINUTE,
    STRAIGHT,
    Settle,
    claim,
    claim_ids,
    claim_one,
    made,
    new_id,
    retry,
    running,
    seed,
    settle,
)

pytestmark = pytest.mark.majors

Conn = Connection[Any]


def pause(conn: Conn, queue: str) -> None:
    conn.execute("insert into jobs.pause (kind, name) values ('queue', %s)", [queue])


class TestOrder:
    def test_priority_comes_before_due_time_before_id(self, conn: Conn) -> None:
        start = dt.datetime(2020, 1, 1, tzinfo=dt.UTC)
        ids = sorted(new_id() for _ in range(5))
        wanted = [
            made(conn, id=ids[4], priority=0, run_at=start + HOUR),
            made(conn, id=ids[3], priority=1, run_at=start),
            made(conn, id=ids[0], priority=1, run_at=start + MINUTE),
            made(conn, id=ids[1], priority=1, run_at=start + MINUTE),
            made(conn, id=ids[2], priority=3, run_at=start),
        ]
        made(conn, run_at=start, queue="other")

        assert [claim_one(conn, queues=1).id for _ in wanted] == wanted
        assert claim(conn, 1) == []

    def test_each_of_the_four_priorities_is_served(self, conn: Conn) -> None:
        ids = [made(conn, priority=priority) for priority in (3, 2, 1, 0)]
        assert [claim_one(conn, queues=1).id for _ in ids] == ids[::-1]

    def test_a_batch_is_cut_at_the_lower_priorities(self, conn: Conn) -> None:
        low = seed(conn, 5, priority="2", available_at="now() - interval '1 hour'")
        high = seed(conn, 5, priority="1")
        taken = claim_ids(conn, 7)
        assert taken > set(high)
        assert len(taken & set(low)) == 2


class TestSlots:
    @pytest.mark.parametrize("free", [1, 3, 7])
    def test_exactly_the_free_slots_are_filled(self, conn: Conn, free: int) -> None:
        seed(conn, 40, priority="i % 4")
        assert len(claim_ids(conn, free)) == free
        assert tables.where(conn, [row[0] for row in conn.execute("select id from jobs.job")]) == {
            "running": free,
            "ready": 40 - free,
        }

    def test_several_queues_in_one_statement_each_with_its_own_number(self, conn: Conn) -> None:
        for queue in ("a", "b", "c", "d"):
            seed(conn, 10, queue=f"'{queue}'", priority="i % 2")
        rows = claim(conn, {"a": 3, "b": 1, "c": 20})
        assert {q: sum(row.queue == q for row in rows) for q in "abcd"} == {
            "a": 3,
            "b": 1,
            "c": 10,
            "d": 0,
        }

    def test_a_queue_without_a_free_slot_is_left_alone(self, conn: Conn) -> None:
        seed(conn, 3)
        seed(conn, 3, queue="'r'")
        assert {row.queue for row in claim(conn, {"q": 0, "r": 5})} == {"r"}

    def test_a_queue_asked_twice_gives_no_more_than_its_slots_and_nothing_twice(
        self, conn: Conn
    ) -> None:
        seed(conn, 20)
        rows = claim_jobs(
            conn,
            queues=["q", "q"],
            free=[3, 5],
            worker="w1",
            lease=MINUTE,
            rescue=False,
            rescue_limit=0,
            limited=[],
            limits=[],
            park_limit=0,
            sweep=False,
            ahead=False,
            **STRAIGHT,
        )
        assert len(rows) == len({row.id for row in rows}) == 5

    def test_an_empty_result_is_an_empty_list(self, conn: Conn) -> None:
        assert claim(conn, {"q": 5, "r": 1}, rescue=True) == []


class TestDue:
    def test_only_due_jobs_are_taken(self, conn: Conn) -> None:
        due = made(conn)
        later = made(conn, delay=HOUR)
        assert claim_ids(conn) == {due}
        tables.make_due(conn, later)
        assert claim_ids(conn) == {later}

    def test_a_start_time_in_the_past_is_due(self, conn: Conn) -> None:
        old = made(conn, run_at=dt.datetime(1970, 1, 1, tzinfo=dt.UTC))
        assert claim_ids(conn) == {old}

    @pytest.mark.parametrize("state", ["suspended", "blocked"])
    def test_other_states_are_not_taken(self, conn: Conn, state: str) -> None:
        seed(conn, 2, state=f"'{state}'", available_at="now() - interval '1 day'")
        assert claim(conn, rescue=True) == []


class TestPause:
    def test_a_paused_queue_gives_nothing_until_it_is_resumed(self, conn: Conn) -> None:
        paused, other = made(conn), made(conn, queue="r")
        pause(conn, "q")
        assert claim_ids(conn, {"q": 5, "r": 5}) == {other}
        conn.execute("delete from jobs.pause")
        assert claim_ids(conn, {"q": 5, "r": 5}) == {paused}

    def test_a_paused_task_of_the_same_name_does_not_matter(self, conn: Conn) -> None:
        id = made(conn)
        conn.execute("insert into jobs.pause (kind, name) values ('task', 'q')")
        assert claim_ids(conn) == {id}

    def test_lapsed_jobs_of_a_paused_queue_wait_too(self, conn: Conn) -> None:
        held = running(conn)
        tables.lapse(conn, held[0])
        pause(conn, "q")
        assert claim(conn, rescue=True) == []
        conn.execute("delete from jobs.pause")
        assert claim_one(conn, rescue=True).id == held[0]


class TestTheRow:
    def test_a_claim_sets_token_attempt_worker_and_lease(self, conn: Conn) -> None:
        id = made(conn)
        row = claim_one(conn, worker="w7", lease=dt.timedelta(seconds=90))
        kept = tables.job(conn, id)
        assert (row.claims, row.attempt) == (1, 1)
        assert {key: kept[key] for key in ("state", "worker", "claims", "attempt", "revoked")} == {
            "state": "running",
            "worker": "w7",
            "claims": 1,
            "attempt": 1,
            "revoked": 0,
        }
        assert kept["lease_expires_at"] - kept["claimed_at"] == dt.timedelta(seconds=90)
        assert kept["rescue_at"] == kept["lease_expires_at"]
        assert kept["last_error"] is None

    def test_the_token_grows_with_every_claim_and_the_attempt_with_every_begun_one(
        self, conn: Conn
    ) -> None:
        held = running(conn)
        settle(conn, retry(held))
        second = claim_one(conn)
        settle(conn, Settle((second.id, second.claims), "released"))
        third = claim_one(conn)
        assert [
            (held[1], 1),
            (second.claims, second.attempt),
            (third.claims, third.attempt),
        ] == [(1, 1), (2, 2), (3, 2)]

    def test_everything_that_the_runner_needs_comes_back(self, conn: Conn) -> None:
        id, run_id = new_id(), new_id()
        traceparent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
        made(
            conn,
            id=id,
            run_id=run_id,
            name="mail",
            tenant="t1",
            priority=2,
            max_attempts=7,
            traceparent=traceparent,
            enqueued_by="alice",
            input='{"a":  1, "a": 2}',
        )
        row = claim_one(conn)
        kept = tables.job(conn, id)
        assert row._asdict() == {
            "verdict": "claimed",
            "id": id,
            "run_id": str(run_id),
            "queue": "q",
            "name": "mail",
            "tenant": "t1",
            "priority": 2,
            "attempt": 1,
            "max_attempts": 7,
            "claims": 1,
            "available_epoch": kept["available_at"].timestamp(),
            "created_epoch": kept["created_at"].timestamp(),
            "traceparent": traceparent,
            "enqueued_by": "alice",
            "input": '{"a":  1, "a": 2}',
            "concurrency_key": None,
        }

    @pytest.mark.parametrize("limit", [2**31 - 1, 2**31, 2**63 - 2])
    def test_counters_have_room_beyond_thirty_one_bits(self, conn: Conn, limit: int) -> None:
        (id,) = seed(
            conn, 1, attempt=f"{limit - 1}", max_attempts=f"{limit}", claims=f"{limit - 1}"
        )
        row = claim_one(conn)
        assert (row.id, row.attempt, row.max_attempts, row.claims) == (id, limit, limit, limit)
        assert settle(conn, (id, limit)) == [("landed", "completed")]


class TestPoisonedNeighbours:
    def test_text_that_only_looks_like_sane_json_comes_out_as_it_went_in(self, conn: Conn) -> None:
        payloads = [
            r'"\ud800"',
            r'{"a": "\u0000"}',
            '{"a": 1e999999}',
            '{"a":1,"a":[]}',
            "[" * 5000 + "]" * 5000,
            " null ",
        ]
        ids = {made(conn, input=text): text for text in payloads}
        good = made(conn)
        rows = claim(conn, 20)
        assert {row.id: row.input for row in rows} == ids | {good: "{}"}

    def test_what_is_not_json_is_refused_at_the_enqueue(self, conn: Conn) -> None:
        with pytest.raises(errors.InvalidTextRepresentation):
            made(conn, input="{'a': 1}")
        assert claim(conn) == []
