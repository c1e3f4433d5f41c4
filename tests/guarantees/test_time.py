"""The clock of the database decides; a process whose own clock is wrong changes nothing."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from psycopg import Connection
from pydantic import BaseModel

import jobs
from jobs.inspect import get_job, list_attempts, list_jobs
from jobs_sql._registry import STATEMENTS

Conn = Connection[Any]

MINUTES = timedelta(minutes=10)


class Input(BaseModel):
    fail: bool = False


@jobs.job(
    tenant=jobs.NO_TENANT,
    idempotency_key=jobs.NO_KEY,
    retry=jobs.Retry(delay=timedelta(minutes=1), jitter=False),
)
async def work(input: Input) -> None:
    if input.fail:
        raise RuntimeError("on purpose")


registry = jobs.Registry.of(sys.modules[__name__])


@pytest.fixture(params=[MINUTES, -MINUTES], ids=["ahead", "behind"])
def wrong_clock(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> timedelta:
    """A process clock that is ten minutes off. Its monotonic clock only counts on."""
    off: timedelta = request.param
    true_ns: Callable[[], int] = time.time_ns
    nanoseconds = int(off.total_seconds()) * 10**9
    monkeypatch.setattr(time, "time_ns", lambda: true_ns() + nanoseconds)
    monkeypatch.setattr(time, "time", lambda: (true_ns() + nanoseconds) / 10**9)
    return off


def test_no_time_of_a_process_is_sent_but_the_start_times_of_callers() -> None:
    sent = {
        (statement.name, parameter.name)
        for statement in STATEMENTS.values()
        for parameter in statement.params
        if "timestamp" in parameter.sql_type or parameter.sql_type.startswith(("date", "time"))
    }
    callers_say = {
        ("EnqueueJob", "run_at"),
        ("EnqueueJobs", "run_ats"),
        ("PublishJobs", "run_ats"),
        ("RequeueJobs", "run_at"),
        ("StageJobs", "run_ats"),
        # Of a declaration, or of whoever makes a schedule.
        ("ArmSchedules", "anchors"),
        ("ChangeSchedule", "anchor"),
        ("CreateSchedule", "anchor"),
    }
    # Computed from a time that the database has told before, or that very time.
    of_the_database = {
        ("FireSchedule", "watermark"),
        ("MarkSchedule", "watermark"),
        ("FireSchedule", "next_watermark"),
        ("FireSchedule", "occurrence"),
        ("FireSchedule", "catch_up_until"),
        ("FireSchedule", "run_ats"),
        ("ListOutbox", "after_at"),
        ("ChooseJobs", "floor_ats"),
        ("ClaimJobs", "floor_ats"),
    }
    assert sent == callers_say | of_the_database


async def test_due_times_leases_and_retries_are_the_databases(
    database: str, conn: Conn, wrong_clock: timedelta
) -> None:
    now, later, failing = (
        work.enqueue(conn, Input()).id,
        work.enqueue(conn, Input(), delay=timedelta(minutes=5)).id,
        work.enqueue(conn, Input(fail=True)).id,
    )
    stats = await jobs.Worker(database, registry).run_until_idle()
    assert abs(wrong_clock) == MINUTES
    assert (stats.claimed, stats.completed, stats.retried) == (2, 1, 1)
    assert get_job(conn, now).state == "completed"

    waiting = get_job(conn, later)
    assert waiting.state == "delayed"
    assert waiting.available_at is not None
    assert timedelta(minutes=4) < waiting.available_at - waiting.created_at < timedelta(minutes=6)

    (attempt,) = list_attempts(conn, failing)
    again = get_job(conn, failing)
    assert again.state == "delayed"
    assert again.available_at is not None
    assert again.available_at - attempt.failed_at < timedelta(minutes=2)

    (row,) = conn.execute("select clock_timestamp()").fetchall()
    for record in list_jobs(conn).jobs:
        assert abs(row[0] - record.created_at) < timedelta(minutes=5)
