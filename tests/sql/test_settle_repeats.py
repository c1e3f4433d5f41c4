"""SettleJobs sent again because the reply was lost, and settles that come too late."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from psycopg import Connection

from tests.sql import tables
from tests.sql.calls import (
    Held,
    Settle,
    claim,
    claim_one,
    dead,
    made,
    retry,
    running,
    settle,
    settle_rows,
)

pytestmark = pytest.mark.majors

Conn = Connection[Any]
Steps = tuple[Callable[[Conn, Held], object], ...]

REPEATED = ("repeated", None)
LOST = ("lost", None)


def completes(conn: Conn, held: Held) -> None:
    settle(conn, held)


def fails(conn: Conn, held: Held) -> None:
    settle(conn, retry(held))


def fails_for_good(conn: Conn, held: Held) -> None:
    settle(conn, dead(held))


def hands_back(conn: Conn, held: Held) -> None:
    settle(conn, Settle(held, "released"))


def claimed_by_another(conn: Conn, _held: Held) -> Held:
    row = claim_one(conn, worker="w2")
    return row.id, row.claims


def completed_by_another(conn: Conn, held: Held) -> None:
    assert settle(conn, claimed_by_another(conn, held), worker="w2") == [("landed", "completed")]


def failed_by_another(conn: Conn, held: Held) -> None:
    assert settle(conn, retry(claimed_by_another(conn, held)), worker="w2") == [("landed", "ready")]


def lapses(conn: Conn, held: Held) -> None:
    tables.lapse(conn, held[0])


def rescued_by_another(conn: Conn, held: Held) -> Held:
    lapses(conn, held)
    row = claim_one(conn, worker="w2", rescue=True)
    return row.id, row.claims


def rescued_and_completed(conn: Conn, held: Held) -> None:
    assert settle(conn, rescued_by_another(conn, held), worker="w2") == [("landed", "completed")]


def rescued_and_failed(conn: Conn, held: Held) -> None:
    assert settle(conn, retry(rescued_by_another(conn, held)), worker="w2") == [("landed", "ready")]


def buried(conn: Conn, held: Held) -> None:
    conn.execute("update jobs.job set max_attempts = attempt where id = %s", [held[0]])
    lapses(conn, held)
    assert [row.verdict for row in claim(conn, worker="w2", rescue=True)] == ["buried"]


def superseded(conn: Conn, held: Held) -> None:
    conn.execute(
        "update jobs.job set idempotency_scope = 'waiting', idempotency_key = 'k' where id = %s",
        [held[0]],
    )
    made(conn, idempotency_scope="waiting", idempotency_key="k", queue="elsewhere")
    lapses(conn, held)
    assert [row.verdict for row in claim(conn, worker="w2", rescue=True)] == ["cancelled"]


def removed(conn: Conn, held: Held) -> None:
    conn.execute("delete from jobs.job where id = %s", [held[0]])


def names(steps: Steps) -> str:
    return "-".join(step.__name__ for step in steps)


LANDED: list[Steps] = [
    (completes,),
    (fails,),
    (fails_for_good,),
    (hands_back,),
    (fails, claimed_by_another),
    (hands_back, claimed_by_another),
    (fails, completed_by_another),
    (hands_back, completed_by_another),
    (fails, failed_by_another),
    (fails, failed_by_another, claimed_by_another),
    (fails, failed_by_another, completed_by_another),
]

TAKEN_AWAY: list[Steps] = [
    (rescued_by_another,),
    (rescued_and_completed,),
    (rescued_and_failed,),
    (rescued_and_failed, claimed_by_another),
    (rescued_and_failed, completed_by_another),
    (buried,),
    (superseded,),
    (removed,),
]


class TestReplyLost:
    """The settle had landed: a success, without a second effect, whatever came after it (O-10)."""

    @pytest.mark.parametrize("outcome", ["completed", "retry", "dead", "released"])
    @pytest.mark.parametrize("steps", LANDED, ids=names)
    def test_it_is_a_repeat(self, conn: Conn, steps: Steps, outcome: str) -> None:
        held = running(conn)
        for step in steps:
            step(conn, held)
        before = tables.everything(conn)
        again = Settle(held, outcome, error_type="ValueError", message="sent again")
        assert settle(conn, again) == [REPEATED]
        assert tables.everything(conn) == before

    def test_it_does_not_touch_the_settle_of_its_neighbours(self, conn: Conn) -> None:
        first, second = running(conn), running(conn)
        settle(conn, first)
        assert settle(conn, first, second) == [REPEATED, ("landed", "completed")]
        assert tables.counters(conn) == {"completed": 2}

    def test_the_holder_of_the_next_claim_is_not_disturbed(self, conn: Conn) -> None:
        held = running(conn)
        fails(conn, held)
        second = claimed_by_another(conn, held)
        assert settle(conn, held) == [REPEATED]
        assert settle(conn, second, worker="w2") == [("landed", "completed")]

    def test_a_next_holder_of_the_same_name_is_not_disturbed_either(self, conn: Conn) -> None:
        held = running(conn, worker="web-0")
        settle(conn, retry(held), worker="web-0")
        row = claim_one(conn, worker="web-0")
        assert settle(conn, held, (row.id, row.claims), worker="web-0") == [
            REPEATED,
            ("landed", "completed"),
        ]

    def test_once_a_later_holder_was_deposed_an_old_repeat_is_not_vouched_for(
        self, conn: Conn
    ) -> None:
        """Only the newest token taken away is on the row: the doubt is resolved to `lost`."""
        held = running(conn)
        fails(conn, held)
        rescued_by_another(conn, claimed_by_another(conn, held))
        assert settle(conn, held) == [LOST]


class TestState:
    """How the job ended with the claim that is asked for, where it did."""

    @pytest.mark.parametrize("dead_letter", [True, False])
    def test_of_one_that_has_ended(self, conn: Conn, dead_letter: bool) -> None:
        ended = [running(conn, max_attempts=1, dead_letter=dead_letter) for _ in range(3)]
        asked = [Settle(ended[0]), dead(ended[1]), retry(ended[2])]
        settle_rows(conn, asked)
        told = {
            asked[row.place - 1].held[0]: (row.verdict, row.state)
            for row in settle_rows(conn, asked)
        }
        end = "dead" if dead_letter else "failed"
        assert told == {
            ended[0][0]: ("repeated", "completed"),
            ended[1][0]: ("repeated", end),
            ended[2][0]: ("repeated", end),
        }

    def test_not_of_one_that_goes_on(self, conn: Conn) -> None:
        held = running(conn)
        settle(conn, retry(held))
        (ready,) = settle_rows(conn, [retry(held)])
        assert (ready.verdict, ready.state) == ("repeated", None)
        claim_one(conn)
        (again,) = settle_rows(conn, [retry(held)])
        assert (again.verdict, again.state) == ("repeated", None)

    def test_nor_of_one_that_ended_with_a_later_claim_or_was_taken_away(self, conn: Conn) -> None:
        held = running(conn)
        settle(conn, retry(held))
        row = claim_one(conn)
        settle(conn, (row.id, row.claims))
        (later,) = settle_rows(conn, [retry(held)])
        assert (later.verdict, later.state) == ("repeated", None)
        other = running(conn, max_attempts=1)
        tables.lapse(conn, other[0])
        claim(conn, rescue=True)
        (lost,) = settle_rows(conn, [Settle(other)])
        assert (lost.verdict, lost.state) == ("lost", None)


class TestTakenAway:
    """The settle had not landed, and comes too late."""

    @pytest.mark.parametrize("outcome", ["completed", "retry", "dead", "released"])
    @pytest.mark.parametrize("steps", TAKEN_AWAY, ids=names)
    def test_it_is_lost_and_changes_nothing(self, conn: Conn, steps: Steps, outcome: str) -> None:
        held = running(conn)
        for step in steps:
            step(conn, held)
        before = tables.everything(conn)
        late = Settle(held, outcome, error_type="ValueError", message="too late")
        assert settle(conn, late) == [LOST]
        assert tables.everything(conn) == before

    def test_a_lapsed_lease_that_nobody_took_is_still_its_own(self, conn: Conn) -> None:
        held = running(conn)
        lapses(conn, held)
        assert settle(conn, held) == [("landed", "completed")]


class TestForeignTokens:
    @pytest.mark.parametrize("step", [None, fails, completes])
    def test_a_token_from_the_future_is_lost(
        self, conn: Conn, step: Callable[[Conn, Held], None] | None
    ) -> None:
        held = running(conn)
        if step:
            step(conn, held)
        before = tables.everything(conn)
        assert settle(conn, (held[0], held[1] + 1)) == [LOST]
        assert tables.everything(conn) == before

    def test_a_token_never_given_is_lost(self, conn: Conn) -> None:
        held = running(conn)
        assert settle(conn, (held[0], 0), (held[0], -1)) == [LOST, LOST]
        completes(conn, held)
        assert settle(conn, (held[0], 0), (held[0], -1)) == [LOST, LOST]

    def test_the_right_token_under_another_name_is_lost(self, conn: Conn) -> None:
        held = running(conn, worker="w1")
        before = tables.everything(conn)
        assert settle(conn, held, worker="w2") == [LOST]
        assert tables.everything(conn) == before
