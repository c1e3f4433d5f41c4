"""CancelJobs: jobs that wait, run and have ended, and other sessions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import UUID

import psycopg
import pytest
from psycopg import Connection, errors, sql

from tests.sql import tables
from tests.sql.calls import (
    HOUR,
    Held,
    Settle,
    claim,
    claim_one,
    dead,
    made,
    new_id,
    renew,
    retry,
    running,
    settle,
)
from tests.sql.gate import Gate
from tests.sql.operating import cancel, requeue, verdicts
from tests.support.buffers import explain
from tests.support.stepped import Session

pytestmark = pytest.mark.majors

Conn = Connection[Any]
Sessions = Callable[..., Session]

REQUESTED = ("requested", "running")
CANCELLED = ("cancelled", "cancelled")
REPEATED = ("repeated", None)
LOST = ("lost", None)


def wait_in(conn: Conn, state: str) -> UUID:
    """A job in one of the states that nobody holds."""
    id = made(conn, delay=HOUR if state == "delayed" else -HOUR)
    if state not in ("ready", "delayed"):
        conn.execute("update jobs.job set state = %s where id = %s", [state, id])
    return id


class TestWaiting:
    @pytest.mark.parametrize("state", ["ready", "delayed", "suspended", "blocked"])
    def test_it_ends_at_once_with_the_reason(self, conn: Conn, state: str) -> None:
        id = wait_in(conn, state)
        before = tables.job(conn, id)
        assert cancel(conn, id, reason="wrong customer") == [CANCELLED]
        after = tables.settled(conn, id)
        assert (after["state"], after["stop_reason"]) == ("cancelled", "cancel requested")
        assert after["cancel_reason"] == "wrong customer"
        assert after["cancel_requested_at"] is not None
        shared = before.keys() & after.keys() - {"xmin", "xmax", "ctid", "state"}
        shared -= {"cancel_requested_at", "cancel_reason"}
        assert {key: after[key] for key in shared} == {key: before[key] for key in shared}
        assert tables.counters(conn) == {"cancelled": 1}
        assert tables.attempts(conn, id) == []
        assert claim(conn) == []

    def test_its_key_is_free_again(self, conn: Conn) -> None:
        id = made(conn, idempotency_key="k")
        assert cancel(conn, id) == [CANCELLED]
        assert made(conn, idempotency_key="k") != id

    def test_earlier_failures_stay_told(self, conn: Conn) -> None:
        held = running(conn)
        settle(conn, retry(held, HOUR))
        assert cancel(conn, held[0]) == [CANCELLED]
        assert tables.settled(conn, held[0])["last_error"] == "ValueError: no luck"
        assert len(tables.attempts(conn, held[0])) == 1

    @pytest.mark.parametrize("outcome", ["retry", "released"])
    def test_a_repeat_of_the_settle_before_is_still_one(self, conn: Conn, outcome: str) -> None:
        held = running(conn)
        assert settle(conn, Settle(held, outcome, HOUR))[0] == ("landed", "ready")
        assert cancel(conn, held[0]) == [CANCELLED]
        assert settle(conn, Settle(held, outcome, HOUR)) == [REPEATED]

    def test_a_claim_that_was_rescued_from_is_still_lost(self, conn: Conn) -> None:
        first = running(conn)
        tables.lapse(conn, first[0])
        second = claim_one(conn, rescue=True)
        settle(conn, Settle((second.id, second.claims), "released", HOUR))
        assert cancel(conn, first[0]) == [CANCELLED]
        assert settle(conn, first, (second.id, second.claims)) == [LOST, REPEATED]


class TestAnswers:
    def test_each_id_gets_its_own_and_a_repeated_one_gets_one(self, conn: Conn) -> None:
        held, done = running(conn), running(conn)
        settle(conn, done)
        waiting, unknown = wait_in(conn, "ready"), new_id()
        asked = [held[0], done[0], waiting, unknown, held[0]]
        answers = [REQUESTED, ("finished", "completed"), CANCELLED, ("unknown", None), REQUESTED]
        assert cancel(conn, *asked) == answers
        assert tables.counters(conn) == {"completed": 1, "cancelled": 1}

    @pytest.mark.parametrize("state", ["completed", "failed", "dead", "cancelled"])
    def test_a_finished_one_says_how_it_ended_and_stays_so(self, conn: Conn, state: str) -> None:
        held = running(conn, dead_letter=state != "failed")
        if state == "cancelled":
            cancel(conn, held[0])
        settle(conn, held if state == "completed" else dead(held))
        before = tables.everything(conn)
        assert cancel(conn, held[0], reason="again") == [("finished", state)]
        assert tables.everything(conn) == before

    def test_nothing_asked_nothing_answered(self, conn: Conn) -> None:
        assert cancel(conn) == []

    def test_an_odd_row_in_both_tables_fails_nobody(self, conn: Conn) -> None:
        odd, other = running(conn), wait_in(conn, "ready")
        settle(conn, odd)
        conn.execute(
            "insert into jobs.job (id, run_id, max_attempts, queue, name, input) "
            "values (%s, %s, 1, 'q', 'n', '{}')",
            [odd[0], new_id()],
        )
        assert cancel(conn, odd[0], other) == [CANCELLED] * 2
        assert tables.settled(conn, odd[0])["state"] == "completed"


class TestRunning:
    def test_it_is_flagged_and_nothing_else_changes(self, conn: Conn) -> None:
        held = running(conn)
        before = tables.job(conn, held[0])
        assert cancel(conn, held[0], reason="enough") == [REQUESTED]
        after = tables.job(conn, held[0])
        changed = {key for key in after if after[key] != before[key]} - {"xmin", "xmax", "ctid"}
        assert changed == {"cancel_requested_at", "cancel_reason"}
        assert after["cancel_reason"] == "enough"
        assert tables.counters(conn) == {}

    def test_the_first_request_stands_and_a_second_writes_nothing(self, conn: Conn) -> None:
        held = running(conn)
        cancel(conn, held[0], reason="first")
        before = tables.job(conn, held[0])
        assert cancel(conn, held[0], reason="second") == [REQUESTED]
        after = tables.job(conn, held[0])
        assert {**after, "xmax": None} == {**before, "xmax": None}

    def test_the_holder_is_told_by_every_renewal_until_it_settles(self, conn: Conn) -> None:
        held, other = running(conn), running(conn)
        assert renew(conn, [held, other]) == ["renewed"] * 2
        cancel(conn, held[0])
        before = tables.job(conn, held[0])["lease_expires_at"]
        assert renew(conn, [held, other], lease=HOUR) == ["cancel", "renewed"]
        assert tables.job(conn, held[0])["lease_expires_at"] > before
        assert renew(conn, [other, held]) == ["renewed", "cancel"]
        assert settle(conn, Settle(held, "cancelled")) == [("landed", "cancelled")]
        assert renew(conn, [held, other]) == ["lost", "renewed"]

    @pytest.mark.parametrize(
        ("ask", "state", "errors"),
        [
            (Settle, "completed", 0),
            (lambda held: Settle(held, "cancelled"), "cancelled", 0),
            (lambda held: Settle(held, "released"), "cancelled", 0),
            (retry, "cancelled", 1),
            (dead, "cancelled", 1),
        ],
        ids=["completed", "cancelled", "released", "retry", "dead"],
    )
    def test_work_done_is_done_and_everything_else_is_cancelled(
        self, conn: Conn, ask: Callable[[Held], Settle], state: str, errors: int
    ) -> None:
        held = running(conn, dead_letter=False)
        cancel(conn, held[0], reason="why")
        assert settle(conn, ask(held)) == [("landed", state)]
        row = tables.settled(conn, held[0])
        assert (row["state"], row["cancel_reason"]) == (state, "why")
        assert row["cancel_requested_at"] is not None
        assert row["stop_reason"] == ("cancel requested" if state == "cancelled" else None)
        assert tables.counters(conn) == {state: 1}
        assert len(tables.attempts(conn, held[0])) == errors
        assert (row["last_error"] is not None) == bool(errors)
        assert settle(conn, ask(held)) == [REPEATED]
        assert tables.counters(conn) == {state: 1}

    def test_the_last_attempt_too(self, conn: Conn) -> None:
        held = running(conn, max_attempts=1)
        cancel(conn, held[0])
        assert settle(conn, retry(held)) == [("landed", "cancelled")]
        assert tables.settled(conn, held[0])["stop_reason"] == "cancel requested"

    def test_a_worker_may_end_it_so_without_a_request(self, conn: Conn) -> None:
        held = running(conn)
        assert settle(conn, Settle(held, "cancelled")) == [("landed", "cancelled")]
        assert tables.settled(conn, held[0])["stop_reason"] == "cancel requested"

    @pytest.mark.parametrize("attempts", [1, 3])
    @pytest.mark.parametrize("dead_letter", [True, False])
    def test_a_lapse_after_the_request_is_its_end_and_never_a_new_claim(
        self, conn: Conn, attempts: int, dead_letter: bool
    ) -> None:
        held = running(conn, max_attempts=attempts, dead_letter=dead_letter)
        cancel(conn, held[0], reason="why")
        tables.lapse(conn, held[0])
        assert [row.verdict for row in claim(conn, rescue=True)] == ["cancelled"]
        row = tables.settled(conn, held[0])
        assert (row["state"], row["stop_reason"]) == ("cancelled", "cancel requested")
        assert (row["cancel_reason"], row["revoked"]) == ("why", 1)
        assert tables.counters(conn) == {"cancelled": 1}
        assert settle(conn, held) == [LOST]

    def test_a_lease_that_has_lapsed_before_is_ended_at_once(self, conn: Conn) -> None:
        held = running(conn)
        tables.lapse(conn, held[0])
        assert cancel(conn, held[0]) == [CANCELLED]
        row = tables.settled(conn, held[0])
        assert (row["state"], row["worker"], row["revoked"]) == ("cancelled", "w1", 1)
        assert row["last_error"].startswith("LeaseLapsed: the lease ended at ")
        ((claims, _, kind, _, _),) = tables.attempts(conn, held[0])
        assert (claims, kind) == (1, "LeaseLapsed")
        assert settle(conn, held) == [LOST]
        assert renew(conn, [held]) == ["lost"]


class TestAmongOthers:
    """It waits for nobody, and nobody waits for it."""

    def test_an_open_completion_is_busy_and_its_neighbours_are_not(
        self, conn: Conn, session: Sessions
    ) -> None:
        held, other = running(conn), running(conn)
        body = session("body", autocommit=False)
        assert body.run(settle, held) == [("landed", "completed")]
        operator = session("operator")
        assert operator.run(cancel, held[0], other[0]) == [("busy", None), REQUESTED]
        body.run(Connection.commit)
        assert operator.run(cancel, held[0]) == [("finished", "completed")]

    def test_a_completion_that_rolls_back_leaves_it_to_the_cancel(
        self, conn: Conn, session: Sessions
    ) -> None:
        held = running(conn)
        body = session("body", autocommit=False)
        body.run(settle, held)
        assert verdicts(cancel(conn, held[0])) == ["busy"]
        body.run(Connection.rollback)
        assert cancel(conn, held[0]) == [REQUESTED]

    def test_a_renewal_in_flight_is_busy(self, conn: Conn, session: Sessions) -> None:
        held = running(conn)
        renewer = session("renewer", autocommit=False)
        renewer.run(renew, [held])
        assert verdicts(cancel(conn, held[0])) == ["busy"]
        renewer.run(Connection.commit)
        assert cancel(conn, held[0]) == [REQUESTED]

    def test_workers_pass_over_a_cancel_in_flight(self, conn: Conn, session: Sessions) -> None:
        held, waiting, other = running(conn), wait_in(conn, "ready"), wait_in(conn, "ready")
        operator = session("operator", autocommit=False)
        operator.run(cancel, held[0], waiting)
        worker = session("worker")
        assert worker.run(renew, [held]) == ["busy"]
        assert worker.run(settle, held) == [("again", None)]
        assert [row.id for row in worker.run(claim)] == [other]
        operator.run(Connection.commit)
        assert worker.run(renew, [held]) == ["cancel"]

    def test_a_rollback_undoes_all_of_it(self, conn: Conn, session: Sessions) -> None:
        held, waiting, lapsed = running(conn), wait_in(conn, "delayed"), running(conn)
        tables.lapse(conn, lapsed[0])
        before = tables.everything(conn)
        operator = session("operator", autocommit=False)
        operator.run(cancel, held[0], waiting, lapsed[0])
        operator.run(Connection.rollback)
        assert tables.everything(conn) == before

    @pytest.mark.parametrize("first", ["cancel", "claim"])
    def test_against_a_claim_that_commits_under_its_eyes(
        self, conn: Conn, gate: Gate, session: Sessions, first: str
    ) -> None:
        id = wait_in(conn, "ready")
        late = session("late")
        gate.hold(late)
        if first == "claim":
            late.start(cancel, id)
            gate.reached(late)
            claim_one(conn)
            gate.release()
            # The row it locks is the newest one, which runs.
            assert late.result() == [REQUESTED]
            assert tables.job(conn, id)["state"] == "running"
        else:
            late.start(claim)
            gate.reached(late)
            assert cancel(conn, id) == [CANCELLED]
            gate.release()
            assert late.result() == []
            assert tables.settled(conn, id)["state"] == "cancelled"

    @pytest.mark.parametrize("ask", [Settle, retry, dead], ids=["completed", "retry", "dead"])
    def test_a_settle_sees_the_request_that_commits_under_its_eyes(
        self, conn: Conn, gate: Gate, session: Sessions, ask: Callable[..., Settle]
    ) -> None:
        held = running(conn)
        late = session("late")
        gate.hold(late)
        late.start(settle, ask(held))
        gate.reached(late)
        assert cancel(conn, held[0]) == [REQUESTED]
        gate.release()
        state = "completed" if ask is Settle else "cancelled"
        assert late.result() == [("landed", state)]
        assert tables.settled(conn, held[0])["cancel_reason"] == "told to"

    @pytest.mark.parametrize("ask", [Settle, retry, dead], ids=["completed", "retry", "dead"])
    def test_it_asks_again_after_a_settle_that_commits_under_its_eyes(
        self, conn: Conn, gate: Gate, session: Sessions, ask: Callable[..., Settle]
    ) -> None:
        held = running(conn)
        late = session("late")
        gate.hold(late)
        late.start(cancel, held[0])
        gate.reached(late)
        ((_, state),) = settle(conn, ask(held))
        gate.release()
        (answer,) = late.result()
        if state == "ready":
            # It goes on from the newest version of the row, which waits.
            assert answer == CANCELLED
        else:
            assert answer[0] == "busy"
            assert cancel(conn, held[0]) == [("finished", state)]

    def test_a_renewal_sees_the_request_that_commits_under_its_eyes(
        self, conn: Conn, gate: Gate, session: Sessions
    ) -> None:
        held = running(conn)
        late = session("late")
        gate.hold(late)
        late.start(renew, [held])
        gate.reached(late)
        cancel(conn, held[0])
        gate.release()
        assert late.result() == ["cancel"]

    def test_a_snapshot_older_than_the_newest_renewal_is_an_error_not_a_guess(
        self, conn: Conn, session: Sessions
    ) -> None:
        held = running(conn)
        operator = session("operator", autocommit=False)
        operator.conn.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        operator.run(lambda c: c.execute("select 1"))
        renew(conn, [held])
        operator.start(cancel, held[0])
        with pytest.raises(errors.SerializationFailure):
            operator.result()


class TestCost:
    @pytest.mark.lone  # what other databases hold open decides when a page is pruned
    def test_a_request_is_heap_only_and_writes_no_payload(self, conn: Conn) -> None:
        big = '{"d":"' + "x" * 1000 + '"}'
        held = [running(conn, input=big) for _ in range(20)]
        query = sql.SQL(
            "select n_tup_upd, n_tup_hot_upd from pg_stat_user_tables where schemaname = 'jobs' "
            "and relname = 'job'"
        )
        conn.execute("select pg_stat_force_next_flush()")
        before = conn.execute(query).fetchone()
        plan = explain(conn, "CancelJobs", ids=[id for id, _ in held], reason="r")
        conn.execute("select pg_stat_force_next_flush()")
        after = conn.execute(query).fetchone()
        assert before is not None
        assert after is not None
        assert (after[0] - before[0], after[1] - before[1]) == (20, 20)
        assert plan.wal_bytes / 20 < 300

    def test_a_cancelled_job_comes_back_when_it_is_requeued(self, conn: Conn) -> None:
        held = running(conn)
        cancel(conn, held[0])
        settle(conn, Settle(held, "cancelled"))
        assert verdicts(requeue(conn, held[0])) == ["requeued"]
        again = claim_one(conn)
        assert (again.id, again.claims) == (held[0], held[1] + 1)
        assert renew(conn, [(again.id, again.claims)]) == ["renewed"]
