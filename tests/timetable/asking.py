"""What the tests of timetables share."""

from __future__ import annotations

from datetime import UTC, datetime

from jobs.timetable import make, upcoming


def following(cron: str, tz: str, after: str, count: int) -> list[str]:
    """The next occurrences, as local time with the offset, to the minute."""
    table = make(cron=cron, tz=tz)
    found = upcoming(table, datetime.fromisoformat(after), count)
    instant = datetime.fromisoformat(after)
    for one in found:
        assert one.astimezone(UTC) > instant.astimezone(UTC)
        assert one.tzinfo is table.tz
        # a time that the clocks of the zone do show: it reads back to itself
        assert one.astimezone(UTC).astimezone(table.tz).isoformat() == one.isoformat()
        instant = one
    return [one.strftime("%Y-%m-%d %H:%M%z") for one in found]
