"""Turns of the lower priorities, without a database: what is asked for, and what is learnt."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from uuid import UUID

from jobs.worker.turns import LOOK_EVERY, ONE_IN, Turns
from jobs_sql.claim import ClaimJobsRow

NOW = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)


def row(priority: int) -> ClaimJobsRow:
    """A claimed job."""
    empty = dict.fromkeys(ClaimJobsRow._fields)
    known = {"verdict": "claimed", "id": UUID(int=0), "queue": "q", "priority": priority}
    return ClaimJobsRow(**(empty | known | {"available_epoch": NOW.timestamp()}))  # type: ignore[arg-type]


class Backlog:
    """A queue in which jobs of some priorities wait for ever, served by claims of one worker."""

    def __init__(self, waiting: dict[int, int]) -> None:
        self.waiting = dict(waiting)
        self.turns = Turns()
        self.now = 0.0
        self.taken: Counter[int] = Counter()
        self.looks = 0

    def claim(self, room: int) -> Counter[int]:
        turn = self.turns.turn("q", room, self.now)
        self.looks += turn is not None
        order, most = turn or ((0, 1, 2, 3), (room,) * 4)
        assert sorted(order) == [0, 1, 2, 3]
        rows: list[ClaimJobsRow] = []
        for priority, limit in zip(order, most, strict=True):
            count = min(limit, room - len(rows), self.waiting.get(priority, 0))
            rows += [row(priority)] * count
            self.waiting[priority] = self.waiting.get(priority, 0) - count
        self.turns.learn("q", room, rows, self.now)
        self.now += 0.01
        got = Counter(one.priority for one in rows)
        self.taken += got
        return got


PLENTY = 10**9


def test_the_order_is_strict_as_long_as_all_are_served() -> None:
    queue = Backlog({0: 3, 3: 5})
    for _ in range(5):
        queue.claim(10)
    assert queue.taken == {0: 3, 3: 5}
    assert queue.looks == 0


def test_one_in_ten_is_of_the_lower_ones() -> None:
    for room in (1, 5, 100):
        queue = Backlog({0: PLENTY, 2: PLENTY})
        while queue.taken.total() < 10_000:
            queue.claim(room)
        share = queue.taken[2] / queue.taken.total()
        assert 0.9 / ONE_IN < share < 1.1 / ONE_IN, room


def test_the_lower_ones_take_turns() -> None:
    queue = Backlog({0: PLENTY, 1: PLENTY, 2: PLENTY, 3: PLENTY})
    for _ in range(30_000):
        queue.claim(1)
    total = queue.taken.total()
    assert abs(queue.taken[0] / total - (1 - 1 / ONE_IN)) < 0.02
    for lower in (1, 2, 3):
        assert abs(queue.taken[lower] / total - 1 / ONE_IN / 3) < 0.01


def test_whatever_fills_the_slots_is_the_high_one() -> None:
    queue = Backlog({1: PLENTY, 3: PLENTY})
    for _ in range(1_000):
        queue.claim(5)
    assert 0.08 < queue.taken[3] / queue.taken.total() < 0.12


def test_never_more_than_half_of_a_claim() -> None:
    queue = Backlog({0: PLENTY})
    for _ in range(50):
        queue.claim(10)
    queue.waiting[3] = PLENTY
    for _ in range(200):
        assert queue.claim(10)[3] <= 5


def test_who_uses_one_priority_pays_one_look_a_second() -> None:
    queue = Backlog({0: PLENTY})
    for _ in range(1_000):  # ten seconds
        queue.claim(20)
    assert 9 <= queue.looks <= 11
    assert LOOK_EVERY == 1.0


def test_a_lower_one_that_begins_to_wait_is_seen_within_a_second() -> None:
    queue = Backlog({0: PLENTY})
    for _ in range(500):
        queue.claim(5)
    queue.waiting[3] = 1
    since = queue.now
    while not queue.taken[3]:
        queue.claim(5)
    assert queue.now - since <= LOOK_EVERY + 0.05


def test_the_lowest_alone_has_nobody_below() -> None:
    queue = Backlog({3: PLENTY})
    for _ in range(500):
        queue.claim(5)
    assert queue.looks == 0


def test_a_high_one_that_comes_back_goes_first() -> None:
    queue = Backlog({1: PLENTY, 2: PLENTY})
    for _ in range(100):
        queue.claim(5)
    queue.waiting[0] = 3
    before = queue.taken[0]
    queue.claim(5)
    queue.claim(5)
    assert queue.taken[0] - before == 3


def test_queues_are_apart() -> None:
    turns = Turns()
    for _ in range(50):
        turns.learn("full", 10, [row(0)] * 10, 0.0)
    assert turns.turn("full", 10, 0.0) is not None
    assert turns.turn("other", 10, 0.0) is None
