"""RequeueJobs: what comes back and how, what is refused and why; pauses."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest
from psycopg import Connection

from jobs_sql import control as sql
from tests.sql import staging, tables
from tests.sql.calls import (
    HOUR,
    NOTHING,
    Settle,
    claim,
    claim_one,
    dead,
    enqueue,
    made,
    new_id,
    retry,
    running,
    settle,
    strict,
)
from tests.sql.gate import Gate
from tests.sql.operating import cancel, requeue, verdicts
from tests.support.stepped import Session

pytestmark = pytest.mark.majors

Conn = Connection[Any]
Sessions = Callable[..., Session]

REQUEUED = ("requeued", None, None)
REPEATED = ("repeated", None)
LOST = ("lost", None)


def ended(conn: Conn, state: str, **over: Any) -> UUID:
    """A job that has ended so."""
    held = running(conn, dead_letter=state != "failed", **over)
    if state == "cancelled":
        cancel(conn, held[0])
    (answer,) = settle(conn, held if state == "completed" else dead(held))
    assert answer == ("landed", state)
    return held[0]


class TestComingBack:
    @pytest.mark.parametrize("state", ["failed", "dead", "cancelled"])
    def test_all_attempts_are_to_come_and_nothing_else_is_new(self, conn: Conn, state: str) -> None:
        id = ended(
            conn,
            state,
            idempotency_key="k",
            tenant="t",
            priority=2,
            traceparent="00-" + "1" * 32 + "-" + "2" * 16 + "-01",
            enqueued_by="me",
            input='{"a":  1}',
            max_attempts=7,
        )
        before = tables.settled(conn, id)
        assert requeue(conn, id) == [REQUEUED]
        assert tables.one(conn, "settled", id) is None
        after = tables.job(conn, id)
        same = before.keys() & after.keys() - {"xmin", "xmax", "ctid"}
        same -= {"state", "attempt", "worker", "cancel_requested_at", "cancel_reason"}
        assert {key: after[key] for key in same} == {key: before[key] for key in same}
        assert (after["state"], after["attempt"], after["worker"]) == ("ready", 0, None)
        assert (after["cancel_requested_at"], after["cancel_reason"]) == (None, None)
        assert after["unique_key"] is not None
        row = claim_one(conn)
        assert (row.id, row.claims, row.attempt) == (id, 2, 1)
        assert enqueue(conn, idempotency_key="k", tenant="t") is None

    def test_a_completed_one_only_when_asked_for(self, conn: Conn) -> None:
        id = ended(conn, "completed")
        before = tables.everything(conn)
        assert requeue(conn, id) == [("completed", "completed", None)]
        assert tables.everything(conn) == before
        assert requeue(conn, id, completed=True) == [REQUEUED]
        assert claim_one(conn).claims == 2

    def test_its_failed_attempts_stay_and_new_ones_join_them(self, conn: Conn) -> None:
        id = ended(conn, "dead", max_attempts=1)
        requeue(conn, id)
        row = claim_one(conn)
        assert settle(conn, retry((row.id, row.claims))) == [("landed", "dead")]
        claims = [claims for claims, *_ in tables.attempts(conn, id)]
        assert claims == [1, 2]

    def test_a_delay_and_an_instant(self, conn: Conn) -> None:
        one, two = ended(conn, "dead"), ended(conn, "dead")
        mark = conn.execute("select clock_timestamp()").fetchone()
        assert mark is not None
        requeue(conn, one, delay=HOUR)
        later = mark[0] + 2 * HOUR
        requeue(conn, two, run_at=later)
        assert HOUR <= tables.job(conn, one)["available_at"] - mark[0] < 2 * HOUR
        assert tables.job(conn, two)["available_at"] == later
        assert claim(conn) == []

    def test_the_delay_counts_from_the_statement(self, conn: Conn, session: Sessions) -> None:
        id = ended(conn, "dead")
        operator = session("operator", autocommit=False)
        operator.run(lambda c: c.execute("select 1"))
        mark = conn.execute("select clock_timestamp()").fetchone()
        assert mark is not None
        operator.run(requeue, id)
        operator.run(Connection.commit)
        assert tables.job(conn, id)["available_at"] >= mark[0]

    def test_old_tokens_are_answered_as_before(self, conn: Conn) -> None:
        landed = running(conn)
        settle(conn, dead(landed))
        buried = running(conn, max_attempts=1)
        tables.lapse(conn, buried[0])
        assert [row.verdict for row in claim(conn, rescue=True)] == ["buried"]
        for _ in range(2):
            assert settle(conn, dead(landed), dead(buried)) == [REPEATED, LOST]
            requeue(conn, landed[0], buried[0])
        rows = {row.id: row.claims for row in claim(conn)}
        assert rows == {landed[0]: 2, buried[0]: 2}
        assert settle(conn, dead(landed), dead(buried)) == [REPEATED, LOST]


class TestRefusals:
    def test_each_id_gets_its_own_answer(self, conn: Conn) -> None:
        gone, held, unknown = ended(conn, "dead"), running(conn), new_id()
        waiting = made(conn)
        assert requeue(conn, gone, held[0], unknown, waiting, gone) == [
            REQUEUED,
            ("live", "running", None),
            ("unknown", None, None),
            ("live", "ready", None),
            REQUEUED,
        ]
        assert requeue(conn, gone) == [("live", "ready", None)]
        assert requeue(conn) == []

    def test_a_live_job_of_the_same_key(self, conn: Conn) -> None:
        id = ended(conn, "dead", idempotency_key="k")
        held = running(conn, idempotency_key="k")
        before = tables.everything(conn)
        assert requeue(conn, id) == [("duplicate", "dead", held[0])]
        assert tables.everything(conn) == before
        settle(conn, held)
        assert requeue(conn, id) == [REQUEUED]

    def test_other_names_and_tenants_do_not_matter(self, conn: Conn) -> None:
        id = ended(conn, "dead", idempotency_key="k", tenant="t")
        made(conn, idempotency_key="k", tenant="u")
        made(conn, idempotency_key="k", tenant="t", name="m")
        assert requeue(conn, id) == [REQUEUED]

    def test_scope_waiting_meets_a_waiting_sibling(self, conn: Conn) -> None:
        """O-14: the operator's retry."""
        scope = {"idempotency_key": "k", "idempotency_scope": "waiting"}
        id = ended(conn, "dead", **scope)
        sibling = made(conn, **scope)
        assert requeue(conn, id) == [("duplicate", "dead", sibling)]
        # Once the sibling has started, it lets go of the key.
        row = claim_one(conn)
        assert requeue(conn, id) == [REQUEUED]
        assert enqueue(conn, **scope) is None
        # And the sibling that fails then meets the one that waits.
        assert settle(conn, retry((row.id, row.claims))) == [("landed", "cancelled")]
        assert tables.settled(conn, sibling)["stop_reason"] == "superseded"

    def test_two_of_one_key_at_once(self, conn: Conn) -> None:
        ids = [ended(conn, "dead", idempotency_key="k") for _ in range(2)]
        answers = dict(zip(ids, requeue(conn, *ids), strict=True))
        (won,) = [id for id, answer in answers.items() if answer == REQUEUED]
        (lost,) = set(ids) - {won}
        assert answers[lost] == ("duplicate", "dead", won)
        assert tables.where(conn, ids) == {"ready": 1, "dead": 1}


