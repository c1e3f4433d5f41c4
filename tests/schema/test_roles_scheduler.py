"""A scheduler, and who makes schedules, with the rights of docs/install.md and no others."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import psycopg
import pytest
from psycopg import Connection

from jobs.control import (
    change_schedule,
    create_schedule,
    pause_task,
    rearm_schedule,
    remove_schedule,
    resume_task,
    schedules,
)
from jobs.migrate import migrate
from jobs_sql.session import read_session
from tests.runtime.ticking import Input, work
from tests.schema.test_roles import MakeRole, Sessions, grants
from tests.sql import scheduling

pytestmark = pytest.mark.majors


@pytest.fixture
def app(role: MakeRole) -> str:
    """A role that may do nothing yet."""
    return role("app")


@pytest.fixture
def conn(owner: Connection[Any], app: str, session_of: Sessions) -> Connection[Any]:
    """A session of that role, on an installed schema."""
    migrate(owner)
    return session_of(user=app)


def test_a_scheduler(owner: Connection[Any], app: str, conn: Connection[Any]) -> None:
    owner.execute(grants("scheduler", app).encode())
    assert read_session(conn) is not None
    scheduling.arm(conn)
    scheduling.arm(conn, cron="0 4 * * *")
    assert scheduling.tick(conn).leads
    scheduling.set_back(owner)
    answer = scheduling.fire(conn, count=2)
    assert (answer.verdict, answer.job_count) == ("fired", 2)
    assert scheduling.mark(conn, "nightly", 2) == 1
    assert scheduling.resign(conn) == 1
    for forbidden in (
        "select input from jobs.job",
        "update jobs.job set attempt = 0",
        "delete from jobs.job",
        "delete from jobs.schedule",
        "delete from jobs.pause",
    ):
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            conn.execute(forbidden.encode())


def test_who_makes_schedules(
    owner: Connection[Any],
    app: str,
    conn: Connection[Any],
) -> None:
    owner.execute(grants("planner", app).encode())
    create_schedule(conn, "made", work, Input(), every=timedelta(minutes=1))
    assert change_schedule(conn, "made", catch_up="run_all").revision == 2
    assert rearm_schedule(conn, "made").revision == 3
    assert pause_task(conn, "made")
    assert [one.paused for one in schedules(conn)] == [True]
    assert resume_task(conn, "made")
    assert remove_schedule(conn, "made")
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        conn.execute("select 1 from jobs.job")
