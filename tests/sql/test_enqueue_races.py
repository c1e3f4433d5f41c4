"""Enqueues among other sessions: who waits for whom, and what the one that waited is told."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256
from typing import Any

import pytest
from psycopg import Connection, errors

from tests.sql import tables
from tests.sql.calls import (
    HOUR,
    Held,
    Item,
    claim,
    claim_ids,
    dead,
    enqueue,
    enqueue_many,
    find,
    made,
    new_id,
    renew,
    retry,
    running,
    settle,
    undo,
)
from tests.support.stepped import Session

pytestmark = pytest.mark.majors

Conn = Connection[Any]
Sessions = Callable[..., Session]

WAITING = {"idempotency_scope": "waiting", "idempotency_key": "k"}
CREATED, EXISTING, UNKNOWN = "created", "existing", "unknown"


class TestRepublishWhileTheSettleIsOpen:
    """An id is published again, and the settle that moves the finished job has not committed.

    The insert waits for it, goes on with the snapshot it began with, and cannot see where the job
    went. The second statement can (design, "moving and deduplication").
    """

    @pytest.fixture
    def held(self, conn: Conn) -> Held:
        return running(conn)

    @pytest.fixture
    def settler(self, session: Sessions) -> Session:
        return session("settler", autocommit=False)

    @pytest.fixture
    def publisher(self, session: Sessions) -> Session:
        return session("publisher", autocommit=False)

    @pytest.mark.parametrize("bulk", [False, True], ids=["one", "many"])
    def test_it_inserts_and_takes_it_back(
        self, conn: Conn, held: Held, settler: Session, publisher: Session, bulk: bool
    ) -> None:
        run_id = tables.job(conn, held[0])["run_id"]
        settler.run(settle, held)
        if bulk:
            publisher.start(enqueue_many, [Item(id=held[0], run_id=run_id)])
        else:
            publisher.start(enqueue, id=held[0], run_id=run_id)
        publisher.blocked(by=settler)
        settler.run(Connection.commit)
        answer = publisher.result()
        # This is the trap: without the next statement the job would run a second time.
        assert (answer[0].id if bulk else answer) == held[0]
        assert publisher.run(undo, held[0], run_id) == [held[0]]
        found = publisher.run(find, None, id=held[0])
        assert (found.id, found.run_id) == (held[0], run_id)
        publisher.run(Connection.commit)
        assert tables.settled(conn, held[0])["state"] == "completed"
        assert claim(conn) == []

    def test_nobody_claims_it_in_between(
        self, conn: Conn, held: Held, settler: Session, publisher: Session
    ) -> None:
        run_id = new_id()
        settler.run(settle, held)
        publisher.start(enqueue, id=held[0], run_id=run_id)
        publisher.blocked(by=settler)
        settler.run(Connection.commit)
        publisher.result()
        assert claim(conn, worker="w2", rescue=True) == []
        publisher.run(undo, held[0], run_id)
        publisher.run(Connection.commit)
        assert claim(conn, worker="w2", rescue=True) == []

    def test_where_the_settle_is_rolled_back_the_job_is_still_there(
        self, held: Held, settler: Session, publisher: Session
    ) -> None:
        settler.run(settle, held)
        publisher.start(enqueue, id=held[0])
        publisher.blocked(by=settler)
        settler.run(Connection.rollback)
        assert publisher.result() is None
        assert publisher.run(find, None, id=held[0]).id == held[0]

    def test_where_it_was_put_up_again_the_job_is_still_there(
        self, conn: Conn, held: Held, settler: Session, publisher: Session
    ) -> None:
        settler.run(settle, retry(held))
        publisher.start(enqueue, id=held[0])
        publisher.blocked(by=settler)
        settler.run(Connection.commit)
        assert publisher.result() is None
        assert publisher.run(find, None, id=held[0]).id == held[0]
        assert claim_ids(conn) == {held[0]}

    def test_a_burial_is_such_a_move_too(
        self, conn: Conn, settler: Session, publisher: Session
    ) -> None:
        held = running(conn, max_attempts=1)
        tables.lapse(conn, held[0])
        assert [row.verdict for row in settler.run(claim, rescue=True)] == ["buried"]
        run_id = new_id()
        publisher.start(enqueue, id=held[0], run_id=run_id)
        publisher.blocked(by=settler)
        settler.run(Connection.commit)
        assert publisher.result() == held[0]
        assert publisher.run(undo, held[0], run_id) == [held[0]]


class TestTheSameKey:
    @pytest.fixture
    def first(self, session: Sessions) -> Session:
        return session("first", autocommit=False)

    @pytest.fixture
    def second(self, session: Sessions) -> Session:
        return session("second")

    def test_the_second_waits_and_is_told_of_the_first(
        self, first: Session, second: Session
    ) -> None:
        id = first.run(made, idempotency_key="k")
        second.start(enqueue, idempotency_key="k")
        second.blocked(by=first)
        first.run(Connection.commit)
        assert second.result() is None
        assert second.run(find, "k").id == id

    def test_or_inserts_where_the_first_is_rolled_back(
        self, conn: Conn, first: Session, second: Session
    ) -> None:
        first.run(made, idempotency_key="k")
        second.start(enqueue, idempotency_key="k")
        second.blocked(by=first)
        first.run(Connection.rollback)
        assert claim_ids(conn) == {second.result()}

    def test_in_bulk_the_one_in_the_way_is_unknown_and_the_second_look_tells(
        self, first: Session, second: Session
    ) -> None:
        id = first.run(made, idempotency_key="b")
        second.start(enqueue_many, [Item(key=key) for key in "abc"])
        second.blocked(by=first)
        first.run(Connection.commit)
        a, b, c = second.result()
        assert [a.verdict, b.verdict, c.verdict] == [CREATED, UNKNOWN, CREATED]
        assert second.run(find, "b").id == id

    def test_in_bulk_a_key_twice_is_answered_with_the_new_job_and_not_with_the_old(
        self, conn: Conn, first: Session, second: Session
    ) -> None:
        """The old holder is in the snapshot still, and has ended when the insert gets its turn."""
        held = running(conn, idempotency_key="k")
        first.run(settle, held)
        second.start(enqueue_many, [Item(key="k"), Item(key="k")])
        second.blocked(by=first)
        first.run(Connection.commit)
        answers = second.result()
        assert sorted(answer.verdict for answer in answers) == [CREATED, EXISTING]
        assert {answer.id for answer in answers} == claim_ids(conn)

    def test_another_key_does_not_wait(self, first: Session, second: Session) -> None:
        first.run(made, idempotency_key="k")
        for other in ({"idempotency_key": "j"}, {"tenant": "t"}, {"name": "m"}):
            assert second.run(enqueue, **({"idempotency_key": "k"} | other)) is not None
        assert second.run(enqueue) is not None

    @pytest.mark.parametrize("scope", ["live", "waiting"])
    def test_a_claim_in_flight_decides_by_the_scope(
        self, conn: Conn, first: Session, second: Session, scope: str
    ) -> None:
        over = {"idempotency_scope": scope, "idempotency_key": "k"}
        id = made(conn, **over)
        assert first.run(claim_ids) == {id}
        second.start(enqueue, **over)
        second.blocked(by=first)
        first.run(Connection.commit)
        assert (second.result() is None) == (scope == "live")

    @pytest.mark.parametrize("ask", [retry, dead, None], ids=["retry", "dead", "renew"])
    def test_a_settle_or_renewal_in_flight_is_waited_for(
        self, conn: Conn, first: Session, second: Session, ask: Any
    ) -> None:
        held = running(conn, idempotency_key="k")
        if ask is None:
            first.run(renew, [held])
        else:
            first.run(settle, ask(held))
        second.start(enqueue, idempotency_key="k")
        second.blocked(by=first)
        first.run(Connection.commit)
        assert (second.result() is not None) == (ask is dead)

    def test_a_job_that_ends_between_the_two_looks_is_seen_by_the_next_insert(
        self, conn: Conn
    ) -> None:
        held = running(conn, idempotency_key="k")
        assert enqueue(conn, idempotency_key="k") is None
        settle(conn, held)
        assert find(conn, "k") is None
        assert enqueue(conn, idempotency_key="k") is not None

    @pytest.mark.parametrize("scope", ["live", "waiting"])
    def test_one_that_comes_and_goes_twice_is_found_by_looking_back(
        self, conn: Conn, scope: str
    ) -> None:
        over = {"idempotency_scope": scope, "idempotency_key": "k"}
        first = made(conn, **over)
        assert enqueue(conn, **over) is None
        row = claim(conn)[0]
        if scope == "live":
            settle(conn, (row.id, row.claims))
        assert find(conn, "k") is None
        second = made(conn, **over)
        assert enqueue(conn, **over) is None
        rows = claim(conn)
        if scope == "live":
            settle(conn, (rows[0].id, rows[0].claims))
        found = find(conn, "k", since=HOUR)
        assert found is not None
        assert found.id in {first, second}


class TestTwoBulkEnqueues:
    def test_in_opposite_order_they_wait_for_each_other_and_never_deadlock(
        self, conn: Conn, session: Sessions
    ) -> None:
        # A third session holds the key in the middle, so that both get under way before either
        # can end: in the order given each would hold a key that the other still wants.
        keys = sorted((f"k{n}" for n in range(9)), key=lambda key: sha256(key.encode()).digest())
        gatekeeper = session("gatekeeper", autocommit=False)
        one, other = session("one"), session("other")
        gatekeeper.run(made, idempotency_key=keys[4])

        one.start(enqueue_many, [Item(key=key) for key in keys])
        one.blocked(by=gatekeeper)
        other.start(enqueue_many, [Item(key=key) for key in reversed(keys)])
        other.blocked()
        gatekeeper.run(Connection.rollback)

        assert [answer.verdict for answer in one.result()] == [CREATED] * 9
        assert [answer.verdict for answer in other.result()] == [UNKNOWN] * 9
        assert tables.deadlocks(conn) == 0

    def test_tenants_are_ordered_by_their_bytes(self, conn: Conn, session: Sessions) -> None:
        """As Python sorts them over the chunks of a large enqueue; a collation would not."""
        gatekeeper, one = session("gatekeeper", autocommit=False), session("one", autocommit=False)
        gatekeeper.run(made, idempotency_key="k", tenant="b")
        tenants = ["é", "b", "a", "B", "_"]
        one.start(enqueue_many, [Item(key="k", tenant=tenant) for tenant in tenants])
        one.blocked(by=gatekeeper)
        # Those before it are inserted and so waited for; those behind it are free.
        waits = session("waits")
        for tenant in sorted(tenants, key=str.encode):
            waits.start(enqueue, idempotency_key="k", tenant=tenant)
            if tenant.encode() < b"b":
                waits.blocked(by=one)
                conn.execute("select pg_cancel_backend(%s)", [waits.pid])
                with pytest.raises(errors.QueryCanceled):
                    waits.result()
            elif tenant.encode() > b"b":
                assert waits.result() is not None
            else:
                waits.blocked(by=gatekeeper)
                conn.execute("select pg_cancel_backend(%s)", [waits.pid])
                with pytest.raises(errors.QueryCanceled):
                    waits.result()
        gatekeeper.run(Connection.rollback)
        one.result()


class TestALongTransaction:
    """An enqueue in a transaction that stays open blocks nobody but enqueues of its own keys."""

    @pytest.fixture
    def long(self, conn: Conn, session: Sessions) -> Session:
        for n in range(3):
            made(conn, idempotency_key=f"there{n}")
        long = session("long", autocommit=False)
        long.run(made)
        long.run(made, idempotency_key="own")
        long.run(made, id=new_id())
        long.run(enqueue_many, [Item(key=f"many{n}") for n in range(20)])
        for n in range(3):
            assert long.run(enqueue, idempotency_key=f"there{n}") is None
        return long

    def test_claims_renewals_and_settles_go_on(
        self, conn: Conn, long: Session, session: Sessions
    ) -> None:
        held = [running(conn) for _ in range(4)]
        lapsed, last = running(conn), running(conn, max_attempts=1)
        tables.lapse(conn, lapsed[0], last[0])
        ready = {made(conn) for _ in range(5)}
        other = session("other")
        rows = other.run(claim, 50, worker="w2", rescue=True)
        # The three that the long transaction met are not locked by it either.
        assert {row.id for row in rows} > ready | {lapsed[0], last[0]}
        assert len(rows) == 5 + 2 + 3
        assert other.run(renew, held) == ["renewed"] * 4
        answers = other.run(settle, held[0], retry(held[1]), dead(held[2]), held[3])
        assert {verdict for verdict, _ in answers} == {"landed"}
        long.run(Connection.commit)
        assert len(claim_ids(conn, 50)) == 1 + 3 + 20

    @pytest.mark.usefixtures("long")
    def test_other_enqueues_go_on(self, session: Sessions) -> None:
        other = session("other")
        assert other.run(enqueue) is not None
        assert other.run(enqueue, idempotency_key="else") is not None
        assert other.run(enqueue, id=new_id()) is not None
        answers = other.run(enqueue_many, [Item(key=f"else{n}") for n in range(20)])
        assert {answer.verdict for answer in answers} == {CREATED}
        assert other.run(enqueue, idempotency_key="there0") is None

    def test_only_the_same_key_waits(self, long: Session, session: Sessions) -> None:
        other = session("other")
        other.start(enqueue_many, [Item(key="else"), Item(key="many7")])
        other.blocked(by=long)
        long.run(Connection.commit)
        assert [answer.verdict for answer in other.result()] == [CREATED, UNKNOWN]

    def test_its_jobs_are_invisible_until_it_commits(self, conn: Conn, long: Session) -> None:
        assert len(claim_ids(conn, 50)) == 3
        long.run(Connection.rollback)
        assert claim(conn, 50) == []
        assert enqueue(conn, idempotency_key="own") is not None
