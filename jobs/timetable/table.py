"""The instants at which a schedule is due, in order.

Instants are datetimes in UTC: two of one other zone would be compared by what its clocks show,
which may be the same twice. What follows "after" an instant is strictly later, so a walk along
`Timetable.after` never repeats one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from typing import Final, Protocol
from zoneinfo import ZoneInfo

from jobs.errors import InvalidInput, ScheduleInvalid
from jobs.timetable.cron import Cron, parse
from jobs.timetable.zones import UTC_NAME, zone

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
SHORTEST_EVERY: Final = timedelta(seconds=1)
LONGEST_EVERY: Final = timedelta(days=3650)

_EARLIEST: Final = datetime(1900, 1, 1, tzinfo=UTC)
_LATEST: Final = datetime(3000, 1, 1, tzinfo=UTC)
_SECOND: Final = timedelta(seconds=1)
_HOUR: Final = timedelta(hours=1)
_DAY: Final = timedelta(days=1)
_STILL: Final = timedelta(0)
# The longest shift of any zone's clocks is a day (Samoa moved across the date line).
_REACH: Final = timedelta(hours=26)


class Timetable(Protocol):
    """When a schedule is due."""

    @property
    def tz(self) -> ZoneInfo:
        """The zone that occurrences are shown in."""

    def after(self, instant: datetime) -> datetime:
        """The first occurrence later than ``instant``, in UTC."""

    def describe(self) -> dict[str, str | float | None]:
        """What was declared as plain JSON values, durations in seconds."""


def upcoming(table: Timetable, after: datetime, count: int) -> list[datetime]:
    """The next ``count`` occurrences after an instant, in the zone of the table.

    Raises InvalidInput: ``after`` has no zone, or is not from 1900 to 3000; or ``count`` is not
    from 0 to 10,000.
    """
    if not isinstance(after, datetime) or after.utcoffset() is None:
        raise InvalidInput(
            "must be a datetime with a time zone, so that one can tell which instant it is",
            field="after",
        )
    if not _EARLIEST <= after <= _LATEST:
        raise InvalidInput(f"must be from 1900 to 3000, and is {after.isoformat()}", field="after")
    if type(count) is not int or not 0 <= count <= 10_000:
        raise InvalidInput(f"must be from 0 to 10,000, and is {count!r:.100}", field="n")
    found: list[datetime] = []
    for _ in range(count):
        after = table.after(after)
        found.append(after.astimezone(table.tz))
    return found


def make(
    *,
    cron: str | None = None,
    every: timedelta | None = None,
    tz: str | None = None,
    anchor: datetime | None = None,
) -> CronTable | IntervalTable:
    """The timetable of a cron expression in a zone, or of an interval.

    Raises ScheduleInvalid, naming the field.
    """
    if (cron is None) == (every is None):
        raise ScheduleInvalid(
            "give either a cron expression or an interval (every=)",
            field="cron",
            fix="Write cron='0 3 * * *', tz='Europe/Zurich', or every=timedelta(minutes=10).",
        )
    if cron is not None:
        if tz is None:
            raise ScheduleInvalid(
                "a cron expression needs the zone whose clocks it goes by",
                field="tz",
                fix="There is no default; say tz='Europe/Zurich' or so.",
            )
        if anchor is not None:
            raise ScheduleInvalid("belongs to an interval (every=), not to cron", field="anchor")
        return CronTable(parse(cron), zone(tz))
    return IntervalTable(_every(every), _anchor(anchor), zone(UTC_NAME if tz is None else tz))


def _every(value: object) -> timedelta:
    if not isinstance(value, timedelta):
        raise ScheduleInvalid(
            f"must be a timedelta, and is a {type(value).__qualname__}", field="every"
        )
    if not SHORTEST_EVERY <= value <= LONGEST_EVERY:
        raise ScheduleInvalid(
            f"must be from 1 second to {LONGEST_EVERY.days} days, and is {value}", field="every"
        )
    return value


def _anchor(value: object) -> datetime:
    if value is None:
        return EPOCH
    if not isinstance(value, datetime) or value.utcoffset() is None:
        raise ScheduleInvalid("must be a datetime with a time zone", field="anchor")
    if not _EARLIEST <= value <= _LATEST:
        raise ScheduleInvalid(
            f"must be from 1900 to 3000, and is {value.isoformat()}", field="anchor"
        )
    return value.astimezone(UTC)


@dataclass(frozen=True, slots=True)
class IntervalTable:
    """Every so often, counted from an instant: the same whatever the zone's clocks do."""

    every: timedelta
    anchor: datetime
    tz: ZoneInfo

    def after(self, instant: datetime) -> datetime:
        """See `Timetable`."""
        begun = (instant.astimezone(UTC) - self.anchor) // self.every
        return self.anchor + (begun + 1) * self.every

    def describe(self) -> dict[str, str | float | None]:
        """See `Timetable`."""
        return {
            "cron": None,
            "every": self.every.total_seconds(),
            "anchor": self.anchor.isoformat(),
            "tz": self.tz.key,
        }


