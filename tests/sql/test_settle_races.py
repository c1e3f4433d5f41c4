"""SettleJobs among other sessions: settlers, renewals, claims, the open transaction of a caller."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from psycopg import Connection, IsolationLevel, errors

from tests.sql import tables
from tests.sql.calls import (
    HOUR,
    Settle,
    claim,
    claim_ids,
    claim_one,
    dead,
    enqueue,
    made,
    renew,
    retry,
    running,
    settle,
)
from tests.sql.gate import Gate
from tests.support.stepped import Session

pytestmark = pytest.mark.majors

Conn = Connection[Any]
Sessions = Callable[..., Session]

AGAIN = ("again", None)
REPEATED = ("repeated", None)
COMPLETED = ("landed", "completed")


class TestTwoSettlers:
    def test_the_second_does_not_wait_and_asks_again(self, conn: Conn, session: Sessions) -> None:
        shared, own = [running(conn) for _ in range(3)], running(conn)
        first, second = session("first", autocommit=False), session("second")
        assert first.run(settle, *shared) == [COMPLETED] * 3
        assert second.run(settle, *reversed(shared), own) == [AGAIN] * 3 + [COMPLETED]
        first.run(Connection.commit)
        assert second.run(settle, *shared) == [REPEATED] * 3
        assert tables.counters(conn) == {"completed": 4}

    def test_after_a_rollback_of_the_first_the_second_lands(
        self, conn: Conn, session: Sessions
    ) -> None:
        held = running(conn)
        first = session("first", autocommit=False)
        first.run(settle, held)
        assert settle(conn, held) == [AGAIN]
        first.run(Connection.rollback)
        assert settle(conn, held) == [COMPLETED]
        assert tables.counters(conn) == {"completed": 1}

    @pytest.mark.parametrize("ask", [Settle, retry, dead], ids=["completed", "retry", "dead"])
    def test_a_settle_that_commits_under_its_eyes_is_asked_again(
        self, conn: Conn, gate: Gate, session: Sessions, ask: Callable[..., Settle]
    ) -> None:
        held, other = running(conn), running(conn)
        late = session("late")
        gate.hold(late)
        late.start(settle, held, other)
        gate.reached(late)
        assert settle(conn, ask(held))[0][0] == "landed"
        after = tables.everything(conn)["settled"]
        gate.release()
        assert late.result() == [AGAIN, COMPLETED]
        assert settle(conn, held) == [REPEATED]
        assert sum(tables.counters(conn).values()) == 2
        assert len(tables.everything(conn)["settled"]) == len(after) + 1

    def test_a_rescue_that_commits_under_its_eyes_stands(
        self, conn: Conn, gate: Gate, session: Sessions
    ) -> None:
        held, other = running(conn), running(conn)
        tables.lapse(conn, held[0])
        late = session("late")
        gate.hold(late)
        late.start(settle, held, other)
        gate.reached(late)
        assert claim_one(conn, worker="w2", rescue=True).id == held[0]
        gate.release()
        assert late.result() == [AGAIN, COMPLETED]
        assert settle(conn, held) == [("lost", None)]
        kept = tables.job(conn, held[0])
        assert (kept["state"], kept["worker"], kept["claims"]) == ("running", "w2", 2)


class TestRenewals:
    def test_one_that_commits_under_its_eyes_does_not_matter(
        self, conn: Conn, gate: Gate, session: Sessions
    ) -> None:
        outcomes = ["completed", "retry", "dead", "released"]
        held = [running(conn) for _ in outcomes]
        late = session("late")
        gate.hold(late)
        late.start(settle, *map(Settle, held, outcomes))
        gate.reached(late)
        assert renew(conn, held, lease=HOUR) == ["renewed"] * 4
        gate.release()
        states = ["completed", "ready", "dead", "ready"]
        assert late.result() == [("landed", state) for state in states]
        assert tables.where(conn, [id for id, _ in held]) == {
            "completed": 1,
            "dead": 1,
            "ready": 2,
        }
        assert tables.counters(conn) == {"completed": 1, "retried": 1, "dead": 1}

    def test_one_in_flight_is_not_waited_for(self, conn: Conn, session: Sessions) -> None:
        held = [running(conn) for _ in range(4)]
        renewer = session("renewer", autocommit=False)
        renewer.run(renew, held[:2])
        assert session("settler").run(settle, *held) == [AGAIN] * 2 + [COMPLETED] * 2


class TestOpenTransaction:
    """The body completes its own job in its own transaction (run.complete)."""

    @pytest.fixture
    def body(self, session: Sessions) -> Session:
        return session("body", autocommit=False)

    def test_everybody_else_passes_over_the_row(self, conn: Conn, body: Session) -> None:
        held, other = running(conn), running(conn)
        tables.lapse(conn, held[0], other[0])
        ready = made(conn)
        assert body.run(settle, held) == [COMPLETED]
        assert renew(conn, [held]) == ["busy"]
        assert claim_ids(conn, worker="w2", rescue=True) == {other[0], ready}
        body.run(Connection.commit)
        assert tables.settled(conn, held[0])["state"] == "completed"

    def test_a_rollback_undoes_all_of_it(self, conn: Conn, body: Session) -> None:
        held = [running(conn) for _ in range(4)]
        before = tables.everything(conn)
        outcomes = ["completed", "retry", "dead", "released"]
        asked = [Settle(one, what, HOUR, "E") for one, what in zip(held, outcomes, strict=True)]
        assert [verdict for verdict, _ in body.run(settle, *asked)] == ["landed"] * 4
        body.run(Connection.rollback)
        assert tables.everything(conn) == before
        assert settle(conn, *held) == [COMPLETED] * 4

    def test_it_commits_with_the_effect_or_not_at_all(self, conn: Conn, body: Session) -> None:
        conn.execute("create table public.effect (n int)")
        held = running(conn)
        body.run(lambda c: c.execute("insert into public.effect values (1)"))
        body.run(settle, held)
        assert conn.execute("select count(*) from public.effect").fetchone() == (0,)
        body.run(Connection.commit)
        assert conn.execute("select count(*) from public.effect").fetchone() == (1,)
        assert tables.settled(conn, held[0])["state"] == "completed"

    def test_a_delay_counts_from_the_settle_and_not_from_the_begin(
        self, conn: Conn, body: Session
    ) -> None:
        held = running(conn)
        body.run(lambda c: c.execute("select 1"))
        mark = conn.execute("select clock_timestamp()").fetchone()
        assert mark is not None
        body.run(settle, retry(held, HOUR))
        body.run(Connection.commit)
        assert tables.job(conn, held[0])["available_at"] >= mark[0] + HOUR

    def test_an_enqueue_of_the_same_key_waits_for_it_and_no_other(
        self, conn: Conn, body: Session, session: Sessions
    ) -> None:
        held = running(conn, idempotency_key="k")
        body.run(settle, held)
        assert enqueue(conn, idempotency_key="other") is not None
        asker = session("asker")
        asker.start(enqueue, idempotency_key="k")
        asker.blocked(by=body)
        body.run(Connection.commit)
        assert asker.result() is not None

    def test_a_snapshot_older_than_the_newest_renewal_is_an_error_not_a_guess(
        self, conn: Conn, body: Session
    ) -> None:
        held = running(conn)
        body.conn.isolation_level = IsolationLevel.REPEATABLE_READ
        body.run(lambda c: c.execute("select 1"))
        renew(conn, [held])
        body.start(settle, held)
        with pytest.raises(errors.SerializationFailure):
            body.result()
        body.run(Connection.rollback)
        assert settle(conn, held) == [COMPLETED]


class TestWhoeverOnlySharesTheRow:
    def test_is_not_waited_for(self, conn: Conn, session: Sessions) -> None:
        """A foreign key of an application takes such a lock; deleting the row would wait for it."""
        shared, other = running(conn), running(conn)
        reader = session("reader", autocommit=False)
        share = "select from jobs.job where id = %s for key share"
        reader.run(lambda c: c.execute(share, [shared[0]]))
        assert session("settler").run(settle, shared, other) == [AGAIN, COMPLETED]
        reader.run(Connection.rollback)
        assert settle(conn, shared) == [COMPLETED]


class TestAgainstClaims:
    def test_a_claim_in_flight_is_not_waited_for(self, conn: Conn, session: Sessions) -> None:
        lapsed, held = running(conn), running(conn)
        tables.lapse(conn, lapsed[0])
        rescuer = session("rescuer", autocommit=False)
        assert rescuer.run(claim_ids, worker="w2", rescue=True) == {lapsed[0]}
        assert session("settler").run(settle, lapsed, held) == [AGAIN, COMPLETED]
        rescuer.run(Connection.commit)
        assert settle(conn, lapsed) == [("lost", None)]

    def test_a_job_put_up_again_is_claimable_as_soon_as_it_is_committed(
        self, conn: Conn, session: Sessions
    ) -> None:
        held = running(conn)
        settler = session("settler", autocommit=False)
        settler.run(settle, retry(held))
        assert claim(conn, worker="w2") == []
        settler.run(Connection.commit)
        assert claim_one(conn, worker="w2").claims == 2