class TestAmongOthers:
    def test_two_operators_do_not_wait_for_each_other(self, conn: Conn, session: Sessions) -> None:
        id, other = ended(conn, "dead"), ended(conn, "dead")
        first, second = session("first", autocommit=False), session("second")
        assert first.run(requeue, id) == [REQUEUED]
        assert verdicts(second.run(requeue, id, other)) == ["busy", "requeued"]
        first.run(Connection.commit)
        assert second.run(requeue, id) == [("live", "ready", None)]

    def test_one_that_commits_under_its_eyes_leaves_one_job(
        self, conn: Conn, session: Sessions
    ) -> None:
        id = ended(conn, "dead", idempotency_key="k")
        first, second = session("first", autocommit=False), session("second")
        first.run(enqueue, idempotency_key="k")
        second.start(requeue, id)
        second.blocked(by=first)
        first.run(Connection.commit)
        ((verdict, state, _),) = second.result()
        assert (verdict, state) == ("duplicate", "dead")
        assert tables.settled(conn, id)["state"] == "dead"

    def test_a_key_that_is_given_up_meanwhile_is_taken(self, conn: Conn, session: Sessions) -> None:
        id = ended(conn, "dead", idempotency_key="k")
        held = running(conn, idempotency_key="k")
        body, operator = session("body", autocommit=False), session("operator")
        body.run(settle, held)
        operator.start(requeue, id)
        operator.blocked(by=body)
        body.run(Connection.commit)
        assert verdicts(operator.result()) == ["requeued"]

    def test_it_takes_keys_in_the_order_in_which_a_relay_does(
        self, conn: Conn, session: Sessions
    ) -> None:
        """Each has one of two keys when it asks for the other: a deadlock, were the orders two."""
        keys = [("b", "a"), ("ab", "ab"), ("a", "b")]
        ids = [
            ended(conn, "dead", name=name, tenant=tenant, idempotency_key="k")
            for name, tenant in keys
        ]
        for name, tenant in (keys[0], keys[2]):
            staging.stage(conn, name=name, tenant=tenant, idempotency_key="k")
        rows = staging.claim(conn, staging.take(conn))
        between, operator, relay = session("between", autocommit=False), *map(session, "or")
        between.run(enqueue, name="ab", tenant="ab", idempotency_key="k")
        operator.start(requeue, *ids)
        operator.blocked(by=between)
        relay.start(staging.publish, rows)
        relay.blocked(by=operator)
        between.run(Connection.rollback)
        assert operator.result() == [REQUEUED] * 3
        assert [row.verdict for row in relay.result().values()] == ["unknown"] * 2, "met, not seen"

    def test_a_supplied_id_is_not_enqueued_beside_it(self, conn: Conn, session: Sessions) -> None:
        id = ended(conn, "dead")
        operator = session("operator", autocommit=False)
        operator.run(requeue, id)
        assert enqueue(conn, id=id) is None
        operator.run(Connection.commit)
        assert enqueue(conn, id=id) is None

    def test_a_cancel_under_its_eyes(self, conn: Conn, gate: Gate, session: Sessions) -> None:
        """The job is cancelled and comes back while a cancel looks at its first row."""
        id = made(conn)
        late = session("late")
        gate.hold(late)
        late.start(cancel, id)
        gate.reached(late)
        cancel(conn, id)
        requeue(conn, id)
        gate.release()
        assert verdicts(late.result()) == ["busy"]
        assert cancel(conn, id) == [("cancelled", "cancelled")]