@dataclass(frozen=True, slots=True)
class CronTable:
    """A cron expression by the clocks of a zone.

    Where the clocks are moved two rules hold. Fixed hours (the hour field does not begin with
    ``*``): a time that comes twice is meant the first time; one that does not come at all is meant
    at the first instant behind the gap. Other schedules follow the time that passes: a time that
    comes twice is meant twice, and one that does not come is meant where it would have been, had
    the clocks not been moved yet.
    """

    cron: Cron
    tz: ZoneInfo

    def after(self, instant: datetime) -> datetime:
        """See `Timetable`.

        Looks at the times of the calendar that can be the next one, and at those that a shift of
        the clocks may bring in front of them: at most those of two times 26 hours on each side.
        """
        start = instant.astimezone(UTC).replace(tzinfo=None)
        wall = _wall(start, self.tz)
        following = self.cron.after(wall)
        shift = max(_unrest(self.tz.key, start.date()), _unrest(self.tz.key, following.date()))
        if shift == _STILL:
            # The clocks stand still here and there: one time is one instant.
            return (following - self._offset(following)).replace(tzinfo=UTC)
        while True:
            meant = {
                found
                for one in self._near(wall, following, shift)
                for found in self._instants(one)
                if found > start
            }
            if meant:
                return min(meant).replace(tzinfo=UTC)
            # All that follow were meant before (two times in one gap).
            following = self.cron.after(following)
            shift = max(shift, _unrest(self.tz.key, following.date()))

    def describe(self) -> dict[str, str | float | None]:
        """See `Timetable`."""
        return {"cron": self.cron.text, "every": None, "anchor": None, "tz": self.tz.key}

    def _near(self, wall: datetime, following: datetime, shift: timedelta) -> Iterator[datetime]:
        """Times that are meant at an instant which may be the next one, following included."""
        yield from self.cron.between(wall - shift - _SECOND, wall)
        yield following
        yield from self.cron.between(following, following + shift)

    def _instants(self, wall: datetime) -> Iterator[datetime]:
        """The instants, in UTC without a zone, at which a time of the calendar is meant."""
        early = wall - self._offset(wall)
        late = wall - self._offset(wall.replace(fold=1))
        if early <= late:
            yield early
            if late != early and self.cron.elapsed:
                yield late
        elif self.cron.elapsed:
            yield early  # in a gap, by the offset that was in force before it
        else:
            yield self._first_from(wall, late, early)

    def _first_from(self, wall: datetime, before: datetime, behind: datetime) -> datetime:
        """The first instant whose time of the calendar is ``wall`` or later, between two others."""
        while behind - before > _SECOND:
            middle = before + (behind - before) // (2 * _SECOND) * _SECOND
            if _wall(middle, self.tz) < wall:
                before = middle
            else:
                behind = middle
        return behind

    def _offset(self, wall: datetime) -> timedelta:
        offset = self.tz.utcoffset(wall)
        assert offset is not None
        return offset


def _wall(instant: datetime, tz: ZoneInfo) -> datetime:
    """What the clocks of a zone show at an instant of UTC, both without a zone."""
    return instant.replace(tzinfo=UTC).astimezone(tz).replace(tzinfo=None, fold=0)


@lru_cache(maxsize=4096)
def _unrest(key: str, day: date) -> timedelta:
    """By how much the clocks of a zone are moved, in all, around a day; 0 where they stand still.

    Looks from 26 hours before its begin to 26 hours behind its end, an hour at a time: no zone
    has been moved there and back within an hour.
    """
    tz = zone(key)
    begin = datetime(day.year, day.month, day.day, tzinfo=UTC)
    at, end = begin - _REACH, begin + _DAY + _REACH
    before, moved = at.astimezone(tz).utcoffset(), _STILL
    while at < end:
        at += _HOUR
        offset = at.astimezone(tz).utcoffset()
        assert offset is not None
        assert before is not None
        moved += abs(offset - before)
        before = offset
    return moved
