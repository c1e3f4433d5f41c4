"""Time zones by their real names."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from jobs.errors import ScheduleInvalid

UTC_NAME: Final = "UTC"

_NAME: Final = re.compile(r"[A-Za-z0-9_+-]+(?:/[A-Za-z0-9_+-]+)+", re.A)
# Copies of the whole data base that some systems keep beside it, under other rules.
_COPIES: Final = ("posix/", "right/", "posixrules/")
_FIX: Final = "Write Area/City, such as Europe/Zurich, with its capitals; or UTC."


@lru_cache(maxsize=1024)
def zone(name: str) -> ZoneInfo:
    """The zone of that name: ``Area/City`` as in the IANA time zone database, or ``UTC``.

    Abbreviations (EST, CEST) name an offset and not a place's rules, and offsets are read with
    either sign, so neither is taken.

    Raises:
        ScheduleInvalid: There is no such zone.
    """
    if not isinstance(name, str):
        raise ScheduleInvalid(
            f"must be the name of a time zone, and is a {type(name).__qualname__}",
            field="tz",
            fix=_FIX,
        )
    if name != UTC_NAME and (not _NAME.fullmatch(name) or name.startswith(_COPIES)):
        raise ScheduleInvalid(
            f"{name!r:.100} is not the name of a zone: abbreviations and offsets are not taken",
            field="tz",
            fix=_FIX,
        )
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise ScheduleInvalid(
            f"{name!r:.100} is not in the time zone database", field="tz", fix=_FIX
        ) from error
