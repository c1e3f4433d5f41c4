"""O-41: what fires after a sleep, by policy and last slot, on a clock that the test sets."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta

import pytest

from jobs.errors import ScheduleInvalid
from jobs.timetable import CatchUp, Timetable, due_now, latest, make

START = datetime(2026, 5, 4, 12, 0, tzinfo=UTC)
TEN = make(every=timedelta(seconds=10))
SECOND = timedelta(seconds=1)


def play(
    table: Timetable, policy: CatchUp, cap: int, watermark: datetime, now: datetime
) -> tuple[list[datetime], datetime]:
    """All that fires at ``now``, and the watermark behind it."""
    fired: list[datetime] = []
    left, until = None, None
    while True:
        due = due_now(table, policy, cap, watermark, now, left=left, until=until)
        if due is None:
            return fired, watermark
        assert due.watermark > watermark  # forward, always
        assert due.watermark >= due.occurrence
        fired.append(due.occurrence)
        watermark, left, until = due.watermark, due.left, due.until


def seconds(fired: list[datetime]) -> list[float]:
    return [(one - START).total_seconds() for one in fired]


class TestNothingMissed:
    @pytest.mark.parametrize("policy", ["skip", "run_once", "run_all"])
    def test_nothing_is_due_before_its_time(self, policy: CatchUp):
        assert play(TEN, policy, 10, START, START + 9.9 * SECOND) == ([], START)

    @pytest.mark.parametrize("policy", ["skip", "run_once", "run_all"])
    def test_one_that_is_due_fires_whatever_the_policy(self, policy: CatchUp):
        fired, watermark = play(TEN, policy, 10, START, START + 19 * SECOND)
        assert seconds(fired) == [10]
        assert watermark == START + 10 * SECOND


class TestAfterEightyMinutes:
    """A schedule of each ten seconds; 480 were missed."""

    NOW = START + timedelta(minutes=80, seconds=3)

    def test_skip_fires_the_true_latest(self):
        fired, watermark = play(TEN, "skip", 10, START, self.NOW)
        assert seconds(fired) == [4800]
        assert watermark == START + 4800 * SECOND

    def test_run_once_fires_the_earliest_and_is_at_now(self):
        fired, watermark = play(TEN, "run_once", 10, START, self.NOW)
        assert seconds(fired) == [10]
        assert watermark == self.NOW

    def test_run_all_fires_the_oldest_up_to_the_cap(self):
        fired, watermark = play(TEN, "run_all", 100, START, self.NOW)
        assert seconds(fired) == [10.0 * n for n in range(1, 101)]
        assert watermark == self.NOW

    def test_run_all_fires_all_where_the_cap_allows(self):
        fired, watermark = play(TEN, "run_all", 480, START, self.NOW)
        assert seconds(fired) == [10.0 * n for n in range(1, 481)]
        assert watermark >= START + 4800 * SECOND

    def test_a_cap_of_one(self):
        fired, watermark = play(TEN, "run_all", 1, START, self.NOW)
        assert (seconds(fired), watermark) == ([10], self.NOW)

    @pytest.mark.parametrize("policy", ["skip", "run_once", "run_all"])
    def test_then_everything_is_as_before(self, policy: CatchUp):
        _, watermark = play(TEN, policy, 10, START, self.NOW)
        fired, _ = play(TEN, policy, 10, watermark, self.NOW + 10 * SECOND)
        assert seconds(fired) == [4810]


class TestACatchUpThatIsInterrupted:
    """Another process goes on from the row: the cap counts over both."""

    def test_the_cap_holds_over_a_change_of_the_leader(self):
        now = START + 1000 * SECOND
        fired = []
        watermark, left, until = START, None, None
        for _ in range(4):
            due = due_now(TEN, "run_all", 10, watermark, now, left=left, until=until)
            assert due is not None
            fired.append(due.occurrence)
            watermark, left, until = due.watermark, due.left, due.until
            now += SECOND
        assert left == 6
        # five minutes pass before the next leader; what was missed in them is another catch-up
        now += 300 * SECOND
        while (
            due := due_now(TEN, "run_all", 10, watermark, now, left=left, until=until)
        ) is not None:
            fired.append(due.occurrence)
            watermark, left, until = due.watermark, due.left, due.until
        assert seconds(fired)[:10] == [10.0 * n for n in range(1, 11)]
        assert seconds(fired)[10:] == [1010.0 + 10 * n for n in range(10)]

    def test_a_session_in_the_zone_of_the_schedule_changes_nothing(self):
        """Two datetimes of one zone are compared by the clock's face, which is the same twice."""
        table = make(cron="*/30 * * * *", tz="America/New_York")
        watermark = datetime(2026, 11, 1, 5, 30, tzinfo=UTC)  # the first 01:30
        now = datetime(2026, 11, 1, 6, 0, tzinfo=UTC)  # the second 01:00
        due = due_now(table, "skip", 10, watermark.astimezone(table.tz), now.astimezone(table.tz))
        assert due is not None
        assert due.occurrence == now
        later = (now + timedelta(hours=2)).astimezone(table.tz)
        due = due_now(table, "run_once", 10, watermark, later)
        assert due is not None
        assert (due.watermark, due.watermark.tzinfo) == (later, UTC)


