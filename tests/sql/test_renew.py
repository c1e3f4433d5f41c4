"""RenewLeases: three answers, the fence, heap-only updates, and no waiting behind a held row."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from psycopg import Connection

from tests.sql import tables
from tests.sql.calls import (
    HOUR,
    MINUTE,
    NOTHING,
    Settle,
    claim,
    claim_one,
    made,
    new_id,
    renew,
    retry,
    running,
    settle,
)
from tests.sql.gate import Gate
from tests.support.stepped import Session

pytestmark = pytest.mark.majors

Conn = Connection[Any]
Sessions = Callable[..., Session]


class TestAnswers:
    def test_a_held_lease_is_extended_and_nothing_else_changes(self, conn: Conn) -> None:
        held = running(conn)
        before = tables.job(conn, held[0])
        assert renew(conn, [held], lease=HOUR) == ["renewed"]
        after = tables.job(conn, held[0])
        changed = {key for key in after if after[key] != before[key]}
        assert changed - {"xmax"} == {"xmin", "ctid", "lease_expires_at"}
        assert after["lease_expires_at"] - before["lease_expires_at"] > HOUR - 2 * MINUTE

    def test_each_pair_gets_its_own_answer(self, conn: Conn) -> None:
        mine, ended, again, foreign = (running(conn) for _ in range(4))
        settle(conn, ended)
        settle(conn, retry(again, HOUR))
        other = running(conn, worker="w2")
        waiting = (made(conn), 0)
        unknown = (new_id(), 1)
        asked = [mine, ended, again, other, waiting, unknown, foreign]
        assert renew(conn, asked) == ["renewed", *["lost"] * 5, "renewed"]

    def test_nothing_asked_nothing_answered(self, conn: Conn) -> None:
        assert renew(conn, []) == []

    def test_a_lease_that_has_lapsed_unnoticed_can_still_be_renewed(self, conn: Conn) -> None:
        held = running(conn)
        tables.lapse(conn, held[0])
        assert renew(conn, [held]) == ["renewed"]
        assert claim(conn, rescue=True) == []

    def test_a_shorter_lease_is_taken_at_its_word(self, conn: Conn) -> None:
        held = running(conn)
        assert renew(conn, [held], lease=NOTHING) == ["renewed"]
        assert tables.remaining(conn, held[0]) <= NOTHING


class TestFence:
    def test_a_late_renewal_touches_nothing(self, conn: Conn) -> None:
        """O-09 (a): W1 slept past its lease, W2 has the job."""
        held = running(conn, worker="w1")
        tables.lapse(conn, held[0])
        claim_one(conn, worker="w2", rescue=True)
        before = tables.job(conn, held[0])
        assert renew(conn, [held], worker="w1", lease=HOUR) == ["lost"]
        assert tables.job(conn, held[0]) == before

    def test_nor_does_one_of_a_process_of_the_same_name(self, conn: Conn) -> None:
        held = running(conn, worker="web-0")
        tables.lapse(conn, held[0])
        claim_one(conn, worker="web-0", rescue=True)
        before = tables.job(conn, held[0])
        assert renew(conn, [held], worker="web-0", lease=HOUR) == ["lost"]
        assert tables.job(conn, held[0]) == before

    def test_nor_one_with_the_right_token_and_another_name(self, conn: Conn) -> None:
        held = running(conn, worker="w1")
        assert renew(conn, [held], worker="w2") == ["lost"]

    def test_a_process_that_claimed_its_own_lost_job_is_told_both(self, conn: Conn) -> None:
        first = running(conn)
        tables.lapse(conn, first[0])
        row = claim_one(conn, rescue=True)
        assert renew(conn, [first, (row.id, row.claims)]) == ["lost", "renewed"]

    def test_a_token_from_the_future_is_lost(self, conn: Conn) -> None:
        held = running(conn)
        assert renew(conn, [(held[0], held[1] + 1)]) == ["lost"]

    def test_a_job_that_ends_under_its_eyes_is_asked_for_again_and_then_lost(
        self, conn: Conn, gate: Gate, session: Sessions
    ) -> None:
        held, other = running(conn), running(conn)
        late = session("late")
        gate.hold(late)
        late.start(renew, [held, other])
        gate.reached(late)
        settle(conn, held)
        gate.release()
        assert late.result() == ["busy", "renewed"]
        assert renew(conn, [held]) == ["lost"]

    def test_a_job_that_was_rescued_under_its_eyes_keeps_its_new_lease(
        self, conn: Conn, gate: Gate, session: Sessions
    ) -> None:
        held = running(conn)
        tables.lapse(conn, held[0])
        late = session("late")
        gate.hold(late)
        late.start(renew, [held], lease=HOUR)
        gate.reached(late)
        claim_one(conn, worker="w2", rescue=True)
        gate.release()
        assert late.result() == ["busy"]
        kept = tables.job(conn, held[0])
        assert kept["worker"] == "w2"
        assert kept["lease_expires_at"] - kept["claimed_at"] == MINUTE
        assert renew(conn, [held]) == ["lost"]


class TestOthersHoldTheRow:
    def test_an_open_completion_is_busy_and_delays_nobody_else(
        self, conn: Conn, session: Sessions
    ) -> None:
        """O-09 (b)."""
        held = running(conn)
        others = [running(conn) for _ in range(20)]
        body = session("body", autocommit=False)
        assert body.run(settle, held) == [("landed", "completed")]
        renewer = session("renewer")
        assert renewer.run(renew, [held, *others]) == ["busy", *["renewed"] * 20]
        assert tables.job(conn, held[0])["state"] == "running"
        body.run(Connection.commit)
        assert renewer.run(renew, [held]) == ["lost"]

    def test_a_completion_that_is_rolled_back_was_never_lost(
        self, conn: Conn, session: Sessions
    ) -> None:
        held = running(conn)
        body = session("body", autocommit=False)
        body.run(settle, held)
        assert renew(conn, [held]) == ["busy"]
        body.run(Connection.rollback)
        assert renew(conn, [held]) == ["renewed"]

    def test_a_renewal_in_flight_makes_a_settle_ask_again(
        self, conn: Conn, session: Sessions
    ) -> None:
        held, other = running(conn), running(conn)
        renewer = session("renewer", autocommit=False)
        assert renewer.run(renew, [held]) == ["renewed"]
        assert session("settler").run(settle, held, other) == [
            ("again", None),
            ("landed", "completed"),
        ]
        renewer.run(Connection.commit)
        assert settle(conn, held) == [("landed", "completed")]

    def test_it_does_not_lock_what_it_does_not_own(self, conn: Conn, session: Sessions) -> None:
        mine, foreign = running(conn, worker="w1"), running(conn, worker="w2")
        renewer = session("renewer", autocommit=False)
        renewer.run(renew, [mine, foreign])
        assert tables.lockable(conn, [mine[0], foreign[0]]) == {foreign[0]}


@pytest.mark.lone  # what other databases hold open decides when a page is pruned
class TestCost:
    def test_every_renewal_is_heap_only(self, quiet: Conn) -> None:
        held = [running(quiet) for _ in range(50)]
        updates, hot = self.updates(quiet)
        for _ in range(10):
            assert renew(quiet, held) == ["renewed"] * 50
        after, hot_after = self.updates(quiet)
        assert (after - updates, hot_after - hot) == (500, 500)

    def updates(self, conn: Conn) -> tuple[int, int]:
        """Updates of jobs.job so far, and how many of them were heap-only."""
        conn.execute("select pg_stat_force_next_flush()")
        row = conn.execute(
            """
            select n_tup_upd, n_tup_hot_upd from pg_stat_user_tables
            where schemaname = 'jobs' and relname = 'job'
            """
        ).fetchone()
        assert row is not None
        return row[0], row[1]

    def test_a_settle_of_each_kind_follows_a_renewal(self, conn: Conn) -> None:
        outcomes = ["completed", "retry", "dead", "released"]
        held = [running(conn) for _ in outcomes]
        renew(conn, held)
        states = ["completed", "ready", "dead", "ready"]
        assert settle(conn, *map(Settle, held, outcomes)) == [("landed", state) for state in states]
