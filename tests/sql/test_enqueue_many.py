"""EnqueueJobs: an answer for each row, keys and ids that repeat, order, size."""

from __future__ import annotations

import datetime as dt
from typing import Any
from uuid import UUID

import pytest
from psycopg import Connection, errors

from tests.sql import tables
from tests.sql.calls import (
    HOUR,
    MINUTE,
    Item,
    claim_ids,
    claim_one,
    enqueue_many,
    find,
    made,
    new_id,
    running,
    settle,
)
from tests.support.buffers import explain

pytestmark = pytest.mark.majors

Conn = Connection[Any]

CREATED, EXISTING, UNKNOWN = "created", "existing", "unknown"


class TestAnswers:
    def test_new_rows_carry_what_was_asked(self, conn: Conn) -> None:
        at = dt.datetime(2040, 1, 1, tzinfo=dt.UTC)
        items = [
            Item(key="a", tenant="t1", priority=1, input='{"n":  1}'),
            Item(key="b", tenant="t2", priority=2, run_at=at),
            Item(key=None, delay=HOUR, id=new_id(), run_id=new_id()),
        ]
        trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
        answers = enqueue_many(
            conn,
            items,
            queue="mail",
            name="send",
            max_attempts=9,
            dead_letter=False,
            idempotency_scope="waiting",
            traceparent=trace,
            enqueued_by="alice",
        )
        assert [answer.verdict for answer in answers] == [CREATED] * 3
        rows = [tables.job(conn, answer.id) for answer in answers if answer.id]
        for item, answer, row in zip(items, answers, rows, strict=True):
            assert answer.run_id == answer.asked_run_id == row["run_id"]
            assert (row["tenant"], row["priority"]) == (item.tenant, item.priority)
            assert (row["idempotency_key"], row["input"]) == (item.key, item.input)
            assert (row["queue"], row["name"], row["max_attempts"]) == ("mail", "send", 9)
            assert (row["dead_letter"], row["idempotency_scope"]) == (False, "waiting")
            assert (row["traceparent"], row["enqueued_by"]) == (trace, "alice")
        assert rows[1]["available_at"] == at
        assert abs(rows[2]["available_at"] - rows[2]["created_at"] - HOUR) < MINUTE
        assert answers[2].id == items[2].id
        assert answers[2].run_id == items[2].run_id

    @pytest.mark.parametrize("scope", ["live", "waiting"])
    def test_taken_keys_are_answered_with_their_holder(self, conn: Conn, scope: str) -> None:
        run_id = new_id()
        holder = made(conn, idempotency_scope=scope, idempotency_key="b", run_id=run_id)
        before = tables.job(conn, holder)
        a, b, c = enqueue_many(conn, [Item(key=key) for key in "abc"], idempotency_scope=scope)
        assert [a.verdict, b.verdict, c.verdict] == [CREATED, EXISTING, CREATED]
        assert (b.id, b.run_id) == (holder, run_id)
        assert tables.job(conn, holder) == before

    def test_a_running_holder_counts_for_scope_live_and_not_for_waiting(self, conn: Conn) -> None:
        live = running(conn, idempotency_key="a")
        running(conn, idempotency_scope="waiting", idempotency_key="b")
        a, b = enqueue_many(conn, [Item(key="a"), Item(key="b")])
        assert (a.verdict, a.id) == (EXISTING, live[0])
        assert b.verdict == CREATED

    def test_nothing_asked_nothing_answered(self, conn: Conn) -> None:
        assert enqueue_many(conn, []) == []

    def test_one_bad_row_inserts_nothing(self, conn: Conn) -> None:
        with pytest.raises(errors.CheckViolation):
            enqueue_many(conn, [Item(key="a"), Item(key="b", priority=9)])
        assert find(conn, "a") is None


