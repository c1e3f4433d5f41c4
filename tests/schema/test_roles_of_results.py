"""Roles that wait for results and write progress, with the rights of docs/install.md."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from psycopg import Connection

from jobs.migrate import migrate
from jobs_sql.result import read_result
from tests.schema.test_roles import grants
from tests.sql.calls import Settle, running, settle
from tests.sql.test_progress import report

pytestmark = pytest.mark.majors

MakeRole = Callable[[str], str]
Sessions = Callable[..., Connection[Any]]


def test_an_enqueuer_that_waits_for_results(
    owner: Connection[Any], role: MakeRole, session_of: Sessions
) -> None:
    migrate(owner)
    app = role("app")
    held, live = running(owner), running(owner)
    settle(owner, Settle(held, result="[1]"))
    owner.execute(grants("enqueuer", app).encode())
    conn = session_of(user=app)
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        read_result(conn, id=held[0])
    owner.execute(grants("enqueuer that waits for results", app).encode())
    found, waits = read_result(conn, id=held[0]), read_result(conn, id=live[0])
    assert found is not None
    assert waits is not None
    assert (found.result, waits.settled) == ("[1]", False)


def test_a_worker_may_write_progress(
    owner: Connection[Any], role: MakeRole, session_of: Sessions
) -> None:
    migrate(owner)
    app = role("app")
    held = running(owner)
    owner.execute(grants("worker", app).encode())
    assert report(session_of(user=app), [held]) == ["landed"]