class TestPauses:
    def listed(self, conn: Conn) -> list[tuple[str, str, str | None]]:
        """`ListPauses` without the times."""
        rows = strict(sql.ListPausesRow, sql.list_pauses(conn))
        assert all(isinstance(row.paused_at, dt.datetime) for row in rows)
        return [(row.kind, row.name, row.paused_by) for row in rows]

    def test_a_paused_queue_gives_nothing_until_it_is_resumed(self, conn: Conn) -> None:
        made(conn)
        assert sql.pause_queue(conn, queue="q", paused_by="me") == 1
        assert claim(conn) == []
        assert sql.pause_queue(conn, queue="q", paused_by="you") == 0
        assert self.listed(conn) == [("queue", "q", "me")]
        assert sql.resume_queue(conn, queue="q") == 1
        assert sql.resume_queue(conn, queue="q") == 0
        assert self.listed(conn) == []
        assert len(claim(conn)) == 1

    def test_they_are_listed_in_order_and_a_task_is_left_alone(self, conn: Conn) -> None:
        conn.execute("insert into jobs.pause (kind, name) values ('task', 'q')")
        for queue in ("z", "a"):
            sql.pause_queue(conn, queue=queue, paused_by=None)
        assert sql.resume_queue(conn, queue="q") == 0
        assert self.listed(conn) == [
            ("queue", "a", None),
            ("queue", "z", None),
            ("task", "q", None),
        ]

    def test_a_running_job_of_it_settles(self, conn: Conn) -> None:
        held = running(conn)
        sql.pause_queue(conn, queue="q", paused_by=None)
        assert settle(conn, Settle(held, "retry", NOTHING)) == [("landed", "ready")]
        assert claim(conn) == []
