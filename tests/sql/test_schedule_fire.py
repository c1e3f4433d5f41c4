"""The fence of a fire: what it inserts, when it inserts nothing, and two at once."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from typing import Any

import pytest
from psycopg.rows import dict_row

from jobs_sql import schedule as sql
from jobs_sql.enqueue import enqueue_job
from jobs_sql.wake import listen_wake, notify_probe
from tests.conftest import Connect
from tests.sql.calls import new_id
from tests.sql.scheduling import (
    HOUR,
    SECOND,
    Conn,
    arm,
    change,
    create,
    fire,
    jobs,
    mark,
    read,
    set_back,
    tick,
)
from tests.support.stepped import Session

pytestmark = pytest.mark.majors


def ends(conn: Conn) -> dt.timedelta:
    """How long the lease lasts."""
    row = conn.execute("select expires_at - clock_timestamp() from jobs.leader").fetchone()
    assert row is not None
    left: dt.timedelta = row[0]
    return left


class TestFireSchedule:
    @pytest.fixture(autouse=True)
    def _armed(self, conn: Conn) -> None:
        arm(conn)
        set_back(conn)

    def test_it_moves_the_watermark_and_inserts(self, conn: Conn):
        before = read(conn)
        answer = fire(conn, count=3)
        assert (answer.verdict, answer.job_count) == ("fired", 3)
        row = read(conn)
        assert row.watermark == row.last_occurrence == before.watermark + SECOND
        assert row.last_fired_at is not None
        assert row.read_at - row.last_fired_at < dt.timedelta(minutes=1)
        assert jobs(conn) == 3

    def test_the_watermark_may_pass_the_occurrence(self, conn: Conn):
        before = read(conn)
        occurrence = before.watermark + SECOND
        fire(
            conn,
            next_watermark=before.watermark + 5 * SECOND,
            catch_up_left=4,
            catch_up_until=before.watermark + 9 * SECOND,
        )
        row = read(conn)
        assert row.last_occurrence == occurrence
        assert row.watermark == before.watermark + 5 * SECOND
        assert (row.catch_up_left, row.catch_up_until) == (4, before.watermark + 9 * SECOND)

    def test_a_fire_renews_the_lease_of_its_leader_alone(self, conn: Conn):
        arm(conn)
        set_back(conn)
        assert not fire(conn).leads  # there is none
        tick(conn, "one")
        conn.execute("update jobs.leader set expires_at = clock_timestamp() + interval '1 second'")
        assert not fire(conn, holder="two").leads
        assert not fire(conn, role="scheduler:two").leads
        assert ends(conn) < dt.timedelta(seconds=5)
        assert fire(conn, holder="one", lease=dt.timedelta(seconds=20)).leads
        assert dt.timedelta(seconds=5) < ends(conn) < dt.timedelta(seconds=20)
        assert not tick(conn, "two").leads

    def test_one_that_fires_nothing_renews_nothing(self, conn: Conn):
        arm(conn)
        tick(conn, "one")
        conn.execute("update jobs.leader set expires_at = clock_timestamp() + interval '1 second'")
        answer = fire(conn, occurrence=dt.datetime(2999, 1, 1, tzinfo=dt.UTC))
        assert (answer.verdict, answer.leads) == ("early", False)
        assert ends(conn) < dt.timedelta(seconds=5)

    def test_a_fire_without_jobs_counts(self, conn: Conn):
        before = read(conn)
        assert fire(conn, count=0).verdict == "fired"
        assert read(conn).watermark > before.watermark

    def test_a_watermark_that_has_moved_fires_nothing(self, conn: Conn):
        row = read(conn)
        stale = row.watermark - SECOND
        answer = fire(conn, watermark=stale, revision=row.revision)
        assert (answer.verdict, answer.job_count) == ("moved", 0)
        assert read(conn).watermark == row.watermark
        assert jobs(conn) == 0

    def test_a_schedule_that_was_changed_fires_nothing(self, conn: Conn):
        row = read(conn)
        arm(conn, catch_up="run_all")
        answer = fire(conn, watermark=row.watermark, revision=row.revision)
        assert answer.verdict == "changed"
        assert jobs(conn) == 0

    def test_a_paused_schedule_keeps_its_watermark(self, conn: Conn):
        row = read(conn)
        sql.pause_task(conn, name="nightly", paused_by="me")
        assert fire(conn).verdict == "paused"
        assert (read(conn).watermark, read(conn).paused, jobs(conn)) == (row.watermark, True, 0)
        sql.resume_task(conn, name="nightly")
        assert fire(conn).verdict == "fired"

    def test_the_pause_of_a_queue_of_the_name_is_another(self, conn: Conn):
        conn.execute("insert into jobs.pause (kind, name) values ('queue', 'nightly')")
        assert not read(conn).paused
        assert fire(conn).verdict == "fired"

    def test_nothing_fires_before_its_time_by_the_clock_of_the_database(self, conn: Conn):
        row = read(conn)
        answer = fire(conn, occurrence=row.read_at + HOUR)
        assert answer.verdict == "early"
        assert (read(conn).watermark, jobs(conn)) == (row.watermark, 0)

    def test_a_watermark_never_moves_back(self, conn: Conn):
        row = read(conn)
        answer = fire(conn, occurrence=row.watermark - SECOND)
        assert answer.verdict == "moved"
        assert (read(conn).watermark, jobs(conn)) == (row.watermark, 0)

    def test_one_that_is_gone(self, conn: Conn):
        row = read(conn)
        sql.remove_schedule(conn, name="nightly")
        assert fire(conn, watermark=row.watermark, revision=1).verdict == "gone"
        assert jobs(conn) == 0

    def test_a_key_that_is_taken_takes_no_other_job_along(self, conn: Conn):
        first = fire(conn, count=2)
        second = fire(
            conn, count=2, idempotency_keys=["another", f"task:nightly@{read(conn).watermark}"]
        )
        assert (first.job_count, second.job_count) == (2, 2)
        third = fire(conn, count=2, idempotency_keys=["another", "new"])
        assert (third.verdict, third.job_count) == ("fired", 1)

    def test_an_error_is_gone_with_the_fire(self, conn: Conn):
        assert mark(conn, "nightly") == 1
        fire(conn)
        assert (read(conn).error, read(conn).error_at) == (None, None)

    def test_its_jobs_are_those_of_an_enqueue(self, conn: Conn):
        """All columns, but for times and ids."""
        fire(conn, tenants=["t"], priorities=[2], idempotency_keys=["k"])
        conn.execute("update jobs.job set idempotency_key = 'x', unique_key = 'x'")
        given: dict[str, Any] = {
            "id": new_id(),
            "run_id": new_id(),
            "queue": "q",
            "name": "work",
            "tenant": "t",
            "priority": 2,
            "run_at": None,
            "delay": dt.timedelta(0),
            "max_attempts": 3,
            "dead_letter": True,
            "idempotency_scope": "live",
            "idempotency_key": "k",
            "traceparent": None,
            "enqueued_by": "task nightly",
            "input": '{"n":1}',
            "id_supplied": False,
        }
        for field in ("concurrency_key", "concurrency_limit", "when_busy"):
            if field in enqueue_job.__annotations__:
                given[field] = None
        enqueue_job(conn, **given)
        with conn.cursor(row_factory=dict_row) as cursor:
            one, two = cursor.execute("select * from jobs.job order by id").fetchall()
        assert one["idempotency_key"] == "x"
        for field in one:
            if field in ("id", "run_id", "available_at", "created_at"):
                assert one[field] != two[field]
            elif field not in ("idempotency_key", "unique_key"):
                assert one[field] == two[field], field
        conn.execute("delete from jobs.job")
        fire(conn, tenants=["t"], idempotency_keys=["k"])
        digest = conn.execute("select unique_key = sha256('k') from jobs.job").fetchone()
        assert digest == (True,)

    def test_each_queue_is_woken_once(self, conn: Conn, connect: Connect):
        ear = connect()
        listen_wake(ear)
        fire(
            conn,
            count=4,
            queues=["a", "b", "a", "later"],
            delays=[dt.timedelta(0)] * 3 + [HOUR],
        )
        notify_probe(ear, nonce="end")
        heard = []
        for notify in ear.notifies(timeout=15):
            if notify.payload == "end":
                break
            heard.append(notify.payload)
        assert sorted(heard) == ["a", "b"]

    def test_a_fire_that_does_not_move_wakes_nobody(self, conn: Conn):
        row = read(conn)
        fire(conn, watermark=row.watermark - SECOND, revision=1)
        assert conn.execute("select count(*) from jobs.wake").fetchone() == (0,)


class TestTwoAtOnce:
    """Two schedulers fire one occurrence at the same time."""

    def test_the_second_fires_nothing_and_waits_for_nobody(
        self, conn: Conn, session: Callable[..., Session]
    ):
        arm(conn)
        set_back(conn)
        row = read(conn)
        one, two = session("one"), session("two")
        known = {"watermark": row.watermark, "revision": row.revision}
        one.run(lambda c: c.execute("begin"))
        assert one.run(lambda c: fire(c, **known)).verdict == "fired"
        answer = two.run(lambda c: fire(c, **known))
        assert (answer.verdict, answer.job_count) == ("busy", 0)
        one.run(lambda c: c.execute("commit"))
        answer = two.run(lambda c: fire(c, **known))
        assert (answer.verdict, answer.job_count) == ("moved", 0)
        assert jobs(conn) == 1

    def test_the_second_fires_where_the_first_is_undone(
        self, conn: Conn, session: Callable[..., Session]
    ):
        arm(conn)
        set_back(conn)
        row = read(conn)
        one, two = session("one"), session("two")
        known = {"watermark": row.watermark, "revision": row.revision}
        one.run(lambda c: c.execute("begin"))
        one.run(lambda c: fire(c, **known))
        assert two.run(lambda c: fire(c, **known)).verdict == "busy"
        one.run(lambda c: c.execute("rollback"))
        answer = two.run(lambda c: fire(c, **known))
        assert (answer.verdict, answer.job_count) == ("fired", 1)
        assert jobs(conn) == 1

    @pytest.mark.parametrize("commits", [True, False])
    @pytest.mark.parametrize("act", ["change", "remove"])
    def test_a_change_and_a_fire_do_not_pass_each_other(
        self, conn: Conn, session: Callable[..., Session], act: str, commits: bool
    ):
        create(conn)
        set_back(conn, "made")
        row = read(conn, "made")
        known = {"watermark": row.watermark, "revision": row.revision}
        one, two = session("one"), session("two")
        one.run(lambda c: c.execute("begin"))
        if act == "change":
            assert one.run(lambda c: change(c, input='{"n":2}')) == 1
        else:
            assert one.run(lambda c: sql.remove_schedule(c, name="made")) == 1
        answer = two.run(lambda c: fire(c, "made", **known))
        assert (answer.verdict, answer.job_count) == ("busy", 0)
        one.run(lambda c: c.execute("commit" if commits else "rollback"))
        expected = {"change": "changed", "remove": "gone"}[act] if commits else "fired"
        assert two.run(lambda c: fire(c, "made", **known)).verdict == expected
        assert jobs(conn) == (0 if commits else 1)

    def test_fires_of_two_schedules_do_not_wait_for_each_other(
        self, conn: Conn, session: Callable[..., Session]
    ):
        for name in ("a", "b"):
            arm(conn, name)
            set_back(conn, name)
        one, two = session("one"), session("two")
        one.run(lambda c: c.execute("begin"))
        assert one.run(lambda c: fire(c, "a")).verdict == "fired"
        assert two.run(lambda c: fire(c, "b")).verdict == "fired"
        one.run(lambda c: c.execute("commit"))
        assert jobs(conn) == 2
