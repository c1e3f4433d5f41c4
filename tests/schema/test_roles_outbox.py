"""Roles with the rights that docs/install.md lists for the outbox, and no others."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from psycopg import Connection

from jobs.migrate import check, migrate
from jobs.outbox import discard, outbox_stats, retry
from jobs_sql.outbox import note_outbox_failure, prune_outbox, release_outbox
from jobs_sql.wake import prune_wakes
from tests.schema.test_roles import HOUR, MakeRole, Sessions, grants
from tests.sql.calls import new_id, undo
from tests.sql.staging import claim, mark, publish, stage, take

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


def test_a_stager(owner: Connection[Any], app: str, conn: Connection[Any]) -> None:
    owner.execute(grants("stager", app).encode())
    stage(conn)
    for forbidden in (
        "select input from jobs.outbox",
        "update jobs.outbox set priority = 1",
        "delete from jobs.outbox",
        "select * from jobs.relay",
    ):
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            conn.execute(forbidden.encode())


def test_a_relay(owner: Connection[Any], app: str, conn: Connection[Any]) -> None:
    for title in ("enqueuer", "enqueuer with ids of its own", "relay"):
        owner.execute(grants(title, app).encode())
    check(conn)
    rows = [stage(owner), stage(owner)]
    token = take(conn)
    with conn.transaction():
        publish(conn, claim(conn, token))
        undo(conn, rows[0], new_id())
        assert mark(conn, token, rows[:1]) == (True, 1)
    note = {"id": rows[1], "error": "e", "refused": True, "park": True, "delay": HOUR}
    assert note_outbox_failure(conn, token=token, **note) == (True, True)
    prune_outbox(conn, keep=HOUR, most=10)
    owner.execute("insert into jobs.wake (queue, at) values ('', '2000-01-01')")
    assert prune_wakes(conn, most=10) == 1
    assert release_outbox(conn, token=token) == 1
    assert outbox_stats(conn).parked == 1
    assert retry(conn, rows)
    assert discard(conn, rows) == []
    for forbidden in ("truncate jobs.outbox", "delete from jobs.relay"):
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            conn.execute(forbidden.encode())