class TestBisection:
    @pytest.mark.parametrize(
        ("cron", "tz"),
        [
            ("*/7 * * * *", "America/New_York"),
            ("30 2 * * *", "America/New_York"),
            ("0 0 1 * MON", "Pacific/Apia"),
            ("0 12 29 2 *", "UTC"),
        ],
    )
    def test_it_finds_what_a_walk_finds(self, cron: str, tz: str):
        table = make(cron=cron, tz=tz)
        dice = random.Random(5)
        for _ in range(10):
            at = datetime(2011, 1, 1, tzinfo=UTC) + dice.random() * timedelta(days=5000)
            known = table.after(at)
            now = known + dice.random() * timedelta(days=20)
            walked = known
            while (following := table.after(walked)) <= now:
                walked = following
            assert latest(table, known, now) == walked

    def test_it_looks_at_few_of_a_year_of_minutes(self):
        class Counted:
            def __init__(self) -> None:
                self.asked = 0
                self.tz = TEN.tz

            def after(self, instant: datetime) -> datetime:
                self.asked += 1
                return make(cron="* * * * *", tz="Europe/Zurich").after(instant)

            def describe(self) -> dict[str, str | float | None]:
                return {}

        table = Counted()
        found = latest(table, START, START + timedelta(days=365, seconds=59))
        assert found == START + timedelta(days=365)
        assert table.asked < 60


class TestIntervals:
    def test_the_anchor_is_the_epoch(self):
        table = make(every=timedelta(days=7))
        found = table.after(datetime(2026, 5, 4, tzinfo=UTC))
        assert (found - datetime(1970, 1, 1, tzinfo=UTC)) % timedelta(days=7) == timedelta(0)
        assert found == datetime(2026, 5, 7, tzinfo=UTC)

    def test_another_anchor(self):
        anchor = datetime.fromisoformat("2026-05-04T09:30+02:00")
        table = make(every=timedelta(hours=36), anchor=anchor)
        assert table.after(anchor) == anchor + timedelta(hours=36)
        assert table.after(anchor - timedelta(microseconds=1)) == anchor
        assert table.after(anchor - timedelta(hours=100)) == anchor - timedelta(hours=72)

    def test_clocks_that_are_moved_do_not_matter(self):
        table = make(every=timedelta(hours=24), tz="America/New_York")
        at = datetime(2026, 3, 7, 12, tzinfo=UTC)
        assert table.after(at) + timedelta(hours=24) == table.after(table.after(at))

    @pytest.mark.parametrize(
        ("field", "given"),
        [
            ("every", {"every": 5}),
            ("every", {"every": timedelta(0)}),
            ("every", {"every": timedelta(seconds=-5)}),
            ("every", {"every": timedelta(milliseconds=999)}),
            ("every", {"every": timedelta(days=3651)}),
            ("anchor", {"every": SECOND, "anchor": datetime(2026, 5, 4)}),
            ("anchor", {"every": SECOND, "anchor": "2026-05-04"}),
            ("anchor", {"cron": "* * * * *", "tz": "UTC", "anchor": START}),
            ("cron", {"cron": "* * * * *", "tz": "UTC", "every": SECOND}),
            ("cron", {}),
        ],
    )
    def test_refused(self, field: str, given: dict[str, object]):
        with pytest.raises(ScheduleInvalid) as caught:
            make(**given)  # type: ignore[arg-type]
        assert caught.value.field == field
