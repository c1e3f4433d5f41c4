"""ClaimJobs among other sessions: what it locks, that it waits for nobody."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from psycopg import Connection

from tests.sql import tables
from tests.sql.calls import (
    MINUTE,
    Settle,
    claim,
    claim_ids,
    claim_one,
    made,
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


@pytest.fixture
def claimer(session: Sessions) -> Session:
    """A session whose claim stays open until it commits."""
    return session("claimer", autocommit=False)


class TestLocks:
    def test_exactly_what_is_taken_is_locked(self, conn: Conn, claimer: Session) -> None:
        ids = set(seed(conn, 60, queue="(array['q', 'r', 's'])[i % 3 + 1]", priority="i % 4"))
        taken = claimer.run(claim_ids, {"q": 3, "r": 7, "s": 1})
        assert len(taken) == 11
        assert tables.lockable(conn, ids) == ids - taken

    def test_the_rescued_make_it_lock_fewer_ready_rows(self, conn: Conn, claimer: Session) -> None:
        lapsed = seed(
            conn,
            4,
            state="'running'",
            worker="'gone'",
            claims="1",
            attempt="case when i = 1 then 3 else 1 end",
            lease_expires_at="now() - interval '1 minute'",
            rescue_at="now() - interval '1 minute'",
        )
        ready = set(seed(conn, 20))
        rows = claimer.run(claim, 5, rescue=True)
        taken = {row.id for row in rows if row.verdict == "claimed"}
        assert taken > set(lapsed[1:])
        assert len(taken) == 5
        assert tables.lockable(conn, ready) == ready - taken
        assert tables.lockable(conn, lapsed) == set()

    def test_lapsed_rows_beyond_the_limit_are_left_lockable(
        self, conn: Conn, claimer: Session
    ) -> None:
        lapsed = seed(
            conn,
            10,
            state="'running'",
            worker="'gone'",
            claims="1",
            attempt="1",
            lease_expires_at="now() - interval '1 minute'",
            rescue_at="now() - interval '1 minute' + i * interval '1 ms'",
        )
        taken = claimer.run(claim_ids, 20, rescue=True, rescue_limit=3)
        assert taken == set(lapsed[:3])
        assert tables.lockable(conn, lapsed) == set(lapsed[3:])

    def test_a_paused_queue_locks_nothing(self, conn: Conn, claimer: Session) -> None:
        ids = set(seed(conn, 20))
        held = running(conn)
        tables.lapse(conn, held[0])
        ids |= {held[0]}
        conn.execute("insert into jobs.pause (kind, name) values ('queue', 'q')")
        assert claimer.run(claim, 5, rescue=True) == []
        assert tables.lockable(conn, ids) == ids

    def test_what_is_not_due_is_not_locked(self, conn: Conn, claimer: Session) -> None:
        ids = set(seed(conn, 5, available_at="now() + interval '1 minute'"))
        assert claimer.run(claim, 5) == []
        assert tables.lockable(conn, ids) == ids


class TestTwoClaimers:
    def test_the_second_neither_waits_nor_takes_the_same(
        self, conn: Conn, claimer: Session, session: Sessions
    ) -> None:
        ids = set(seed(conn, 30, priority="i % 2"))
        second = session("second", autocommit=False)
        first_taken = claimer.run(claim_ids, 12, worker="w1")
        second_taken = second.run(claim_ids, 12, worker="w2")
        assert len(first_taken) == len(second_taken) == 12
        assert not first_taken & second_taken
        claimer.run(Connection.commit)
        second.run(Connection.commit)
        third = claim_ids(conn, 12, worker="w3")
        assert first_taken | second_taken | third == ids

    def test_what_an_aborted_claim_took_is_ready_again(self, conn: Conn, claimer: Session) -> None:
        ids = set(seed(conn, 3))
        assert claimer.run(claim_ids, 3) == ids
        assert claim(conn) == []
        claimer.run(Connection.rollback)
        rows = claim(conn)
        assert {row.id for row in rows} == ids
        assert {(row.claims, row.attempt) for row in rows} == {(1, 1)}

    def test_the_rescuer_does_not_wait_for_another_rescuer(
        self, conn: Conn, claimer: Session, session: Sessions
    ) -> None:
        held = [running(conn) for _ in range(6)]
        tables.lapse(conn, *(id for id, _ in held))
        first = claimer.run(claim_ids, 3, rescue=True, worker="w2")
        second = session("second").run(claim_ids, 10, rescue=True, worker="w3")
        assert len(first) == len(second) == 3
        assert first | second == {id for id, _ in held}


class TestChangesBetweenSnapshotAndLock:
    """A row changes after the claim's snapshot, before its lock: the newest version decides."""

    def test_a_job_that_another_claimed_meanwhile_is_not_taken(
        self, conn: Conn, gate: Gate, session: Sessions
    ) -> None:
        first, second = made(conn, priority=0), made(conn, priority=1)
        late = session("late")
        gate.hold(late)
        late.start(claim_ids, 5, worker="late")
        gate.reached(late)
        assert claim_one(conn, queues=1, worker="early").id == first
        gate.release()
        assert late.result() == {second}
        assert tables.job(conn, first)["worker"] == "early"
        assert tables.job(conn, first)["claims"] == 1

    def test_a_job_that_ended_meanwhile_is_not_taken(
        self, conn: Conn, gate: Gate, session: Sessions
    ) -> None:
        first, second = made(conn, priority=0), made(conn, priority=1)
        late = session("late")
        gate.hold(late)
        late.start(claim_ids, 5)
        gate.reached(late)
        row = claim_one(conn, queues=1, worker="early")
        assert settle(conn, (row.id, row.claims), worker="early") == [("landed", "completed")]
        gate.release()
        assert late.result() == {second}
        assert tables.settled(conn, first)["state"] == "completed"

    def test_a_job_that_was_delayed_meanwhile_is_not_taken(
        self, conn: Conn, gate: Gate, session: Sessions
    ) -> None:
        first, second = made(conn, priority=0), made(conn, priority=1)
        late = session("late")
        gate.hold(late)
        late.start(claim_ids, 5)
        gate.reached(late)
        row = claim_one(conn, queues=1, worker="early")
        asked = Settle((row.id, row.claims), "retry", MINUTE, "ValueError", "not yet")
        assert settle(conn, asked, worker="early") == [("landed", "ready")]
        gate.release()
        assert late.result() == {second}
        assert tables.job(conn, first)["state"] == "ready"

    def test_a_job_that_was_tried_meanwhile_is_taken_as_it_is_now(
        self, conn: Conn, gate: Gate, session: Sessions
    ) -> None:
        id = made(conn)
        late = session("late", autocommit=False)
        # Due is due by the transaction's start, which is why the retry is dated back below.
        gate.hold(late)
        late.start(claim, 5, worker="late")
        gate.reached(late)
        row = claim_one(conn, queues=1, worker="early")
        settle(conn, retry((row.id, row.claims), message="first"), worker="early")
        conn.execute("update jobs.job set available_at = available_at - interval '1 hour'")
        gate.release()
        (again,) = late.result()
        assert (again.id, again.claims, again.attempt) == (id, 2, 2)
        late.run(Connection.commit)
        kept = tables.job(conn, id)
        assert (kept["claims"], kept["attempt"], kept["worker"]) == (2, 2, "late")
        assert kept["last_error"] == "ValueError: first"
