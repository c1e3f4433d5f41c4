"""The grammar of cron expressions: five fields or an alias, and nothing that could fail later."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache
from typing import Final, NamedTuple

from croniter import croniter

from jobs.errors import ScheduleInvalid

ALIASES: Final = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}

_MONTHS: Final = [
    *("jan", "feb", "mar", "apr", "may", "jun"),
    *("jul", "aug", "sep", "oct", "nov", "dec"),
]
_WEEKDAYS: Final = ["sun", "mon", "tue", "wed", "thu", "fri", "sat", "sun"]  # 0 and 7
_LONGEST_MONTH: Final = (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
_LIMIT: Final = 255

_VALUE = "[0-9]+|[A-Za-z]+"
_ITEM: Final = re.compile(
    rf"(?:(?P<star>\*)|(?P<low>{_VALUE})(?:-(?P<high>{_VALUE}))?)(?:/(?P<step>[0-9]+))?", re.A
)
# More years than between two matches of anything that is accepted: croniter's bound on its search.
_RAREST: Final = 50


class _Field(NamedTuple):
    name: str
    low: int
    high: int
    words: list[str]

    def word(self, value: int) -> str:
        return self.words[value - self.low].upper() if self.words else str(value)


_FIELDS: Final = (
    _Field("minute", 0, 59, []),
    _Field("hour", 0, 23, []),
    _Field("day of month", 1, 31, []),
    _Field("month", 1, 12, _MONTHS),
    _Field("day of week", 0, 7, _WEEKDAYS),
)


@dataclass(frozen=True, slots=True)
class Cron:
    """A checked cron expression.

    Attributes:
        text: The expression as given, its white space made single.
        minutes, hours: In order, from 0.
        days: Days of the month, from 1.
        months: In order, from 1.
        weekdays: From 0, which is Sunday.
        elapsed: Whether the hour field begins with ``*``, so that the schedule goes by the time
            that passes rather than by fixed times of the day.
        either: Whether a day is meant that is in ``days`` or in ``weekdays``, rather than in both:
            neither field begins with ``*``.
    """

    text: str
    minutes: tuple[int, ...]
    hours: tuple[int, ...]
    days: frozenset[int]
    months: tuple[int, ...]
    weekdays: frozenset[int]
    elapsed: bool
    either: bool
    _walk: croniter = field(repr=False, compare=False)

    def after(self, wall: datetime) -> datetime:
        """The first time of the calendar later than ``wall`` that matches, both without a zone.

        The fewest matches are one in 40 years (29 February of one weekday, across 2100).
        """
        # A time is a whole minute. croniter counts in floats, which would round what is finer.
        minute = wall.replace(second=0, microsecond=0)
        walk = copy.copy(self._walk)  # it keeps its place, and expressions are shared by threads
        found: datetime = walk.get_next(datetime, start_time=minute)
        return found

    def between(self, start: datetime, end: datetime) -> Iterator[datetime]:
        """The matching times later than ``start`` and not later than ``end``, in order."""
        wall = self.after(start)
        while wall <= end:
            yield wall
            wall = self.after(wall)


@lru_cache(maxsize=1024)
def parse(text: str) -> Cron:
    """Read a cron expression: five fields, or one of `ALIASES`.

    Raises:
        ScheduleInvalid: It is none, or names a date that never comes; the message names the field.
    """
    if not isinstance(text, str):
        raise ScheduleInvalid(
            f"must be text such as '0 3 * * *', and is a {type(text).__qualname__}", field="cron"
        )
    if len(text) > _LIMIT:
        raise ScheduleInvalid(f"has {len(text)} characters, more than {_LIMIT}", field="cron")
    parts = [part for part in re.split(r"[ \t]+", text) if part]
    if len(parts) == 1 and parts[0].startswith("@"):
        expression = ALIASES.get(parts[0].lower())
        if expression is None:
            raise ScheduleInvalid(
                f"{parts[0]!r} is none of {', '.join(ALIASES)}",
                field="cron",
                fix="Write five fields: minute, hour, day of month, month, day of week.",
            )
        return _read(parts[0].lower(), expression.split())
    if len(parts) != len(_FIELDS):
        raise ScheduleInvalid(
            f"{text!r} has {len(parts)} fields, not five: minute, hour, day of month, month, day "
            "of week",
            field="cron",
            fix="Write five fields. There are no fields for seconds or years.",
        )
    return _read(" ".join(parts), parts)


def _read(text: str, parts: list[str]) -> Cron:
    minutes, hours, days, months, weekdays = (
        _values(field, part) for field, part in zip(_FIELDS, parts, strict=True)
    )
    weekdays = {day % 7 for day in weekdays}
    either = not parts[2].startswith("*") and not parts[4].startswith("*")
    if not either and not any(min(days) <= _LONGEST_MONTH[month - 1] for month in months):
        longest = max(_LONGEST_MONTH[month - 1] for month in months)
        raise ScheduleInvalid(
            f"{parts[2]!r} never comes: the months {parts[3]!r} have at most {longest} days",
            field="cron day of month",
        )
    if either and (len(days) == 31 or len(weekdays) == 7):
        days, weekdays, either = set(range(1, 32)), set(range(7)), False  # every day
    return Cron(
        text=text,
        minutes=tuple(sorted(minutes)),
        hours=tuple(sorted(hours)),
        days=frozenset(days),
        months=tuple(sorted(months)),
        weekdays=frozenset(weekdays),
        elapsed=parts[1].startswith("*"),
        either=either,
        _walk=_calendar((minutes, hours, days, months, weekdays), either),
    )


def _calendar(fields: Iterable[set[int]], either: bool) -> croniter:
    """What finds the times. It is given plain numbers only, so none of its own grammar is used."""
    numbers = " ".join(",".join(map(str, sorted(values))) for values in fields)
    return croniter(numbers, 0, day_or=either, max_years_between_matches=_RAREST)


def _values(field: _Field, part: str) -> set[int]:
    found: set[int] = set()
    for item in part.split(","):
        found.update(_item(field, item, part))
    return found


def _item(field: _Field, item: str, part: str) -> range:
    where = f"cron {field.name}"
    within = "" if item == part else f" in {part!r}"
    match = _ITEM.fullmatch(item)
    if match is None:
        raise ScheduleInvalid(
            f"{item!r}{within} is no number, name, range (1-5), step (*/5, 1-30/5) or list",
            field=where,
        )
    if match["star"]:
        low, high = field.low, 6 if field.name == "day of week" else field.high
    else:
        low = _number(field, match["low"], within)
        high = low if match["high"] is None else _number(field, match["high"], within)
        if high == 0 < low and match["high"] and field.name == "day of week":
            high = 7  # a week that ends with Sunday
        if high < low:
            raise ScheduleInvalid(
                f"the range {item!r}{within} ends before it begins",
                field=where,
                fix=f"Where it is to go round, write {field.word(low)}-{field.word(field.high)},"
                f"{field.word(field.low)}-{field.word(high)}.",
            )
    if match["step"] is None:
        return range(low, high + 1)
    step = int(match["step"])
    if match["star"] is None and match["high"] is None:
        raise ScheduleInvalid(
            f"the step {item!r}{within} has no range",
            field=where,
            fix=f"Write {match['low']}-{field.high}/{step}, or */{step}.",
        )
    longest = max(1, high - low)
    if not 1 <= step <= longest:
        raise ScheduleInvalid(
            f"the step of {item!r}{within} must be from 1 to {longest}",
            field=where,
        )
    return range(low, high + 1, step)


def _number(field: _Field, text: str, within: str) -> int:
    if text.isdigit():
        value = int(text) if len(text) <= 4 else field.high + 1
    elif text.lower() in field.words:
        return field.words.index(text.lower()) + field.low
    else:
        known = (
            f" nor one of {', '.join(dict.fromkeys(field.words)).upper()}" if field.words else ""
        )
        raise ScheduleInvalid(f"{text!r}{within} is no number{known}", field=f"cron {field.name}")
    if not field.low <= value <= field.high:
        raise ScheduleInvalid(
            f"{text}{within} is not from {field.low} to {field.high}", field=f"cron {field.name}"
        )
    return value
