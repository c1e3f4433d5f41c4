"""The laws of occurrences in every zone of the time zone database, against a walk minute by minute.

``next(t) > t``, the time of an occurrence is one that the clocks of the zone show, none is repeated
and none left out, and the search is bounded.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from functools import cache
from zoneinfo import ZoneInfo, available_timezones

import pytest

from jobs.errors import ScheduleInvalid
from jobs.timetable import Cron, CronTable, make, parse, zone

MINUTE = timedelta(minutes=1)
DAY = timedelta(days=1)
BEGIN, END = datetime(1970, 1, 2, tzinfo=UTC), datetime(2040, 1, 1, tzinfo=UTC)

DENSE = [
    "0 * * * *",
    "*/30 * * * *",
    "15,45 */2 * * *",
    "7 */5 * * *",
    "30 1 * * *",
    "30 2 * * *",
    "0 0 * * *",
    "45 23 * * *",
    "*/15 0-4 * * *",
    "0,59 0,1,2,3,23 * * *",
    "20 1-5/2 * * *",
]
SPARSE = [
    "0 0 29 2 *",
    "59 23 31 12 *",
    "30 2 * 3,10 SUN",
    "0 0 1 1 *",
    "15 1 13 * FRI",
    "* * 30 * *",
    "0 0 29 2 */6",
    "0 12 31 * *",
]


def names() -> list[str]:
    """Every zone that may be named."""
    found = []
    for name in sorted(available_timezones()):
        try:
            zone(name)
        except ScheduleInvalid:
            continue
        found.append(name)
    assert len(found) > 400
    return found


@cache
def shifts(name: str) -> list[datetime]:
    """The instants since 1970 at which the clocks of a zone were, or will be, moved."""
    tz, found, at = ZoneInfo(name), [], BEGIN
    while at < END:
        following = at + 20 * DAY
        if at.astimezone(tz).utcoffset() != following.astimezone(tz).utcoffset():
            low, high = at, following
            while high - low > timedelta(seconds=1):
                middle = low + (high - low) // 2
                if middle.astimezone(tz).utcoffset() == at.astimezone(tz).utcoffset():
                    low = middle
                else:
                    high = middle
            found.append(high.replace(microsecond=0))
        at = following
    return found


def shown(instant: datetime, tz: ZoneInfo) -> datetime:
    """What the clocks show."""
    return instant.astimezone(tz).replace(tzinfo=None, fold=0)


def matches_day(cron: Cron, day: date) -> bool:
    if day.month not in cron.months:
        return False
    in_month, in_week = day.day in cron.days, day.isoweekday() % 7 in cron.weekdays
    return in_month or in_week if cron.either else in_month and in_week


def matches(cron: Cron, wall: datetime) -> bool:
    return (
        wall.minute in cron.minutes and wall.hour in cron.hours and matches_day(cron, wall.date())
    )


def walked(cron: Cron, tz: ZoneInfo, start: datetime, end: datetime) -> Iterator[datetime]:
    """Occurrences after start, until end, by the rules as they are written: minute by minute."""
    at = start - 2 * DAY
    wall = furthest = shown(at, tz)
    meant: set[datetime] = set()
    while at < end:
        at += MINUTE
        before, wall = wall, shown(at, tz)
        skipped = before + MINUTE
        while skipped < wall:
            if matches(cron, skipped):
                meant.add(at + (skipped - before - MINUTE) if cron.elapsed else at)
            skipped += MINUTE
        if matches(cron, wall) and (cron.elapsed or wall > furthest):
            meant.add(at)
        furthest = max(furthest, wall)
    return iter(sorted(one for one in meant if start < one <= end))


def compare(name: str, expression: str, middle: datetime) -> None:
    table = make(cron=expression, tz=name)
    assert isinstance(table, CronTable)
    start = middle.replace(second=0) - timedelta(hours=30)
    end = start + timedelta(hours=60)
    expected = list(walked(table.cron, table.tz, start, end))
    found, at = [], start
    while (at := table.after(at)) <= end:
        found.append(at)
    assert found == expected, f"{expression} in {name} around {middle}"


def whole_minutes(name: str, at: datetime) -> bool:
    around = (at - 3 * DAY, at, at + 3 * DAY)
    return all(shown(one.replace(second=0), ZoneInfo(name)).second == 0 for one in around)


def test_where_clocks_are_moved_each_occurrence_is_the_one_of_the_rules():
    dice = random.Random(1)
    compared = 0
    for name in names():
        moved = [at for at in shifts(name) if whole_minutes(name, at)]
        if moved:
            compare(name, dice.choice(DENSE), dice.choice(moved))
            compared += 1
    assert compared > 300


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_same_for_many_shifts_and_schedules():
    dice = random.Random(2)
    for name in names():
        moved = [at for at in shifts(name) if whole_minutes(name, at)]
        for middle in dice.sample(moved, min(6, len(moved))):
            for expression in dice.sample(DENSE, 4):
                compare(name, expression, middle)


def real(table: CronTable, instant: datetime) -> bool:
    """Whether the clocks show a time of the expression, or the gap behind them has taken one."""
    wall = shown(instant, table.tz)
    if wall.second or instant.second:  # a zone that was off by seconds: not told minute by minute
        return True
    if matches(table.cron, wall):
        return True
    for minutes in range(1, 24 * 60 + 1):
        before = shown(instant - minutes * MINUTE, table.tz)
        length = wall - before - minutes * MINUTE
        if length > timedelta():  # a gap lies in between
            if table.cron.elapsed:
                return matches(table.cron, wall - length)
            skipped = (before + n * MINUTE for n in range(1, length // MINUTE + 1))
            return minutes == 1 and any(matches(table.cron, one) for one in skipped)
    return False


def test_an_occurrence_is_later_real_and_not_repeated(monkeypatch: pytest.MonkeyPatch):
    looked_at = 0
    honest = Cron.after

    def counted(self: Cron, wall: datetime) -> datetime:
        nonlocal looked_at
        looked_at += 1
        return honest(self, wall)

    monkeypatch.setattr(Cron, "after", counted)
    dice = random.Random(3)
    most = 0
    for name in names():
        for expression in (dice.choice(DENSE), dice.choice(SPARSE)):
            table = make(cron=expression, tz=name)
            assert isinstance(table, CronTable)
            start = BEGIN + dice.random() * (END - BEGIN)
            at = start
            seen = set()
            for _ in range(3):
                looked_at = 0
                following = table.after(at)
                most = max(most, looked_at)
                assert following > at
                assert following not in seen
                seen.add(following)
                assert real(table, following), f"{expression} in {name} at {following}"
                # nothing is in between: whoever asks from there gets the same answer
                between = at + dice.random() * (following - at)
                assert table.after(between) == following
                at = following
    # The longest search looks at each minute of two days, where a zone skips one.
    assert most <= 2 * 24 * 60 + 10


def test_the_rules_of_the_oracle_are_those_of_the_documentation():
    """The walk itself gives what O-36 and O-37 say, so that two wrongs do not agree."""
    tz = ZoneInfo("America/New_York")

    def of(expression: str, day: tuple[int, int, int]) -> list[str]:
        start = datetime(*day, tzinfo=UTC)
        return [f"{one:%H:%MZ}" for one in walked(parse(expression), tz, start, start + DAY)]

    assert of("30 1 * * *", (2026, 11, 1)) == ["05:30Z"]
    assert of("30 2 * * *", (2026, 3, 8)) == ["07:00Z"]
    assert of("30 1-2 * * *", (2026, 11, 1)) == ["05:30Z", "07:30Z"]
    assert of("0 */1 * * *", (2026, 11, 1))[5:8] == ["06:00Z", "07:00Z", "08:00Z"]
