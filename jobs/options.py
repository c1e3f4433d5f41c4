"""Checks of the options that an enqueue takes, for all of its jobs or for one."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

from jobs.errors import InvalidInput
from jobs.retry import LONGEST

PRIORITIES: Final = range(4)

# Both ends leave room for any time zone within what Python can represent.
_EARLIEST: Final = datetime(1970, 1, 1, tzinfo=UTC)
_LATEST: Final = datetime(3000, 1, 1, tzinfo=UTC)


def check_priority(priority: int | None) -> None:
    """Refuse what is no priority (InvalidInput)."""
    if priority is not None and (type(priority) is not int or priority not in PRIORITIES):
        raise InvalidInput(f"must be 0, 1, 2 or 3, and is {priority!r:.200}", field="priority")


def check_when(delay: timedelta | None, run_at: datetime | None) -> None:
    """Refuse a due time that is naive, out of bounds or said twice (InvalidInput)."""
    if delay is not None:
        if run_at is not None:
            raise InvalidInput("cannot be given together with delay", field="run_at")
        if not isinstance(delay, timedelta):
            raise InvalidInput(f"must be a timedelta, and is a {type_name(delay)}", field="delay")
        if not timedelta() <= delay <= LONGEST:
            raise InvalidInput(
                f"must be from 0 to {LONGEST.days} days, and is {delay}", field="delay"
            )
    if run_at is not None:
        if not isinstance(run_at, datetime):
            raise InvalidInput(
                f"must be a datetime with a time zone, and is a {type_name(run_at)}", field="run_at"
            )
        if run_at.utcoffset() is None:
            raise InvalidInput(
                "is a datetime without a time zone, so nobody can tell which instant it is",
                field="run_at",
                fix="Give it one, for example datetime.now(timezone.utc) + timedelta(minutes=30).",
            )
        if not _EARLIEST <= run_at <= _LATEST:
            raise InvalidInput(
                f"must be from {_EARLIEST.year} to {_LATEST.year}, and is {run_at.isoformat()}",
                field="run_at",
            )


def type_name(value: object) -> str:
    """Return the name of a value's type, for messages."""
    return type(value).__qualname__
