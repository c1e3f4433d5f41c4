"""Keyed concurrency: who is let out of a line by a promotion, and what a sweep repairs."""

from __future__ import annotations

from typing import Any

import pytest
from psycopg import Connection

from jobs_sql.slot import SweepSlotsRow, sweep_slots
from tests.sql.calls import HOUR, new_id, strict
from tests.sql.keys import NOBODY, ages, ids, keyed, leave_slot, promote, slots, state, states, take

pytestmark = pytest.mark.majors

Conn = Connection[Any]


class TestPromote:
    def block(self, conn: Conn, *wanted: Any) -> None:
        conn.execute(
            "update jobs.job set state = 'blocked', waiting_since = available_at "
            "where id = any(%s)",
            [list(wanted)],
        )

    def test_as_many_as_there_is_room_for(self, conn: Conn) -> None:
        self.block(conn, *ages(conn, 5, limit=3))
        assert promote(conn, "k") == [("promoted", "k", "q")]
        assert states(conn) == {"ready": 3, "blocked": 2}

    def test_those_that_are_ready_have_the_room(self, conn: Conn) -> None:
        self.block(conn, *ages(conn, 5, limit=3))
        keyed(conn, limit=3)
        keyed(conn, limit=3, delay=HOUR)
        promote(conn, "k")
        assert states(conn) == {"ready": 4, "blocked": 3}
        assert promote(conn, "k") == []

    def test_those_that_run_have_it(self, conn: Conn) -> None:
        keyed(conn, limit=3)
        take(conn)
        self.block(conn, *ages(conn, 5, limit=3))
        promote(conn, "k")
        assert states(conn) == {"running": 1, "ready": 2, "blocked": 3}

    def test_only_the_keys_that_were_asked(self, conn: Conn) -> None:
        self.block(conn, *ages(conn, 2), *ages(conn, 2, key="other"))
        assert promote(conn, "other", "other") == [("promoted", "other", "q")]
        assert states(conn) == {"blocked": 2}

    def test_a_raised_and_a_lowered_limit(self, conn: Conn) -> None:
        self.block(conn, *ages(conn, 6, limit=2))
        promote(conn, "k", limits={"n": 1})
        assert states(conn) == {"ready": 1, "blocked": 5}
        promote(conn, "k", limits={"n": 4})
        assert states(conn) == {"ready": 4, "blocked": 2}

    def test_each_queue_of_a_shared_key_has_a_candidate(self, conn: Conn) -> None:
        """One that is paused, or that nobody serves, must not hold up the other."""
        self.block(conn, *ages(conn, 2), *ages(conn, 2, queue="r"), *ages(conn, 2, queue="s"))
        assert promote(conn, "k") == [("promoted", "k", queue) for queue in "qrs"]
        assert states(conn) == {"ready": 3, "blocked": 3}
        conn.execute("insert into jobs.pause (kind, name) values ('queue', 'q')")
        found = take(conn, {"q": 5, "r": 5, "s": 5})
        assert [row.queue for row in found["claimed"]] == ["r"]
        assert promote(conn, "k") == []

    def test_jobs_that_share_a_key_keep_each_to_its_own_limit(self, conn: Conn) -> None:
        wide = ages(conn, 2, limit=3, name="wide")
        narrow = keyed(conn, limit=1, name="narrow")
        self.block(conn, *wide, narrow)
        promote(conn, "k")
        assert [state(conn, one) for one in [*wide, narrow]] == ["ready", "ready", "blocked"]
        assert len(take(conn)["claimed"]) == 2
        assert promote(conn, "k") == []

    def test_a_locked_one_is_passed_by_and_asked_for_again(self, conn: Conn, connect: Any) -> None:
        self.block(conn, only := keyed(conn))
        other = connect(autocommit=False)
        other.execute("select from jobs.job where id = %s for update", [only])
        assert promote(conn, "k") == [("again", "k", "q")]
        other.rollback()
        assert promote(conn, "k") == [("promoted", "k", "q")]

    def test_a_key_without_a_line_is_nothing(self, conn: Conn) -> None:
        keyed(conn)
        assert promote(conn, "k", "unknown") == []
        assert promote(conn) == []


class TestSweep:
    def test_the_claim_says_whether_there_is_anything_to_sweep(self, conn: Conn) -> None:
        assert take(conn, sweep=True) == {}
        ages(conn, 2)
        take(conn, 1)
        assert set(take(conn, 1, sweep=True)) == {"parked", "held"}
        (row,) = take(conn, sweep=True)["blocked"]
        assert (row.id, row.concurrency_key) == (NOBODY, "k")
        assert take(conn) == {}

    def test_it_promotes_what_was_left_waiting(self, conn: Conn) -> None:
        for key in ("a", "b", "c"):
            ages(conn, 2, key=key)
        take(conn)
        conn.execute("delete from jobs.job where state = 'running'")
        conn.execute("delete from jobs.slot")
        assert promote(conn, most=2) == [
            ("cursor", "b", None),
            ("promoted", "a", "q"),
            ("promoted", "b", "q"),
        ]
        assert promote(conn, most=2, after="b") == [("promoted", "c", "q")]
        assert promote(conn, most=2) == []

    def test_it_gives_up_slots_whose_jobs_do_not_run(self, conn: Conn) -> None:
        gone, runs = new_id(), None
        ages(conn, 4, limit=2)
        leave_slot(conn, gone)
        runs = ids(take(conn)["claimed"])
        assert len(runs) == 1
        assert promote(conn, "k") == []
        assert promote(conn, "k", tidy=True) == [("promoted", "k", "q")]
        assert list(slots(conn).values()) == runs

    def test_slots_of_keys_that_nobody_waits_for(self, conn: Conn) -> None:
        keyed(conn, "runs")
        take(conn)
        leave_slot(conn, new_id())
        leave_slot(conn, new_id(), "other")
        rows = strict(SweepSlotsRow, sweep_slots(conn, after=NOBODY, most=2))
        last = [row.cursor for row in rows if row.cursor is not None]
        assert len(last) == 1
        sweep_slots(conn, after=last[0], most=2)
        assert (slots(conn), slots(conn, "other")) == ({}, {})
        assert len(slots(conn, "runs")) == 1
        assert sweep_slots(conn, after=NOBODY, most=2) == []