class TestRepeats:
    def test_a_key_twice_in_one_batch_is_one_job(self, conn: Conn) -> None:
        answers = enqueue_many(conn, [Item(key=key) for key in "abacba"])
        created = {answer.id for answer in answers if answer.verdict == CREATED}
        assert len(created) == 3
        assert {answer.verdict for answer in answers} == {CREATED, EXISTING}
        by_key = {key: {answers[n].id for n, k in enumerate("abacba") if k == key} for key in "abc"}
        assert all(len(ids) == 1 for ids in by_key.values())
        assert set.union(*by_key.values()) == created
        run_ids = {answer.id: answer.run_id for answer in answers if answer.verdict == CREATED}
        assert all(answer.run_id == run_ids[answer.id] for answer in answers)

    def test_a_key_twice_that_exists_already_is_that_job_both_times(self, conn: Conn) -> None:
        holder = made(conn, idempotency_key="a")
        answers = enqueue_many(conn, [Item(key="a"), Item(key="a")])
        assert [(row.verdict, row.id) for row in answers] == [(EXISTING, holder)] * 2

    def test_one_key_of_two_tenants_is_two_jobs(self, conn: Conn) -> None:
        tenants = ["", "t", "t", ""]
        answers = enqueue_many(conn, [Item(key="a", tenant=tenant) for tenant in tenants])
        assert sorted(row.verdict for row in answers) == [CREATED, CREATED, EXISTING, EXISTING]
        assert answers[0].id == answers[3].id
        assert answers[1].id == answers[2].id
        assert answers[0].id != answers[1].id

    def test_the_holder_is_one_of_the_same_name_and_tenant(self, conn: Conn) -> None:
        made(conn, name="a", tenant="b", idempotency_key="k")
        made(conn, tenant="a", idempotency_key="k")
        holder = made(conn, tenant="b", idempotency_key="k")
        made(conn, tenant="c", idempotency_key="k")
        (answer,) = enqueue_many(conn, [Item(key="k", tenant="b")])
        assert (answer.verdict, answer.id) == (EXISTING, holder)

    def test_rows_without_a_key_are_never_the_same(self, conn: Conn) -> None:
        answers = enqueue_many(conn, [Item() for _ in range(5)])
        assert [row.verdict for row in answers] == [CREATED] * 5
        assert len({row.id for row in answers}) == 5

    def test_an_id_twice_is_one_job_and_the_second_look_tells_which(self, conn: Conn) -> None:
        id = new_id()
        answers = enqueue_many(conn, [Item(id=id, key="a"), Item(id=id, key="b")])
        assert sorted(row.verdict for row in answers) == [CREATED, UNKNOWN]
        found = find(conn, None, id=id)
        assert found is not None
        assert found.run_id in {row.run_id for row in answers if row.verdict == CREATED}


class TestSuppliedIds:
    def test_live_and_finished_ones_insert_nothing(self, conn: Conn) -> None:
        live = made(conn)
        finished = running(conn)
        settle(conn, finished)
        new = new_id()
        answers = enqueue_many(conn, [Item(id=live), Item(id=finished[0]), Item(id=new)])
        assert [(row.verdict, row.id) for row in answers] == [
            (EXISTING, live),
            (EXISTING, finished[0]),
            (CREATED, new),
        ]
        assert answers[1].run_id == tables.settled(conn, finished[0])["run_id"]

    def test_a_live_one_beside_new_rows_without_a_key_is_itself(self, conn: Conn) -> None:
        first, live = UUID(int=1), UUID(int=2)
        made(conn, id=live)
        answers = enqueue_many(conn, [Item(id=first), Item(id=live)])
        assert [(row.verdict, row.id) for row in answers] == [(CREATED, first), (EXISTING, live)]

    def test_an_id_and_a_key_of_two_different_jobs_insert_nothing(self, conn: Conn) -> None:
        by_id, by_key = made(conn), made(conn, idempotency_key="k")
        (answer,) = enqueue_many(conn, [Item(id=by_id, key="k")])
        assert answer.verdict == EXISTING
        assert answer.id in {by_id, by_key}


class TestOrder:
    def test_jobs_of_one_batch_are_due_in_the_order_given(self, conn: Conn) -> None:
        """Whatever order the keys are locked in."""
        answers = enqueue_many(conn, [Item(key=f"k{n}", id=new_id()) for n in range(200)])
        due = [tables.job(conn, row.id)["available_at"] for row in answers if row.id]
        assert len(due) == 200
        assert due == sorted(due)
        assert due[0] < due[-1]
        assert claim_one(conn, queues=1).id == answers[0].id


def arrays(keys: list[str]) -> dict[str, Any]:
    """Arguments of EnqueueJobs, a row for each key."""
    count = len(keys)
    return {
        "ids": [new_id() for _ in keys],
        "run_ids": [new_id() for _ in keys],
        "tenants": [""] * count,
        "priorities": [0] * count,
        "run_ats": [None] * count,
        "delays": [dt.timedelta(0)] * count,
        "idempotency_keys": keys,
        "concurrency_keys": [None] * count,
        "concurrency_limit": None,
        "when_busy": None,
        "inputs": ["{}"] * count,
        "queue": "q",
        "name": "n",
        "max_attempts": 3,
        "dead_letter": True,
        "idempotency_scope": "live",
        "traceparent": None,
        "enqueued_by": None,
        "ids_supplied": False,
    }


class TestSize:
    def test_the_cost_is_linear_in_the_rows(self, conn: Conn) -> None:
        """Answers for existing and repeated keys must not search the batch row by row."""

        def rows_touched(count: int) -> float:
            enqueue_many(conn, [Item(key=f"{count}-{n}") for n in range(0, count, 2)])
            keys = [f"{count}-{n}" for n in range(count)]
            keys += [f"{count}+{n // 2}" for n in range(count)]
            plan = explain(conn, "EnqueueJobs", **arrays(keys))
            assert plan.rows == len(keys)
            dropped = "Rows Removed by Filter"
            return sum((n.rows + n.raw.get(dropped, 0)) * n.loops for n in plan.nodes)

        assert rows_touched(2000) < 2 * 4 * rows_touched(500)

    def test_ten_thousand_in_one_statement(self, conn: Conn) -> None:
        answers = enqueue_many(conn, [Item(key=f"k{n}", tenant=f"t{n % 3}") for n in range(10_000)])
        assert {row.verdict for row in answers} == {CREATED}
        assert len(claim_ids(conn, 20_000)) == 10_000
