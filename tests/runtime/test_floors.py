"""Seek floors, without a database: where a claim begins, and when it goes further back."""

from __future__ import annotations

import datetime as dt
import math
from uuid import UUID

import pytest

from jobs.worker.floors import EVERY, MARGIN, NEAR, SHARE, START, Floors, Mark, Reach
from jobs.worker.turns import STRICT
from jobs_sql.claim import ClaimJobsRow
from tests.runtime.test_turns import NOW, row

SECOND = dt.timedelta(seconds=1)


def job(at: float, id: int = 1, priority: int = 0) -> ClaimJobsRow:
    """A claimed job that was due so many seconds after the beginning."""
    return row(priority)._replace(available_epoch=NOW.timestamp() + at, id=UUID(int=id))


class Clock:
    """Claims of one queue, each of which takes as long as it is told to."""

    def __init__(self) -> None:
        self.floors = Floors()
        self.now = 100.0
        self.reaches: list[Reach] = []

    def claim(self, *rows: ClaimJobsRow, asked: int | None = None, takes: float = 0.0) -> Mark:
        """Answer the next claim; where it began to look in priority 0."""
        reaches = self.floors.reach(["q"], self.now)
        self.reaches.append(reaches["q"])
        marks = self.floors.floors(reaches, [STRICT])
        began, self.now = self.now, self.now + takes
        asked = len(rows) if asked is None else asked
        self.floors.learn(reaches, {"q": asked}, {"q": rows}, began, self.now)
        return START if marks is None else marks[0]


def test_the_first_claim_sees_everything() -> None:
    assert Clock().claim(asked=5) == START


def test_a_backlog_is_gone_on_with_where_the_last_claim_ended() -> None:
    clock = Clock()
    clock.claim(job(1, 7), job(2, 8), job(2, 9))
    clock.now += 0.01
    assert clock.claim(job(3, 4)) == Mark(NOW + 2 * SECOND, UUID(int=9))
    clock.now += 0.01
    assert clock.claim(job(4)) == Mark(NOW + 3 * SECOND, UUID(int=4))
    assert clock.reaches == ["whole", "floor", "floor"]


@pytest.mark.parametrize("epoch", [-math.inf, -1e12, 1e12])
def test_times_that_python_has_no_date_for_are_the_beginning(epoch: float) -> None:
    """An operator may have made a job due at '-infinity'."""
    clock = Clock()
    clock.claim(job(0)._replace(available_epoch=epoch))
    clock.now += 0.01
    assert clock.claim(job(1)).at == START.at


def test_priorities_have_floors_of_their_own_in_the_order_asked() -> None:
    floors = Floors()
    reaches = floors.reach(["q"], 0.0)
    rows = [job(1, 1, 0), job(5, 2, 3)]
    floors.learn(reaches, {"q": 2}, {"q": rows}, 0.0, 0.0)
    marks = floors.floors(floors.reach(["q"], 0.01), [(3, 1, 2, 0)])
    assert marks == [
        Mark(NOW + 5 * SECOND, UUID(int=2)), START, START, Mark(NOW + SECOND, UUID(int=1)),
    ]  # fmt: skip


def test_a_backlog_is_swept_twice_a_second() -> None:
    clock = Clock()
    for n in range(1_000):  # ten seconds
        clock.claim(job(n))
        clock.now += 0.01
    assert 18 <= clock.reaches.count("whole") <= 21
    assert EVERY == 0.5


def test_a_sweep_that_takes_long_is_rare() -> None:
    """A twentieth of the time at most goes into them, and near ones are made in between."""
    clock, spent = Clock(), 0.0
    for n in range(6_000):
        whole = clock.floors.reach(["q"], clock.now)["q"] == "whole"
        takes = 0.2 if whole else 0.001
        spent += takes - 0.001
        clock.claim(job(n), takes=takes)
        clock.now += 0.01
    assert spent / (clock.now - 100) < SHARE * 1.1
    assert clock.reaches.count("near") > clock.reaches.count("whole") > 10


def test_a_queue_without_a_backlog_is_swept_all_the_time() -> None:
    clock = Clock()
    for n in range(100):
        clock.claim(job(n), asked=5, takes=0.001)
        clock.now += 0.01
    assert clock.reaches.count("whole") > 90


def test_between_two_sweeps_it_looks_a_little_further_back_than_the_floor() -> None:
    """Commits overtake each other, which must not cost half a second where nothing is late."""
    clock = Clock()
    clock.claim(job(50, 3), asked=5, takes=0.5)  # so expensive that no sweep is due for a while
    assert clock.claim(asked=5) == Mark(NOW + 50 * SECOND - MARGIN, START.id)
    assert clock.reaches == ["whole", "floor"]


def test_a_near_sweep_goes_ten_seconds_back() -> None:
    clock = Clock()
    clock.claim(job(1))
    clock.now += 0.1
    clock.claim(job(2), takes=0.001)
    clock.now += 1
    clock.claim(job(50), takes=2)  # a sweep of everything, too expensive to be repeated soon
    for _ in range(500):
        clock.claim(job(60), takes=0.001)
        clock.now += 0.1
        if clock.reaches[-1] == "near":
            break
    assert clock.reaches[-1] == "near"
    marks = clock.floors.floors({"q": "near"}, [STRICT])
    assert marks is not None
    assert marks[0] == Mark(NOW + 60 * SECOND - NEAR, START.id)


def test_a_full_sweep_that_was_filled_from_behind_goes_on_there() -> None:
    """A bulk of jobs that were due long ago: all of it is found, not a claim of it each sweep."""
    clock = Clock()
    clock.claim(job(1000))
    clock.now += EVERY
    assert clock.claim(job(1), job(2)) == START
    clock.now += 0.01
    assert clock.claim(job(3)) == Mark(NOW + 2 * SECOND, UUID(int=1))


def test_what_was_asked_for_is_forced() -> None:
    clock = Clock()
    clock.claim(job(1))
    clock.floors.force()
    assert clock.claim(job(2)) == START
    assert clock.reaches == ["whole", "whole"]
    clock.claim(job(3))
    assert clock.reaches[-1] == "floor"


def test_one_priority_that_was_not_reached_keeps_its_floor() -> None:
    clock = Clock()
    clock.claim(job(9, 9, priority=1), job(1))
    clock.claim(job(2))
    marks = clock.floors.floors({"q": "floor"}, [STRICT])
    assert marks is not None
    assert marks[1] == Mark(NOW + 9 * SECOND, UUID(int=9))


def test_the_beginning_of_time_is_no_trouble() -> None:
    clock = Clock()
    first = dt.datetime(1, 1, 2, tzinfo=dt.UTC)
    clock.claim(job(1)._replace(available_epoch=first.timestamp()), takes=5)
    clock.now += 0.6
    clock.claim(job(1)._replace(available_epoch=first.timestamp()), asked=5)
    assert clock.claim(asked=3) in (START, *(Mark(first - b, START.id) for b in (MARGIN, NEAR)))


def test_a_job_that_was_left_ready_is_not_passed_over() -> None:
    """Its slot went to another claim in that moment: the next claim must see it."""
    floors = Floors()
    reaches = floors.reach(["q"], 0.0)
    floors.learn(reaches, {"q": 1}, {"q": [job(1)]}, 0.0, 0.0)
    reaches = floors.reach(["q"], 0.01)
    floors.learn(reaches, {"q": 1}, {"q": [job(5)]}, 0.01, 0.01, {"q"})
    marks = floors.floors(floors.reach(["q"], 0.02), [STRICT])
    assert marks is not None
    assert marks[0] == Mark(NOW + SECOND, UUID(int=1))
