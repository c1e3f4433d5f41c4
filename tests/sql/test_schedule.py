"""The lease of the scheduler, arming, and what operators change of schedules."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from psycopg import Connection

from jobs_sql import schedule as sql
from tests.sql.calls import strict
from tests.sql.scheduling import (
    HOUR,
    Conn,
    arm,
    arming,
    change,
    create,
    fire,
    mark,
    read,
    resign,
    set_back,
    tick,
)
from tests.support.stepped import Session

pytestmark = pytest.mark.majors


class TestTickScheduler:
    def test_the_first_leads_and_the_others_do_not(self, conn: Conn):
        assert tick(conn, "one").leads
        assert not tick(conn, "two").leads
        assert tick(conn, "one").leads

    def test_a_lapsed_lease_is_taken(self, conn: Conn):
        tick(conn, "one")
        conn.execute("update jobs.leader set expires_at = clock_timestamp() - interval '1 second'")
        assert tick(conn, "two").leads
        assert not tick(conn, "one").leads

    def test_a_renewal_prolongs_it(self, conn: Conn):
        tick(conn, "one")
        conn.execute("update jobs.leader set expires_at = clock_timestamp() + interval '1 second'")
        tick(conn, "one")
        left = conn.execute("select expires_at - clock_timestamp() from jobs.leader").fetchone()
        assert left is not None
        assert left[0] > dt.timedelta(seconds=15)

    def test_a_lease_given_under_another_clock_is_taken(self, conn: Conn):
        tick(conn, "one")
        conn.execute("update jobs.leader set expires_at = clock_timestamp() + interval '1 year'")
        assert tick(conn, "two").leads

    def test_only_the_holder_resigns(self, conn: Conn):
        tick(conn, "one")
        assert resign(conn, "two") == 0
        assert not tick(conn, "two").leads
        assert resign(conn, "one") == 1
        assert tick(conn, "two").leads

    def test_each_role_has_its_leader(self, conn: Conn):
        assert tick(conn, "one").alone
        answer = tick(conn, "two", role="scheduler:two")
        assert (answer.leads, answer.alone) == (True, False)
        answer = tick(conn, "one")
        assert (answer.leads, answer.alone) == (True, False)
        assert not tick(conn, "three", role="scheduler:two").leads
        assert resign(conn, "one", role="scheduler:two") == 0
        assert resign(conn, "two", role="scheduler:two") == 1
        assert tick(conn, "one").alone

    @pytest.mark.parametrize("ends", ["-1 second", "1 year"])
    def test_one_whose_lease_has_ended_leaves_the_others_alone(self, conn: Conn, ends: str):
        tick(conn, "two", role="scheduler:two")
        assert not tick(conn, "one").alone
        conn.execute(
            "update jobs.leader set expires_at = clock_timestamp() + %s::interval"
            " where role = 'scheduler:two'",
            [ends],
        )
        assert tick(conn, "one").alone

    def test_what_others_have_left_goes_after_a_day(self, conn: Conn):
        for role, ago in (("scheduler:old", "25 hours"), ("scheduler:new", "23 hours")):
            tick(conn, "gone", role=role)
            conn.execute(
                "update jobs.leader set expires_at = clock_timestamp() - %s::interval"
                " where role = %s",
                [ago, role],
            )
        tick(conn, "two", role="scheduler:two")
        tick(conn, "one")
        assert resign(conn, "one") == 2
        left = conn.execute("select role from jobs.leader order by role").fetchall()
        assert left == [("scheduler:new",), ("scheduler:two",)]

    def test_it_tells_the_time_of_the_database(self, conn: Conn):
        before = conn.execute("select clock_timestamp()").fetchone()
        found = tick(conn).read_at
        after = conn.execute("select clock_timestamp()").fetchone()
        assert before is not None
        assert after is not None
        assert before[0] <= found <= after[0]

    @pytest.mark.parametrize(
        "what",
        [
            lambda conn: create(conn, "new"),
            lambda conn: change(conn, max_catch_up=11),
            lambda conn: sql.remove_schedule(conn, name="made"),
            lambda conn: (sql.remove_schedule(conn, name="made"), create(conn)),
            lambda conn: sql.pause_task(conn, name="made", paused_by=None),
            lambda conn: sql.resume_task(conn, name="other"),
            lambda conn: arm(conn, "declared"),
        ],
        ids=["create", "change", "remove", "replace", "pause", "resume", "arm"],
    )
    def test_its_fingerprint_tells_of_a_change(self, conn: Conn, what: Callable[[Conn], object]):
        create(conn)
        sql.pause_task(conn, name="other", paused_by=None)
        before = tick(conn).fingerprint
        assert tick(conn).fingerprint == before
        what(conn)
        assert tick(conn).fingerprint != before

    def test_its_fingerprint_is_the_same_after_a_fire(self, conn: Conn):
        create(conn)
        set_back(conn, "made")
        before = tick(conn).fingerprint
        assert fire(conn, "made").verdict == "fired"
        assert mark(conn) == 1
        assert tick(conn).fingerprint == before


class TestArmSchedules:
    def test_the_first_sight_arms_at_now(self, conn: Conn):
        assert arm(conn) == 1
        row = read(conn)
        assert dt.timedelta(0) <= row.read_at - row.watermark < dt.timedelta(minutes=1)
        assert (row.source, row.last_occurrence, row.error) == ("declared", None, None)

    def test_a_later_sight_changes_nothing(self, conn: Conn):
        arm(conn)
        watermark = set_back(conn)
        assert arm(conn) == 0
        assert read(conn).watermark == watermark

    @pytest.mark.parametrize(
        "timing",
        [{"cron": "0 4 * * *"}, {"tz": "Europe/Zurich"}, {"cron": None, "every": HOUR}],
        ids=["cron", "zone", "interval"],
    )
    def test_another_timing_arms_anew(self, conn: Conn, timing: dict[str, Any]):
        arm(conn)
        watermark = set_back(conn)
        assert arm(conn, **timing) == 1
        row = read(conn)
        assert row.watermark > watermark + HOUR - dt.timedelta(minutes=1)
        assert row.revision == 2

    def test_another_catch_up_does_not(self, conn: Conn):
        arm(conn)
        watermark = set_back(conn)
        assert arm(conn, catch_up="run_all", max_catch_up=5) == 1
        row = read(conn)
        assert (row.watermark, row.catch_up, row.max_catch_up) == (watermark, "run_all", 5)

    def test_a_watermark_never_moves_back(self, conn: Conn):
        arm(conn)
        watermark = set_back(conn, by=-HOUR)
        arm(conn, cron="0 4 * * *")
        assert read(conn).watermark == watermark

    def test_one_that_does_not_lead_changes_nothing(self, conn: Conn):
        arm(conn)
        assert arm(conn, cron="0 4 * * *", replace=False) == 0
        assert arm(conn, "another", replace=False) == 1
        assert read(conn).cron == "0 3 * * *"

    def test_a_stored_schedule_of_the_name_stays(self, conn: Conn):
        create(conn, "nightly")
        assert arm(conn, cron="0 4 * * *") == 0
        assert read(conn).cron == "0 3 * * *"

    def test_it_waits_for_nobody_who_holds_a_row(self, conn: Conn, session: Callable[..., Session]):
        arm(conn)
        arm(conn, "other")
        operator, other = session("operator", autocommit=False), session("other")
        operator.run(change, "nightly", rearm=True)
        assert other.run(arming) == (0, 0), "there is nothing to change"
        assert other.run(arming, cron="0 4 * * *") == (0, 1)
        assert other.run(arming, "other", cron="0 4 * * *") == (1, 0)
        operator.run(Connection.commit)
        assert arming(conn, cron="0 4 * * *") == (1, 0)
        assert read(conn).revision == 3

    def test_two_that_change_it_alike_change_it_once(
        self, conn: Conn, session: Callable[..., Session]
    ):
        arm(conn)
        one, two = session("one", autocommit=False), session("two")
        assert one.run(arming, cron="0 4 * * *") == (1, 0)
        assert two.run(arming, cron="0 4 * * *") == (0, 1)
        one.run(Connection.commit)
        assert two.run(arming, cron="0 4 * * *") == (0, 0)
        assert read(conn).revision == 2


class TestStoredSchedules:
    def test_a_name_is_taken_once(self, conn: Conn):
        assert create(conn) == 1
        assert create(conn, cron="0 4 * * *") == 0
        assert read(conn, "made").cron == "0 3 * * *"

    def test_a_new_one_is_armed(self, conn: Conn):
        create(conn)
        row = read(conn, "made")
        assert dt.timedelta(0) <= row.read_at - row.watermark < dt.timedelta(minutes=1)

    def test_a_change_of_the_input_keeps_the_watermark(self, conn: Conn):
        create(conn)
        watermark = set_back(conn, "made")
        assert change(conn, input='{"n":2}') == 1
        row = read(conn, "made")
        assert (row.watermark, row.input, row.revision) == (watermark, '{"n":2}', 2)

    def test_a_change_of_the_timing_arms_anew(self, conn: Conn):
        create(conn)
        watermark = set_back(conn, "made")
        assert change(conn, cron="0 4 * * *") == 1
        assert read(conn, "made").watermark > watermark

    def test_rearming_moves_a_watermark_back_to_now(self, conn: Conn):
        create(conn)
        ahead = set_back(conn, "made", by=-HOUR)
        assert change(conn, rearm=True) == 1
        assert read(conn, "made").watermark < ahead

    def test_a_change_of_what_was_changed_meanwhile(self, conn: Conn):
        create(conn)
        assert change(conn, max_catch_up=11) == 1
        assert change(conn, max_catch_up=12, revision=1) == 0
        assert read(conn, "made").max_catch_up == 11

    def test_removing_takes_the_pause_along(self, conn: Conn):
        create(conn)
        sql.pause_task(conn, name="made", paused_by=None)
        assert sql.remove_schedule(conn, name="made") == 1
        assert sql.remove_schedule(conn, name="made") == 0
        create(conn)
        assert not read(conn, "made").paused

    def test_a_mark_is_for_the_revision_it_was_made_for(self, conn: Conn):
        create(conn)
        assert mark(conn, revision=2) == 0
        assert mark(conn) == 1
        assert mark(conn) == 0
        assert read(conn, "made").error == "no"
        assert mark(conn, error=None) == 1
        assert read(conn, "made").error_at is None

    def test_nothing_is_said_of_what_another_has_fired(self, conn: Conn):
        create(conn)
        seen = set_back(conn, "made")
        assert fire(conn, "made").verdict == "fired"
        assert mark(conn, watermark=seen) == 0
        assert mark(conn) == 1

    def test_a_mark_waits_for_nobody(self, conn: Conn, session: Callable[..., Session]):
        create(conn)
        operator, scheduler = session("operator", autocommit=False), session("scheduler")
        operator.run(change, max_catch_up=11)
        assert scheduler.run(mark) == 0
        operator.run(Connection.rollback)
        assert scheduler.run(mark) == 1

    def test_the_list_is_in_order_of_the_bytes_of_the_names(self, conn: Conn):
        for name in ("b", "\u00e4", "a", "B"):
            create(conn, name)
        rows = strict(sql.ListSchedulesRow, sql.list_schedules(conn, name=None))
        assert [row.name for row in rows] == ["B", "a", "b", "\u00e4"]

    @pytest.mark.parametrize(
        "column",
        [
            *("watermark = 'infinity'", "every = '-1 day', cron = null", "anchor = '-infinity'"),
            *("catch_up = 'x'", "max_catch_up = 0", "cron = null", "job = null", "name = ''"),
        ],
    )
    def test_what_nobody_could_read_is_refused(self, conn: Conn, column: str):
        create(conn)
        with pytest.raises((psycopg.errors.CheckViolation, psycopg.DataError)):
            conn.execute(b"update jobs.schedule set " + column.encode())
