"""`jobs tasks ...` as processes."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from psycopg import Connection

import jobs.control as control
from tests.cli.conftest import Said
from tests.runtime.ticking import Input, work
from tests.runtime.working import execute

Command = Callable[..., Said]
Look = Callable[..., list[tuple[Any, ...]]]
Conn = Connection[Any]

TASKS = """
import sys
from datetime import datetime
from pydantic import BaseModel
import jobs

class Input(BaseModel):
    n: int = 0

@jobs.job(tenant=jobs.NO_TENANT, idempotency_key=lambda i: str(i.n))
def count(input: Input) -> None:
    pass

@jobs.task(cron="30 2 * * *", tz="Europe/Zurich")
def nightly(at: datetime):
    yield count, Input(n=at.day)
"""


@pytest.fixture(autouse=True)
def _app(tmp_path: Path) -> None:
    (tmp_path / "tasks_of_a_test.py").write_text(TASKS)


class TestNext:
    def test_what_is_not_saved_yet(self, command: Command) -> None:
        said = command(
            "tasks", "next", "--cron", "30 2 * * *", "--tz", "Europe/Zurich", "-n", "3",
            "--after", "2026-03-28T00:00Z",
        )  # fmt: skip
        assert said.lines == [
            "Sat 2026-03-28 02:30:00+01:00",
            "Sun 2026-03-29 03:00:00+02:00",
            "Mon 2026-03-30 02:30:00+02:00",
        ]

    def test_five_by_default(self, command: Command) -> None:
        said = command("tasks", "next", "--cron", "0 0 13 * 5", "--tz", "UTC")
        assert len(said.lines) == 5

    def test_a_declared_task(self, command: Command) -> None:
        said = command(
            "tasks", "next", "nightly", "--app", "tasks_of_a_test", "-n", "1", "--json",
            "--after", "2026-10-24T22:00Z",
        )  # fmt: skip
        assert said.document == {"name": "nightly", "next": ["2026-10-25T02:30:00+02:00"]}

    def test_one_in_the_database(self, command: Command, conn: Conn) -> None:
        control.create_schedule(conn, "made", work, Input(), cron="@daily", tz="Asia/Tokyo")
        said = command("tasks", "next", "made", "-n", "2")
        assert [line.endswith("00:00:00+09:00") for line in said.lines] == [True, True]

    def test_an_interval(self, command: Command) -> None:
        said = command(
            "tasks", "next", "--every", "5400", "--anchor", "2026-05-04T00:00Z", "-n", "2",
            "--after", "2026-05-04T00:00Z",
        )  # fmt: skip
        assert said.lines == ["Mon 2026-05-04 01:30:00+00:00", "Mon 2026-05-04 03:00:00+00:00"]

    @pytest.mark.parametrize(
        ("options", "code"),
        [
            (["--cron", "0 0 30 2 *", "--tz", "UTC"], "JOB_SCHEDULE_INVALID"),
            (["--cron", "0 0 * * *", "--tz", "CEST"], "JOB_SCHEDULE_INVALID"),
            (["--cron", "0 0 * * *"], "JOB_SCHEDULE_INVALID"),
            ([], "JOB_CONFIG_INVALID"),
            (["x", "--cron", "0 0 * * *", "--tz", "UTC"], "JOB_CONFIG_INVALID"),
            (["--every", "60", "--after", "2026-03-08T02:30"], "JOB_CONFIG_INVALID"),
            (["--every", "60", "-n", "-1"], "JOB_INPUT_INVALID"),
            (["other", "--app", "tasks_of_a_test"], "JOB_CONFIG_INVALID"),
        ],
    )
    def test_misuse(self, command: Command, options: list[str], code: str) -> None:
        said = command("tasks", "next", *options)
        assert said.status == 2
        assert f"[{code}]" in said.err
        assert "\nfix: " in said.err

    def test_one_that_is_not_there(self, command: Command) -> None:
        said = command("tasks", "next", "nothing")
        assert said.status == 1
        assert "[JOB_SCHEDULE_NOT_FOUND]" in said.err


class TestLook:
    def test_none(self, command: Command) -> None:
        assert command("tasks", "list").lines == ["no schedules"]
        assert command("tasks", "list", "--json").document == {"schedules": []}

    def test_a_table_for_people_shows_what_is_wrong(
        self, command: Command, conn: Conn, database: str
    ) -> None:
        control.create_schedule(conn, "good", work, Input(), cron="0 3 * * *", tz="Asia/Tokyo")
        control.create_schedule(conn, "ticks", work, Input(), every=timedelta(minutes=90))
        control.create_schedule(conn, "odd", work, Input(), cron="0 3 * * *", tz="Asia/Tokyo")
        control.pause_task(conn, "ticks")
        execute(
            database,
            "update jobs.schedule set tz = 'CEST', error = 'tz: no' where name = 'odd'",
        )
        heading, good, odd, ticks = command("tasks", "list").lines
        assert heading.split()[:4] == ["NAME", "SOURCE", "WHEN", "ZONE"]
        assert "03:00:00+09:00" in good
        assert odd.endswith("tz: no")
        assert "every 1:30:00" in ticks
        assert " yes " in ticks

    def test_fields_are_stable_and_times_are_aware(self, command: Command, conn: Conn) -> None:
        control.create_schedule(conn, "made", work, Input(), every=timedelta(minutes=90))
        (one,) = command("tasks", "list", "--json").document["schedules"]
        assert one.keys() == {
            "name", "source", "cron", "every_seconds", "anchor", "tz", "catch_up", "max_catch_up",
            "job", "input", "paused", "watermark", "last_occurrence", "last_fired_at", "error",
            "error_at", "created_at", "changed_at", "revision", "read_at", "next",
        }  # fmt: skip
        assert one["every_seconds"] == 5400
        assert datetime.fromisoformat(one["next"]).utcoffset() == timedelta(0)
        assert command("tasks", "show", "made", "--json").document.keys() == one.keys()
        assert "every" in command("tasks", "show", "made").out


class TestChange:
    def test_the_life_of_a_schedule(self, command: Command, look: Look) -> None:
        made = command(
            "tasks", "create", "tasks_of_a_test", "mine", "count", '{"n": 5}',
            "--cron", "0 3 * * *", "--tz", "Europe/Zurich", "--catch-up", "run_once",
        )  # fmt: skip
        assert made.out.startswith("created mine; next: ")
        row = "select cron, tz, catch_up, job, input::text, revision from jobs.schedule"
        assert look(row) == [("0 3 * * *", "Europe/Zurich", "run_once", "count", '{"n":5}', 1)]
        changed = command("tasks", "change", "mine", "--tz", "UTC", "--json")
        assert changed.document["tz"] == "UTC"
        command(
            "tasks", "change", "mine", "--app", "tasks_of_a_test", "--job", "count",
            "--input", '{"n": 6}',
        )  # fmt: skip
        assert look(row) == [("0 3 * * *", "UTC", "run_once", "count", '{"n":6}', 3)]
        assert command("tasks", "pause", "mine", "--by", "me").out == "task mine paused\n"
        assert look("select kind, name, paused_by from jobs.pause") == [("task", "mine", "me")]
        again = command("tasks", "pause", "mine", "--json").document
        assert again == {"task": "mine", "paused": True, "changed": False}
        assert command("tasks", "resume", "mine").out == "task mine resumed\n"
        assert command("tasks", "rearm", "mine").out.startswith("rearmed mine")
        assert command("tasks", "remove", "mine").status == 0
        gone = command("tasks", "remove", "mine")
        assert (gone.status, gone.out) == (1, "task mine is not there\n")

    def test_what_is_refused(self, command: Command, look: Look) -> None:
        for payload, code in (
            ("[]", "JOB_CONFIG_INVALID"),
            ("{", "JOB_CONFIG_INVALID"),
            ('{"n": "x"}', "JOB_INPUT_INVALID"),
        ):
            said = command(
                "tasks", "create", "tasks_of_a_test", "mine", "count", payload, "--every", "60"
            )
            assert (said.status, f"[{code}]" in said.err) == (2, True)
        said = command("tasks", "create", "tasks_of_a_test", "mine", "other", "{}", "--every", "60")
        assert said.status == 2
        said = command("tasks", "change", "mine", "--job", "count")
        assert said.status == 2
        assert look("select 1 from jobs.schedule") == []


class TestFire:
    def test_by_hand(self, command: Command, look: Look) -> None:
        said = command(
            "tasks", "fire", "tasks_of_a_test", "nightly", "--by", "me", "--json",
            "--occurrence", "2026-05-04T02:30+02:00",
        )  # fmt: skip
        assert [one["status"] for one in said.document["jobs"]] == ["created"]
        row = "select idempotency_key, input::text, enqueued_by from jobs.job"
        assert look(row) == [("4", '{"n":4}', "me")]
        again = command(
            "tasks", "fire", "tasks_of_a_test", "nightly",
            "--occurrence", "2026-05-04T02:30+02:00",
        )  # fmt: skip
        assert "existing" in again.out
