"""What operators' verbs tell workers: a requeue what an enqueue does, a cancel who is to stop."""

from __future__ import annotations

from typing import Any

import pytest
from psycopg import Connection

from jobs_sql.wake import listen_wake
from tests.conftest import Connect
from tests.sql.calls import HOUR, claim, claim_ids, dead, made, running, settle
from tests.sql.operating import cancel, requeue, verdicts
from tests.sql.tables import lapse
from tests.sql.test_wake import heard, put_wake, wakes

pytestmark = pytest.mark.majors

Conn = Connection[Any]


@pytest.fixture
def ear(connect: Connect) -> Conn:
    """A session that listens."""
    conn = connect()
    listen_wake(conn)
    return conn


def ended(conn: Conn, **columns: Any) -> Any:
    """The id of a job that has ended as dead."""
    held = running(conn, max_attempts=1, **columns)
    settle(conn, dead(held))
    return held[0]


@pytest.fixture
def finished(conn: Conn, ear: Conn) -> list[Any]:
    """Ids of three dead jobs in two queues; nothing was woken lately, nothing is unheard."""
    ids = [ended(conn, queue=queue) for queue in ("q", "q", "r")]
    conn.execute("delete from jobs.wake")
    heard(ear)
    return ids


class TestRequeue:
    def test_wakes_each_queue_once(self, conn: Conn, ear: Conn, finished: list[Any]) -> None:
        assert verdicts(requeue(conn, *finished)) == ["requeued"] * 3
        assert sorted(heard(ear)) == ["q", "r"]
        assert wakes(conn) == 2
        assert claim_ids(conn, {"q": 5, "r": 5}) == set(finished)

    def test_not_for_later(self, conn: Conn, ear: Conn, finished: list[Any]) -> None:
        requeue(conn, *finished, delay=HOUR)
        assert heard(ear) == []

    def test_not_for_what_it_refuses(self, conn: Conn, ear: Conn) -> None:
        live = made(conn, delay=HOUR)
        assert verdicts(requeue(conn, live)) == ["live"]
        assert heard(ear) == []

    def test_not_where_the_queue_was_woken_just_now(
        self, conn: Conn, ear: Conn, finished: list[Any]
    ) -> None:
        with conn.transaction():  # one moment for both: the row is young whatever the machine does
            put_wake(conn, "0")
            requeue(conn, *finished)
        assert heard(ear) in (["r"], ["q", "r"])
        row = conn.execute(
            "select count(*), max(at) - min(at) > interval '50 ms' from jobs.wake where queue = 'q'"
        ).fetchone()
        assert row is not None
        assert row[0] == 1 or row[1], "suppressed, or the machine stood still for so long"

    def test_not_where_the_setting_is_off(
        self, connect: Connect, ear: Conn, finished: list[Any]
    ) -> None:
        conn = connect(options="-c jobs.wake=off")
        assert verdicts(requeue(conn, *finished)) == ["requeued"] * 3
        assert heard(ear) == []

    def test_not_if_it_is_rolled_back(
        self, connect: Connect, ear: Conn, finished: list[Any]
    ) -> None:
        conn = connect(autocommit=False)
        requeue(conn, *finished)
        conn.rollback()
        assert heard(ear) == []


class TestCancel:
    def test_of_running_jobs_tells_each_worker_once(self, conn: Conn, ear: Conn) -> None:
        for _ in range(4):
            made(conn)
        first = claim(conn, 3, worker="one")
        second = claim(conn, 1, worker="the other")
        heard(ear)
        told = cancel(conn, *[row.id for row in [*first, *second]])
        assert verdicts(told) == ["requested"] * 4
        assert sorted(heard(ear)) == ["cancel one", "cancel the other"]

    def test_asking_again_tells_nobody(self, conn: Conn, ear: Conn) -> None:
        held = running(conn)
        heard(ear)
        cancel(conn, held[0])
        cancel(conn, held[0])
        assert heard(ear) == ["cancel w1"]

    def test_of_those_that_nobody_runs_tells_nobody(self, conn: Conn, ear: Conn) -> None:
        lapsed = running(conn)
        lapse(conn, lapsed[0])
        waiting = made(conn)
        heard(ear)
        assert verdicts(cancel(conn, lapsed[0], waiting)) == ["cancelled"] * 2
        assert heard(ear) == []

    def test_the_longest_name_there_is(self, conn: Conn, ear: Conn) -> None:
        name = "\U0001f600" * 63
        made(conn)
        (row,) = claim(conn, 1, worker=name)
        heard(ear)
        assert verdicts(cancel(conn, row.id)) == ["requested"]
        assert heard(ear) == [f"cancel {name}"]

    def test_not_where_the_setting_is_off(self, connect: Connect, conn: Conn, ear: Conn) -> None:
        held = running(conn)
        heard(ear)
        quiet = connect(options="-c jobs.wake=off")
        assert verdicts(cancel(quiet, held[0])) == ["requested"]
        assert heard(ear) == []
