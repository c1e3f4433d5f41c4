"""ClaimJobs and lapsed leases: rescue, burial, supersession, races with the holder."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest
from psycopg import Connection

from tests.sql import tables
from tests.sql.calls import (
    MINUTE,
    Held,
    claim,
    claim_ids,
    claim_one,
    enqueue,
    made,
    renew,
    retry,
    running,
    seed,
    settle,
)
from tests.sql.gate import Gate
from tests.support.stepped import Session

pytestmark = pytest.mark.majors

Conn = Connection[Any]
Sessions = Callable[..., Session]

WAITING = {"idempotency_scope": "waiting", "idempotency_key": "k"}


def lapsed(conn: Conn, **over: Any) -> Held:
    """A running job whose lease has ended."""
    held = running(conn, **over)
    tables.lapse(conn, held[0])
    return held


class TestRescue:
    def test_without_the_flag_running_jobs_are_not_looked_at(self, conn: Conn) -> None:
        held, buried = lapsed(conn), lapsed(conn, max_attempts=1)
        ready = made(conn)
        assert claim_ids(conn) == {ready}
        assert tables.job(conn, held[0])["claims"] == 1
        assert tables.job(conn, buried[0])["state"] == "running"

    def test_a_lapsed_job_is_claimed_again_under_a_new_token(self, conn: Conn) -> None:
        held = lapsed(conn)
        row = claim_one(conn, worker="w2", rescue=True)
        assert (row.id, row.claims, row.attempt) == (held[0], 2, 2)
        kept = tables.job(conn, held[0])
        assert (kept["worker"], kept["claims"], kept["revoked"]) == ("w2", 2, 1)
        assert kept["lease_expires_at"] - kept["claimed_at"] == MINUTE

    def test_it_leaves_an_attempt_a_counter_and_the_last_error(self, conn: Conn) -> None:
        held = lapsed(conn)
        claim_one(conn, worker="w2", rescue=True)
        ((claims, attempt, kind, message, traceback),) = tables.attempts(conn, held[0])
        assert (claims, attempt, kind, traceback) == (1, 1, "LeaseLapsed", None)
        assert message.startswith("the lease ended at ")
        assert tables.counters(conn) == {"rescued": 1}
        assert tables.job(conn, held[0])["last_error"] == f"LeaseLapsed: {message}"

    def test_a_living_lease_is_left_alone(self, conn: Conn) -> None:
        held = running(conn)
        assert claim(conn, rescue=True) == []
        assert tables.job(conn, held[0])["claims"] == 1

    def test_a_renewed_lease_is_left_alone_though_its_first_term_is_over(self, conn: Conn) -> None:
        held = lapsed(conn)
        assert renew(conn, [held]) == ["renewed"]
        assert claim(conn, rescue=True) == []

    def test_the_rescued_take_their_slots_before_ready_jobs_of_any_priority(
        self, conn: Conn
    ) -> None:
        held = [lapsed(conn, priority=3) for _ in range(3)]
        ready = seed(conn, 10, priority="0")
        rows = claim(conn, 5, rescue=True)
        assert len(rows) == 5
        assert {id for id, _ in held} < {row.id for row in rows}
        assert len(set(ready) & {row.id for row in rows}) == 2

    def test_never_more_are_rescued_than_there_are_free_slots(self, conn: Conn) -> None:
        held = [lapsed(conn) for _ in range(4)] + [lapsed(conn, queue="r") for _ in range(4)]
        rows = claim(conn, {"q": 3, "r": 1}, rescue=True)
        assert [sum(row.queue == queue for row in rows) for queue in "qr"] == [3, 1]
        assert tables.counters(conn) == {"rescued": 4}
        assert tables.where(conn, [id for id, _ in held]) == {"running": 8}

    def test_the_oldest_lease_comes_first(self, conn: Conn) -> None:
        young, old = running(conn), running(conn)
        tables.lapse(conn, young[0], ago=dt.timedelta(seconds=5))
        tables.lapse(conn, old[0], ago=dt.timedelta(seconds=50))
        assert claim_ids(conn, 1, rescue=True) == {old[0]}
        assert claim_ids(conn, 1, rescue=True) == {young[0]}

    def test_queues_that_were_not_asked_for_are_not_rescued(self, conn: Conn) -> None:
        held = lapsed(conn, queue="r")
        assert claim(conn, {"q": 5}, rescue=True) == []
        assert claim_ids(conn, {"r": 5}, rescue=True) == {held[0]}

    def test_whatever_became_of_the_worker_its_job_is_claimable_again(self, conn: Conn) -> None:
        """O-02 (a): the lease is on the row and nothing else is asked."""
        held = lapsed(conn, worker="never registered anywhere")
        assert claim_ids(conn, worker="w2", rescue=True) == {held[0]}

    def test_a_successor_of_the_same_name_does_not_keep_the_dead_ones_job_alive(
        self, conn: Conn
    ) -> None:
        """O-03: names are labels, the token is the authority."""
        old = running(conn, worker="web-0")
        new = running(conn, worker="web-0")
        tables.lapse(conn, old[0], new[0])
        assert renew(conn, [new], worker="web-0") == ["renewed"]
        row = claim_one(conn, worker="web-0", rescue=True)
        assert (row.id, row.claims) == (old[0], 2)
        # The predecessor was not dead after all.
        assert renew(conn, [old], worker="web-0") == ["lost"]
        assert settle(conn, old, worker="web-0") == [("lost", None)]
        assert settle(conn, (row.id, 2), new, worker="web-0") == [("landed", "completed")] * 2


class TestBurial:
    @pytest.mark.parametrize(("dead_letter", "state"), [(True, "dead"), (False, "failed")])
    def test_the_last_attempt_is_buried_and_never_handed_out(
        self, conn: Conn, dead_letter: bool, state: str
    ) -> None:
        held = lapsed(conn, max_attempts=1, dead_letter=dead_letter, input='{"n":  7}')
        (row,) = claim(conn, rescue=True, worker="w2")
        verdict = "buried" if dead_letter else "failed"
        assert (row.verdict, row.id, row.claims, row.attempt) == (verdict, held[0], 1, 1)
        assert row.input == '{"n":  7}'
        grave = tables.settled(conn, held[0])
        assert (grave["state"], grave["stop_reason"]) == (state, "lease lapsed")
        assert (grave["claims"], grave["revoked"], grave["worker"]) == (1, 1, "w1")
        assert grave["input"] == '{"n":  7}'
        assert grave["last_error"].startswith("LeaseLapsed: the lease ended at ")
        assert [row[:3] for row in tables.attempts(conn, held[0])] == [(1, 1, "LeaseLapsed")]
        assert tables.counters(conn) == {state: 1}
        assert claim(conn, rescue=True) == []

    def test_everything_on_the_row_goes_with_it(self, conn: Conn) -> None:
        held = running(
            conn,
            name="mail",
            tenant="t",
            priority=2,
            max_attempts=1,
            idempotency_key="k",
            traceparent="00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            enqueued_by="alice",
        )
        before = tables.job(conn, held[0])
        tables.lapse(conn, held[0])
        claim(conn, rescue=True)
        grave = tables.settled(conn, held[0])
        own = {
            "settled_at",
            "xmin",
            "xmax",
            "ctid",
            "state",
            "revoked",
            "last_error",
            "stop_reason",
            "result",
        }
        assert {key: grave[key] for key in grave.keys() - own} == {
            key: before[key] for key in grave.keys() - own
        }

    def test_a_burial_takes_no_slot(self, conn: Conn) -> None:
        for _ in range(2):
            lapsed(conn, max_attempts=1)
        ready = seed(conn, 5)
        rows = claim(conn, 5, rescue=True)
        assert sorted(row.verdict for row in rows) == ["buried"] * 2 + ["claimed"] * 5
        assert {row.id for row in rows if row.verdict == "claimed"} == set(ready)

    def test_the_key_is_free_again(self, conn: Conn) -> None:
        lapsed(conn, max_attempts=1, idempotency_key="k")
        assert enqueue(conn, idempotency_key="k") is None
        claim(conn, rescue=True)
        assert enqueue(conn, idempotency_key="k") is not None

    def test_it_does_not_wait_for_whoever_only_shares_the_row(
        self, conn: Conn, session: Sessions
    ) -> None:
        """A foreign key of an application takes such a lock; deleting the row would wait for it."""
        shared, other = lapsed(conn, max_attempts=1), lapsed(conn, max_attempts=1)
        reader = session("reader", autocommit=False)
        reader.run(
            lambda c: c.execute("select from jobs.job where id = %s for key share", [shared[0]])
        )
        rows = session("claimer").run(claim, rescue=True)
        assert {row.id for row in rows} == {other[0]}
        reader.run(Connection.rollback)
        assert {row.id for row in claim(conn, rescue=True)} == {shared[0]}

    def test_an_id_that_is_finished_already_stops_nobody(self, conn: Conn) -> None:
        odd, other = lapsed(conn, max_attempts=1), lapsed(conn, max_attempts=1)
        copy_to_settled(conn, odd[0])
        assert {row.id for row in claim(conn, rescue=True)} == {odd[0], other[0]}
        assert tables.settled(conn, odd[0])["state"] == "completed"
        assert tables.settled(conn, other[0])["state"] == "dead"


class TestWaitingScope:
    def test_a_claim_lets_go_of_the_key(self, conn: Conn) -> None:
        """O-13: one further job waits behind the running one, and only one."""
        first = running(conn, **WAITING)
        second = enqueue(conn, **WAITING)
        assert second is not None
        assert [enqueue(conn, **WAITING) for _ in range(4)] == [None] * 4
        assert claim_ids(conn) == {second}
        assert tables.where(conn, [first[0], second]) == {"running": 2}

    def test_a_lapsed_job_with_a_waiting_sibling_is_superseded(self, conn: Conn) -> None:
        """O-14, the lease lapsing instead of the job failing."""
        held = running(conn, **WAITING)
        sibling = made(conn, **WAITING)
        tables.lapse(conn, held[0])
        rows = {row.verdict: row for row in claim(conn, rescue=True, worker="w2")}
        assert rows["cancelled"].id == held[0]
        assert rows["claimed"].id == sibling
        grave = tables.settled(conn, held[0])
        assert (grave["state"], grave["stop_reason"]) == ("cancelled", "superseded")
        assert grave["last_error"].startswith("LeaseLapsed: ")
        assert [row[2] for row in tables.attempts(conn, held[0])] == ["LeaseLapsed"]
        assert tables.counters(conn) == {"cancelled": 1}

    def test_without_a_sibling_it_is_rescued(self, conn: Conn) -> None:
        held = running(conn, **WAITING)
        for other in ({"tenant": "t"}, {"name": "m"}, {"idempotency_key": "k2"}):
            made(conn, queue="elsewhere", **(WAITING | other))
        tables.lapse(conn, held[0])
        assert claim_ids(conn, rescue=True) == {held[0]}

    def test_on_its_last_attempt_it_is_dead_whoever_waits(self, conn: Conn) -> None:
        held = running(conn, max_attempts=1, **WAITING)
        made(conn, queue="elsewhere", **WAITING)
        tables.lapse(conn, held[0])
        (row,) = claim(conn, rescue=True)
        assert (row.verdict, tables.settled(conn, held[0])["state"]) == ("buried", "dead")

    def test_of_scope_live_it_keeps_its_key_through_the_rescue(self, conn: Conn) -> None:
        held = lapsed(conn, idempotency_key="k")
        assert claim_ids(conn, rescue=True) == {held[0]}
        assert enqueue(conn, idempotency_key="k") is None


class TestRaceWithTheHolder:
    """O-01: the rescue has read the lapsed row, and the holder acts before the rescue writes."""

    @pytest.fixture
    def lapsed_two(self, conn: Conn) -> tuple[Held, Held]:
        return lapsed(conn), lapsed(conn)

    @pytest.fixture
    def rescuer(self, gate: Gate, session: Sessions, lapsed_two: object) -> Session:  # noqa: ARG002
        rescuer = session("rescuer")
        gate.hold(rescuer)
        rescuer.start(claim, 10, rescue=True, worker="rescuer")
        gate.reached(rescuer)
        return rescuer

    def others_rescued(self, rescuer: Session, other: UUID) -> None:
        rows = rescuer.result()
        assert [(row.verdict, row.id, row.claims) for row in rows] == [("claimed", other, 2)]

    def test_a_settle_stands(
        self, conn: Conn, gate: Gate, rescuer: Session, lapsed_two: tuple[Held, Held]
    ) -> None:
        held, other = lapsed_two
        assert settle(conn, held) == [("landed", "completed")]
        gate.release()
        self.others_rescued(rescuer, other[0])
        assert tables.settled(conn, held[0])["state"] == "completed"
        assert tables.counters(conn) == {"completed": 1, "rescued": 1}
        assert tables.attempts(conn, held[0]) == []

    def test_a_settle_that_put_it_up_again_stands(
        self, conn: Conn, gate: Gate, rescuer: Session, lapsed_two: tuple[Held, Held]
    ) -> None:
        held, other = lapsed_two
        settle(conn, retry(held, MINUTE))
        after = tables.job(conn, held[0])
        gate.release()
        self.others_rescued(rescuer, other[0])
        kept = tables.job(conn, held[0])
        kept.pop("xmax"), after.pop("xmax")
        assert kept == after

    def test_another_claim_stands(
        self, conn: Conn, gate: Gate, rescuer: Session, lapsed_two: tuple[Held, Held]
    ) -> None:
        held, other = lapsed_two
        (early,) = claim(conn, 1, rescue=True, worker="early")
        taken, left = (held, other) if early.id == held[0] else (other, held)
        after = tables.job(conn, taken[0])
        gate.release()
        self.others_rescued(rescuer, left[0])
        kept = tables.job(conn, taken[0])
        kept.pop("xmax"), after.pop("xmax")
        assert kept == after
        assert (kept["worker"], kept["claims"], kept["attempt"]) == ("early", 2, 2)
        assert len(tables.attempts(conn, taken[0])) == 1

    def test_a_renewal_saves_the_lease(
        self, conn: Conn, gate: Gate, rescuer: Session, lapsed_two: tuple[Held, Held]
    ) -> None:
        held, other = lapsed_two
        assert renew(conn, [held]) == ["renewed"]
        gate.release()
        self.others_rescued(rescuer, other[0])
        kept = tables.job(conn, held[0])
        assert (kept["worker"], kept["claims"], kept["revoked"]) == ("w1", 1, 0)
        assert settle(conn, held) == [("landed", "completed")]

    def test_a_renewal_saves_it_from_burial_too(
        self, conn: Conn, gate: Gate, session: Sessions
    ) -> None:
        held, other = lapsed(conn, max_attempts=1), lapsed(conn, max_attempts=1)
        rescuer = session("rescuer")
        gate.hold(rescuer)
        rescuer.start(claim, 10, rescue=True)
        gate.reached(rescuer)
        assert renew(conn, [held]) == ["renewed"]
        gate.release()
        assert [(row.verdict, row.id) for row in rescuer.result()] == [("buried", other[0])]
        assert tables.job(conn, held[0])["state"] == "running"

    def test_an_open_settle_is_passed_over(self, conn: Conn, session: Sessions) -> None:
        held, other = lapsed(conn), lapsed(conn)
        holder = session("holder", autocommit=False)
        assert holder.run(settle, held) == [("landed", "completed")]
        assert session("rescuer").run(claim_ids, rescue=True, worker="w2") == {other[0]}
        holder.run(Connection.commit)
        assert tables.settled(conn, held[0])["state"] == "completed"

    def test_a_rolled_back_settle_leaves_it_to_the_rescue(
        self, conn: Conn, session: Sessions
    ) -> None:
        held = lapsed(conn)
        holder = session("holder", autocommit=False)
        holder.run(settle, held)
        assert claim(conn, rescue=True) == []
        holder.run(Connection.rollback)
        assert claim_ids(conn, rescue=True) == {held[0]}


def copy_to_settled(conn: Conn, id: UUID) -> None:
    """Make the odd case of an id that is live and finished at once."""
    conn.execute(
        """
        insert into jobs.settled (
            id, claims, revoked, attempt, state, run_id, created_at, max_attempts, priority,
            dead_letter, queue, name, tenant, idempotency_scope, input
        )
        select id, claims, revoked, attempt, 'completed', run_id, created_at, max_attempts,
            priority, dead_letter, queue, name, tenant, idempotency_scope, input
        from jobs.job where id = %s
        """,
        [id],
    )
