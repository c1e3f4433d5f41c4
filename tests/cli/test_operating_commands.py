"""`jobs list`, `show`, `stats`, `workers`, `cancel`, `requeue`, `pause`, `resume` as processes."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from psycopg import Connection

from tests.cli.conftest import Said
from tests.sql.calls import HOUR, claim_one, dead, made, running, settle
from tests.sql.keys import keyed, take
from tests.sql.registering import beat

Command = Callable[..., Said]
Look = Callable[..., list[tuple[Any, ...]]]
Conn = Connection[Any]

RECORD = {
    "id", "run_id", "queue", "name", "tenant", "state", "priority", "attempt", "max_attempts",
    "claims", "worker", "available_at", "claimed_at", "lease_expires_at", "cancel_requested_at",
    "cancel_reason", "created_at", "settled_at", "stop_reason", "last_error", "idempotency_scope",
    "idempotency_key", "concurrency_key", "traceparent", "enqueued_by",
    "progress", "progress_message",
}  # fmt: skip

WORKER = {
    "id", "name", "state", "host", "process", "version", "started_at", "beat_at", "expires_at",
    "silent_for_seconds", "queues", "in_flight", "running", "claimed", "completed", "retried",
    "ended", "cancelled", "buried", "released", "lost",
}  # fmt: skip


class TestList:
    def test_a_walk_sees_each_job_once(self, command: Command, conn: Conn) -> None:
        ids = sorted(str(made(conn)) for _ in range(5))
        for options, wanted in (([], ids[::-1]), (["--oldest-first"], ids)):
            seen: list[str] = []
            cursor: list[str] = []
            while True:
                page = command("list", "--json", "--limit", "2", *options, *cursor).document
                assert page.keys() == {"jobs", "next_cursor"}
                seen += [job["id"] for job in page["jobs"]]
                if page["next_cursor"] is None:
                    break
                cursor = ["--cursor", page["next_cursor"]]
            assert seen == wanted

    def test_fields_are_stable_and_times_are_aware(self, command: Command, conn: Conn) -> None:
        made(conn)
        (job,) = command("list", "--json").document["jobs"]
        assert job.keys() == RECORD
        assert datetime.fromisoformat(job["created_at"]).utcoffset() == timedelta(0)

    def test_filters(self, command: Command, conn: Conn) -> None:
        held = running(conn, queue="a", name="m", tenant="t")
        other = made(conn, queue="b", delay=HOUR)
        for options, id in (
            (["--state", "running"], held[0]),
            (["--state", "delayed"], other),
            (["--queue", "a"], held[0]),
            (["--name", "n"], other),
            (["--tenant", "t"], held[0]),
            (["--tenant", ""], other),
        ):
            jobs = command("list", "--json", *options).document["jobs"]
            assert [job["id"] for job in jobs] == [str(id)], options

    def test_a_blocked_one_says_by_which_key(self, command: Command, conn: Conn) -> None:
        keyed(conn, "key:export:acct-7")
        keyed(conn, "key:export:acct-7")
        take(conn)
        assert "blocked by key:export:acct-7" in command("list").out
        (job,) = command("list", "--json", "--state", "blocked").document["jobs"]
        assert job["concurrency_key"] == "key:export:acct-7"
        assert "key:export:acct-7" in command("show", job["id"]).out
        (queue,) = command("stats", "--json").document["queues"]
        assert (queue["blocked"], queue["running"]) == (1, 1)

    def test_a_table_for_people(self, command: Command, conn: Conn) -> None:
        first, second = running(conn, tenant="a\nb\x1b[31m"), made(conn)
        command("cancel", str(first[0]))
        done = command("list", "--limit", "1", "--oldest-first")
        heading, row, more = done.lines
        assert heading.split()[:4] == ["ID", "STATE", "QUEUE", "NAME"]
        assert heading.index("STATE") == row.index("running (cancel requested)")
        assert "a\\nb\\x1b[31m" in row
        assert row.split()[0] == str(first[0])
        assert more == f"more: --cursor {first[0]}"
        assert "-08:00" in row or "-07:00" in row, "times show their offset"
        after = command("list", "--oldest-first", "--cursor", str(first[0]))
        assert after.lines[1].startswith(str(second))
        assert command("list", "--queue", "none").lines == ["no jobs"]

    @pytest.mark.parametrize(
        "options", [["--limit", "0"], ["--limit", "1001"], ["--cursor", "x"], ["--state", "gone"]]
    )
    def test_what_cannot_be(self, command: Command, options: list[str]) -> None:
        done = command("list", *options)
        assert (done.status, done.out) == (2, "")


class TestShow:
    def test_with_its_attempts(self, command: Command, conn: Conn) -> None:
        held = running(conn, max_attempts=1, input='{"a":  1}')
        settle(conn, dead(held, "no\nway"))
        shown = command("show", str(held[0]), "--json").document
        assert shown.keys() == RECORD | {"input", "result", "attempts"}
        assert (shown["state"], shown["input"]) == ("dead", '{"a":  1}')
        (attempt,) = shown["attempts"]
        assert (attempt["claims"], attempt["error_message"]) == (1, "no\nway")
        assert datetime.fromisoformat(attempt["failed_at"]).utcoffset() == timedelta(0)
        text = command("show", str(held[0]), "--tracebacks").out
        assert '{"a":  1}' in text
        assert "TypeError" in text
        assert "no\\nway" in text
        assert "  Traceback ..." in text.splitlines()

    def test_one_that_is_not_there(self, command: Command) -> None:
        done = command("show", str(uuid4()))
        assert (done.status, done.out) == (1, "")
        assert "[JOB_NOT_FOUND]" in done.err


class TestStats:
    def test_queues_outcomes_and_pauses(self, command: Command, conn: Conn) -> None:
        settle(conn, running(conn, name="m"))
        settle(conn, dead(running(conn)))
        made(conn, queue="slow")
        command("pause", "slow", "--by", "me")
        told = command("stats", "--json").document
        assert told.keys() == {"queues", "due", "outcomes", "outcomes_since_seconds", "pauses"}
        by_queue = {one["queue"]: one for one in told["queues"]}
        assert (by_queue["slow"]["ready"], by_queue["slow"]["paused"]) == (1, True)
        assert (by_queue["q"]["dead"], by_queue["q"]["paused"]) == (1, False)
        assert by_queue["slow"]["oldest_ready_seconds"] >= 0
        assert {"name": "m", "outcome": "completed", "amount": 1} in told["outcomes"]
        (pause,) = told["pauses"]
        assert (pause["kind"], pause["name"], pause["paused_by"]) == ("queue", "slow", "me")
        (due,) = told["due"]
        assert (due["queue"], due["priority"]) == ("slow", 0)
        text = command("stats").lines
        assert text[0].split()[:3] == ["QUEUE", "PAUSED", "READY"]
        assert text[2].split()[:3] == ["slow", "yes", "1"]
        assert "paused" in text

    def test_how_long_each_priority_has_waited(self, command: Command, conn: Conn) -> None:
        made(conn, priority=0)
        made(conn, priority=3, run_at=datetime(2020, 1, 1, tzinfo=UTC))
        told = command("stats", "--json").document["due"]
        assert [(one["queue"], one["priority"]) for one in told] == [("q", 0), ("q", 3)]
        assert told[1]["oldest_seconds"] > told[0]["oldest_seconds"] + 1e8
        text = command("stats").lines
        assert "oldest due job of each priority" in text

    def test_nothing_there(self, command: Command) -> None:
        assert command("stats").lines == ["no live or dead jobs"]


class TestWorkers:
    def test_what_each_is_and_runs(self, command: Command, conn: Conn) -> None:
        ids = [uuid4() for _ in range(3)]
        beat(
            conn, name="a\x1b[31m", in_flight=5, queues=["m", "n"], slots=[2, 3],
            running_ids=ids, running_names=["send", "clean", "send"],
        )  # fmt: skip
        beat(conn, name="b", state="draining")
        heading, first, second = command("workers").lines
        assert heading.split()[:4] == ["NAME", "STATE", "PROCESS", "HOST"]
        assert "a\\x1b[31m" in first
        assert "m (2), n (3)" in first
        assert "clean, send x 2, and 2 more" in first
        assert second.split()[:3] == ["b", "draining", "4711"]
        lines = command("workers", "--running").lines
        assert lines[4] == "running"
        assert [line.split()[:2] for line in lines[6:]] == [
            [str(id), name] for id, name in zip(ids, ["send", "clean", "send"], strict=True)
        ]

    def test_as_json(self, command: Command, conn: Conn) -> None:
        job = uuid4()
        id, _ = beat(conn, running_ids=[job], running_names=["send"])
        told = command("workers", "--json").document
        (worker,) = told["workers"]
        assert worker.keys() == WORKER
        assert (worker["id"], worker["queues"]) == (str(id), {"q": 5})
        assert worker["running"] == [{"id": str(job), "name": "send"}]
        assert worker["silent_for_seconds"] >= 0
        assert datetime.fromisoformat(worker["started_at"]).utcoffset() == timedelta(0)

    def test_none(self, command: Command) -> None:
        assert command("workers").lines == ["no workers"]
        assert command("workers", "--json").document == {"workers": []}


class TestCancel:
    def test_each_is_told_and_the_status_says_whether_all_were(
        self, command: Command, conn: Conn
    ) -> None:
        held, waiting, done = running(conn), made(conn, delay=HOUR), running(conn)
        settle(conn, done)
        good = command("cancel", str(held[0]), str(waiting), "--reason", "why", "--json")
        assert good.status == 0
        assert good.document == {
            "jobs": [
                {"id": str(held[0]), "outcome": "requested", "state": "running"},
                {"id": str(waiting), "outcome": "cancelled", "state": "cancelled"},
            ]
        }
        shown = command("show", str(waiting), "--json").document
        assert (shown["stop_reason"], shown["cancel_reason"]) == ("cancel requested", "why")
        bad = command("cancel", str(done[0]), str(uuid4()), str(held[0]), "--json")
        assert bad.status == 1
        outcomes = [one["outcome"] for one in bad.document["jobs"]]
        assert outcomes == ["finished", "unknown", "requested"]
        text = command("cancel", str(done[0]))
        assert text.status == 1
        assert "finished" in text.lines[1]
        assert text.lines[1].endswith("it had ended before")

    def test_a_locked_one_is_asked_for_as_long_as_told(
        self, command: Command, conn: Conn, database: str
    ) -> None:
        id = made(conn)
        with psycopg.connect(database) as other:
            other.execute("select from jobs.job where id = %s for update", [id])
            done = command("cancel", str(id), "--patience", "0.1", "--json")
        assert (done.status, done.document["jobs"][0]["outcome"]) == (1, "busy")

    @pytest.mark.parametrize("arguments", [["x"], [], [str(uuid4()), "--reason", ""]])
    def test_bad_input(self, command: Command, arguments: list[str]) -> None:
        done = command("cancel", *arguments)
        assert (done.status, done.out) == (2, "")


class TestRequeue:
    def test_dead_ones_come_back_and_others_say_why_not(self, command: Command, conn: Conn) -> None:
        gone, done = running(conn, idempotency_key="k"), running(conn)
        settle(conn, dead(gone), done)
        assert command("requeue", str(gone[0]), str(done[0]), "--json").document == {
            "jobs": [
                {"id": str(gone[0]), "outcome": "requeued", "state": "ready", "holder": None},
                {"id": str(done[0]), "outcome": "completed", "state": "completed", "holder": None},
            ]
        }
        row = claim_one(conn)
        assert (row.id, row.attempt, row.claims) == (gone[0], 1, 2)
        settle(conn, dead((row.id, row.claims)))
        holder = made(conn, idempotency_key="k")
        refused = command("requeue", str(gone[0]))
        assert refused.status == 1
        assert refused.lines[1].endswith(f"a live job has its idempotency key: {holder}")
        late = command("requeue", "--completed", "--at", "2126-01-01T00:00Z", str(done[0]))
        assert late.status == 0
        shown = command("show", str(done[0]), "--json").document
        assert shown["available_at"] == "2126-01-01T00:00:00+00:00"

    def test_a_naive_time_is_refused(self, command: Command, conn: Conn) -> None:
        gone = running(conn)
        settle(conn, dead(gone))
        done = command("requeue", str(gone[0]), "--at", "2026-11-01 01:30")
        assert (done.status, done.out) == (2, "")
        assert "has no offset" in done.err


class TestPause:
    def test_and_resume(self, command: Command, look: Look) -> None:
        first = command("pause", "q", "--json", "--by", "me")
        assert first.document == {"queue": "q", "paused": True, "changed": True}
        assert command("pause", "q").out == "queue q was paused already\n"
        assert look("select kind, name, paused_by from jobs.pause") == [("queue", "q", "me")]
        assert command("resume", "q").out == "queue q resumed\n"
        again = command("resume", "q", "--json")
        assert (again.status, again.document["changed"]) == (0, False)

    def test_it_says_who_if_nobody_does(self, command: Command, look: Look) -> None:
        command("pause", "q", LOGNAME="jane")
        assert look("select paused_by from jobs.pause") == [("jane",)]

    def test_a_name_that_no_queue_has(self, command: Command) -> None:
        done = command("pause", "")
        assert (done.status, done.out) == (2, "")
        assert "[JOB_CONTROL_INVALID]" in done.err


def test_a_role_without_rights_is_told_which_page_helps(
    command: Command, conn: Conn, look: Look
) -> None:
    id = made(conn)
    look("create role sql_jobs_nobody login")
    try:
        done = command("cancel", str(id), PGUSER="sql_jobs_nobody", PGOPTIONS="-c role=pg_monitor")
    finally:
        look("drop role sql_jobs_nobody")
    assert done.status == 1
    assert "docs/install.md" in done.err
