"""The outbox in SQL: order, lease, fence, and what a publish makes of rows."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from psycopg import Connection

from jobs_sql import outbox as sql
from jobs_sql.wake import listen_wake
from tests.conftest import Connect
from tests.sql.calls import HOUR, Item, Settle, claim_ids, enqueue_many, made, new_id, settle
from tests.sql.calls import claim as claim_jobs
from tests.sql.staging import LEASE, claim, ids, mark, publish, stage, take
from tests.sql.test_wake import heard
from tests.support.stepped import Session

pytestmark = pytest.mark.majors

Conn = Connection[Any]


def one(conn: Conn, statement: str, *values: object) -> Any:
    row = conn.execute(statement, values or None).fetchone()
    assert row is not None
    return row[0]


def lapse(conn: Conn) -> None:
    conn.execute("update jobs.relay set expires_at = clock_timestamp() - interval '1 second'")


class TestOrder:
    def test_is_that_of_the_stages_and_then_of_the_ids(self, conn: Conn) -> None:
        staged = [stage(conn) for _ in range(5)]
        late, early = stage(conn), stage(conn)
        conn.execute("update jobs.outbox set staged_at = now() where id = any(%s)", [[late, early]])
        conn.execute(
            "update jobs.outbox set staged_at = now() - interval '1 hour' where id = %s",
            [staged[3]],
        )
        token = take(conn)
        expected = [staged[3], *staged[:3], staged[4], *sorted([late, early])]
        assert ids(claim(conn, token)) == expected
        assert ids(claim(conn, token, most=2)) == expected[:2]

    def test_of_many_in_one_statement_is_as_given(self, conn: Conn) -> None:
        asked = [new_id() for _ in range(50)]
        asked.reverse()
        count = len(asked)
        sql.stage_jobs(
            conn,
            queue="q",
            name="n",
            max_attempts=1,
            dead_letter=True,
            idempotency_scope="live",
            concurrency_limit=None,
            when_busy=None,
            traceparent=None,
            enqueued_by=None,
            ids=asked,
            run_ids=asked,
            tenants=[""] * count,
            priorities=[0] * count,
            run_ats=[None] * count,
            delays=[dt.timedelta(0)] * count,
            idempotency_keys=[None] * count,
            concurrency_keys=[None] * count,
            inputs=["{}"] * count,
        )
        assert ids(claim(conn, take(conn))) == asked

    def test_one_that_commits_late_is_found_at_its_place(
        self, conn: Conn, connect: Connect
    ) -> None:
        """O-56."""
        slow = connect(autocommit=False)
        first = stage(slow)
        second = stage(conn)
        token = take(conn)
        assert ids(claim(conn, token)) == [second]
        assert mark(conn, token, [second]) == (True, 1)
        assert claim(conn, token)[0].id is None
        third = stage(conn)
        slow.commit()
        assert ids(claim(conn, token)) == [first, third]

    def test_a_rollback_leaves_nothing(self, conn: Conn, connect: Connect) -> None:
        session = connect(autocommit=False)
        stage(session)
        session.rollback()
        assert claim(conn) == []


class TestLease:
    def test_is_not_taken_where_nothing_waits(self, conn: Conn) -> None:
        before = one(conn, "select token from jobs.relay")
        assert claim(conn) == []
        assert one(conn, "select token from jobs.relay") == before

    def test_its_row_is_put_back_where_somebody_has_removed_it(self, conn: Conn) -> None:
        """A test suite that empties all tables, say. Old tokens stay worthless."""
        row = stage(conn)
        stale = take(conn)
        conn.execute("truncate jobs.relay")
        assert claim(conn, stale) == []
        token = take(conn)
        assert token > stale
        assert mark(conn, stale, [row]) == (False, 0)
        assert ids(claim(conn, token)) == [row]

    def test_has_one_holder(self, conn: Conn) -> None:
        row = stage(conn)
        token = take(conn, holder="a")
        assert claim(conn, holder="b") == []
        assert claim(conn, token + 1, holder="b") == []
        assert ids(claim(conn, token, holder="a")) == [row]
        assert one(conn, "select holder from jobs.relay") == "a"

    def test_is_renewed_when_a_third_of_it_is_over_and_not_before(self, conn: Conn) -> None:
        stage(conn)
        token = take(conn)
        until = one(conn, "select expires_at from jobs.relay")
        claim(conn, token)
        assert one(conn, "select expires_at from jobs.relay") == until
        conn.execute("update jobs.relay set expires_at = expires_at - interval '11 seconds'")
        claim(conn, token)
        assert one(conn, "select expires_at from jobs.relay") > until

    def test_a_lapsed_one_is_taken_by_the_next_and_lost_for_good(self, conn: Conn) -> None:
        row = stage(conn)
        stalled = take(conn, holder="stalled")
        lapse(conn)
        successor = take(conn, holder="successor")
        assert successor > stalled
        assert claim(conn, stalled, holder="stalled") == []
        assert mark(conn, stalled, [row]) == (False, 0)
        note = sql.note_outbox_failure(
            conn, token=stalled, id=row, error="e", refused=True, park=True, delay=HOUR
        )
        assert note == (False, False)
        assert sql.release_outbox(conn, token=stalled) == 0
        assert ids(claim(conn, successor, holder="successor")) == [row]

    def test_a_lapsed_one_that_nobody_took_is_kept(self, conn: Conn) -> None:
        row = stage(conn)
        token = take(conn)
        lapse(conn)
        assert mark(conn, token, [row]) == (True, 1)
        stage(conn)
        assert [(found.token, found.fresh) for found in claim(conn, token)] == [(token, False)]

    def test_a_released_one_is_free_at_once(self, conn: Conn) -> None:
        stage(conn)
        token = take(conn)
        assert sql.release_outbox(conn, token=token) == 1
        assert take(conn, holder="next") == token + 1

    def test_two_that_want_it_at_once(self, conn: Conn, session: Callable[..., Session]) -> None:
        """The second one waits for the row and then sees that it has been taken."""
        stage(conn)
        a, b = session("a", autocommit=False), session("b")
        [first] = a.run(lambda c: claim(c, holder="a"))
        waiting = b.start(lambda c: claim(c, holder="b"))
        b.blocked()
        a.run(lambda c: c.commit())
        assert waiting.result() == []
        assert first.fresh

    def test_a_successor_sees_the_last_mark_of_its_predecessor(
        self, conn: Conn, session: Callable[..., Session]
    ) -> None:
        """Its first snapshot may be older than that mark, so it reads no rows with it."""
        row = stage(conn)
        token = take(conn)
        lapse(conn)
        a, b = session("a", autocommit=False), session("b")
        a.run(lambda c: mark(c, token, [row]))
        waiting = b.start(lambda c: claim(c, holder="b"))
        b.blocked()
        a.run(lambda c: c.commit())
        [answer] = waiting.result()
        assert answer.fresh
        assert ids([answer]) == []
        assert ids(claim(conn, answer.token, holder="b")) == []


class TestMark:
    def test_the_first_stamp_stays(self, conn: Conn) -> None:
        row = stage(conn)
        token = take(conn)
        assert mark(conn, token, [row]) == (True, 1)
        stamp = one(conn, "select published_at from jobs.outbox")
        assert mark(conn, token, [row], "existing") == (True, 0)
        assert one(conn, "select published_at from jobs.outbox") == stamp
        assert one(conn, "select outcome from jobs.outbox") == "created"

    def test_keeps_the_lease_from_changing_hands_before_its_commit(
        self, conn: Conn, session: Callable[..., Session]
    ) -> None:
        row = stage(conn)
        stage(conn)
        token = take(conn)
        a, b = session("a", autocommit=False), session("b")
        a.run(lambda c: mark(c, token, [row]))
        lapsing = b.start(lapse)
        b.blocked()
        a.run(lambda c: c.commit())
        lapsing.result()


class TestPublish:
    def test_takes_everything_along(self, conn: Conn) -> None:
        parent = f"00-{'a' * 32}-{'b' * 16}-01"
        kept = {
            "queue": "é",
            "name": "\U0001f600",
            "tenant": "t",
            "priority": 2,
            "idempotency_key": "k",
            "idempotency_scope": "waiting",
            "traceparent": parent,
            "enqueued_by": "me",
            "max_attempts": 7,
            "dead_letter": False,
            "concurrency_key": "c",
            "concurrency_limit": 3,
            "when_busy": "wait",
        }
        run_id = new_id()
        id = stage(conn, run_id=run_id, input='{"a":  [1, "\\u00e9"]}', **kept)
        answer = publish(conn, claim(conn, take(conn)))
        assert answer[id].verdict == "created"
        found = conn.execute(
            "select id, run_id, input::text, queue, name, tenant, priority, idempotency_key,"
            " idempotency_scope, traceparent, enqueued_by, max_attempts, dead_letter,"
            " concurrency_key, concurrency_limit, when_busy from jobs.job"
        ).fetchone()
        assert found == (id, run_id, '{"a":  [1, "\\u00e9"]}', *kept.values())
        assert one(conn, "select unique_key is not null from jobs.job")

    def test_due_times(self, conn: Conn) -> None:
        """What is left of a delay counts from the publish; an instant stays as it is."""
        later = dt.datetime(2500, 1, 1, tzinfo=dt.UTC)
        at, delayed, over = stage(conn, run_at=later), stage(conn, delay=HOUR), stage(conn)
        conn.execute(
            "update jobs.outbox set staged_at = staged_at - interval '20 minutes' where id = %s",
            [delayed],
        )
        conn.execute(
            "update jobs.outbox set staged_at = now() - interval '2 days', delay = '1 day'"
            " where id = %s",
            [over],
        )
        publish(conn, claim(conn, take(conn)))
        query = "select available_at from jobs.job where id = %s"
        assert one(conn, query, at) == later
        left = one(conn, "select available_at - now() from jobs.job where id = %s", delayed)
        assert dt.timedelta(minutes=39) < left <= dt.timedelta(minutes=40)
        assert one(
            conn, "select available_at <= clock_timestamp() from jobs.job where id = %s", over
        )

    def test_jobs_of_equal_priority_run_in_order(self, conn: Conn) -> None:
        staged = [stage(conn, name=name) for name in "cabcab"]
        publish(conn, claim(conn, take(conn)))
        due = conn.execute("select id from jobs.job order by available_at, id").fetchall()
        assert [row[0] for row in due] == staged

    def test_a_repeat_finds_the_id_live_or_finished(self, conn: Conn) -> None:
        live, ended = stage(conn, queue="live"), stage(conn)
        rows = claim(conn, take(conn))
        publish(conn, rows)
        [held] = claim_jobs(conn, {"q": 1})
        settle(conn, Settle((held.id, held.claims)))
        again = publish(conn, rows)
        assert {id: row.verdict for id, row in again.items()} == {
            live: "existing",
            ended: "existing",
        }
        assert {id: row.id for id, row in again.items()} == {live: live, ended: ended}
        assert one(conn, "select count(*) from jobs.job") == 1

    def test_a_taken_key_answers_its_holder(self, conn: Conn) -> None:
        holder = made(conn, name="n", idempotency_key="k")
        row = stage(conn, idempotency_key="k")
        other = stage(conn, idempotency_key="k", tenant="other")
        answer = publish(conn, claim(conn, take(conn)))
        assert (answer[row].verdict, answer[row].id) == ("existing", holder)
        assert answer[other].verdict == "created"

    def test_a_key_that_repeats_in_the_batch(self, conn: Conn) -> None:
        first, second = stage(conn, idempotency_key="k"), stage(conn, idempotency_key="k")
        third = stage(conn, idempotency_key="k", name="other")
        answer = publish(conn, claim(conn, take(conn)))
        assert answer[first].verdict == answer[third].verdict == "created"
        assert (answer[second].verdict, answer[second].id) == ("existing", first)

    def test_a_holder_that_is_not_visible_yet(
        self, conn: Conn, session: Callable[..., Session]
    ) -> None:
        row = stage(conn, idempotency_key="k")
        rows = claim(conn, take(conn))
        a, b = session("a", autocommit=False), session("b")
        holder = a.run(lambda c: made(c, name="n", idempotency_key="k"))
        waiting = b.start(lambda c: publish(c, rows))
        b.blocked()
        a.run(lambda c: c.commit())
        assert waiting.result()[row].verdict == "unknown"
        assert publish(conn, rows)[row].id == holder

    def test_many_names_and_keys_at_once_never_deadlock_with_a_bulk_enqueue(
        self, conn: Conn, session: Callable[..., Session]
    ) -> None:
        """Both insert in one order of keys: the second waits for the first, and not the reverse."""
        for key in ("b", "a", "c"):
            stage(conn, idempotency_key=key)
        rows = claim(conn, take(conn))
        a, b = session("a", autocommit=False), session("b", autocommit=False)
        items = [Item(key=key) for key in ("c", "a", "b")]
        a.run(lambda c: enqueue_many(c, items, name="n"))
        waiting = b.start(lambda c: publish(c, rows))
        b.blocked()
        a.run(lambda c: c.rollback())
        assert {row.verdict for row in waiting.result().values()} == {"created"}

    def test_rows_go_in_in_the_order_in_which_a_bulk_enqueue_waits(self, conn: Conn) -> None:
        """That of name, tenant, digest of the key and id, by their bytes."""
        for n in range(60):
            stage(
                conn,
                name="nmé"[n % 3],
                tenant=("t", "s", "é")[n // 3 % 3],
                idempotency_key=f"k{n}" if n % 4 else None,
            )
        publish(conn, claim(conn, take(conn)))
        found = conn.execute(
            "select convert_to(name, 'UTF8'), convert_to(tenant, 'UTF8'), unique_key is null,"
            " unique_key, id from jobs.job order by ctid"
        ).fetchall()
        assert len(found) == 60
        assert found == sorted(found, key=lambda row: (*row[:3], row[3] or b"", row[4]))

    def test_wakes_each_queue_once(self, conn: Conn, connect: Connect) -> None:
        for queue in ("b", "a", "b"):
            stage(conn, queue=queue)
        stage(conn, queue="later", delay=HOUR)
        rows = claim(conn, take(conn))
        ear = connect()
        listen_wake(ear)
        conn.execute("truncate jobs.wake")
        publish(conn, rows)
        assert one(conn, "select count(*) from jobs.wake") == 2
        assert sorted(heard(ear)) == ["a", "b"]
        assert len(claim_ids(conn, {"a": 5, "b": 5})) == 3


class TestWake:
    def test_a_stage_tells_relays_and_no_queue(self, conn: Conn, connect: Connect) -> None:
        ear = connect()
        listen_wake(ear)
        session = connect(autocommit=False)
        stage(session, queue="q" * 255, delay=HOUR)
        assert heard(ear) == []
        session.commit()
        assert heard(ear) == [""]
        stage(conn, queue="é" * 127)
        assert heard(ear) == [], "one has just been sent"

    def test_the_empty_text_is_no_queue(self, conn: Conn) -> None:
        with pytest.raises(psycopg.errors.CheckViolation):
            made(conn, queue="")


class TestFailures:
    def note(self, conn: Conn, token: int, id: Any, **over: Any) -> Any:
        given = {"error": "E", "refused": True, "park": False, "delay": HOUR}
        return sql.note_outbox_failure(conn, token=token, id=id, **(given | over))

    def test_a_refused_row_is_held_back_and_says_why(self, conn: Conn) -> None:
        row = stage(conn)
        token = take(conn)
        assert self.note(conn, token, row) == (True, True)
        [found] = claim(conn, token)
        assert (found.refusals, found.last_error) == (1, "E")
        assert found.wait is not None
        assert dt.timedelta(minutes=59) < found.wait <= HOUR

    def test_a_parked_row_lets_the_others_pass(self, conn: Conn) -> None:
        row, behind = stage(conn), stage(conn)
        token = take(conn)
        self.note(conn, token, row, park=True)
        assert ids(claim(conn, token)) == [behind]

    def test_trouble_that_is_not_the_rows_own_counts_nothing(self, conn: Conn) -> None:
        row = stage(conn)
        token = take(conn)
        self.note(conn, token, row, refused=False)
        [found] = claim(conn, token)
        assert (found.refusals, found.last_error, found.wait) == (0, "E", dt.timedelta(0))

    def test_nothing_is_noted_on_a_published_row(self, conn: Conn) -> None:
        row = stage(conn)
        token = take(conn)
        mark(conn, token, [row])
        assert self.note(conn, token, row) == (True, False)
        assert one(conn, "select last_error from jobs.outbox") is None


class TestPruning:
    def test_takes_old_published_rows_only_and_so_many_at_most(self, conn: Conn) -> None:
        rows = [stage(conn) for _ in range(6)]
        token = take(conn)
        mark(conn, token, rows[:5])
        conn.execute(
            "update jobs.outbox set published_at = now() - interval '8 days' where id = any(%s)",
            [rows[:4]],
        )
        week = dt.timedelta(days=7)
        assert sql.prune_outbox(conn, keep=week, most=3) == 3
        assert sql.prune_outbox(conn, keep=week, most=3) == 1
        assert sql.prune_outbox(conn, keep=week, most=3) == 0
        left = conn.execute("select id from jobs.outbox order by id").fetchall()
        assert [row[0] for row in left] == sorted(rows[4:])

    def test_passes_rows_that_are_locked(self, conn: Conn, connect: Connect) -> None:
        rows = [stage(conn), stage(conn)]
        mark(conn, take(conn), rows)
        conn.execute("update jobs.outbox set published_at = now() - interval '8 days'")
        other = connect(autocommit=False)
        other.execute("select 1 from jobs.outbox where id = %s for update", [rows[0]])
        assert sql.prune_outbox(conn, keep=LEASE, most=10) == 1
