"""What a server answers about the next try: ``Retry-After`` of responses that httpx received.

Needs httpx: ``pip install "sql-jobs[httpx]"``. Give the rules to all jobs or to one::

    import jobs.adapters.httpx

    registry = jobs.Registry.of(module, errors=jobs.adapters.httpx.rules())
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Final

import httpx

from jobs.classify import ErrorClass, ErrorRules
from jobs.errors import LONGEST_DELAY, DeclarationError

BUSY: Final = frozenset({429, 503})
"""Statuses whose ``Retry-After`` is read: too many requests, service unavailable."""

# More digits than the longest delay has, and few enough for int().
_MOST_DIGITS: Final = 18


def rules(*, terminal: Iterable[int] = ()) -> ErrorRules:
    """Return rules for what ``response.raise_for_status()`` raises.

    A 429 or 503 that says ``Retry-After``, in seconds or as a date, is tried again after that.
    Every other answer goes by the curve.

    Args:
        terminal: Statuses after which no further try can help, for example ``{400, 404, 422}``.
            None by default, because what they mean is the application's to know.

    Raises DeclarationError for something else than statuses of errors, 400 to 599.
    """
    ends = frozenset(terminal)
    for status in ends:
        if type(status) is not int or not 400 <= status <= 599:
            raise DeclarationError(f"terminal: {status!r:.200} is no status of an error")

    def read(error: httpx.HTTPStatusError) -> ErrorClass | None:
        if error.response.status_code in ends:
            return "terminal"
        return retry_after(error.response)

    return {httpx.HTTPStatusError: read}


def retry_after(response: httpx.Response) -> timedelta | None:
    """Return how long a server asks to wait; None where it does not say, or not clearly.

    Only 429 and 503 are asked. A date is compared with the ``Date`` of the same answer where there
    is one, so that a wrong clock on either side changes nothing, and with the clock of this process
    otherwise. A date that has passed is 0.
    """
    if response.status_code not in BUSY:
        return None
    value = response.headers.get("retry-after", "").strip()
    if value.isascii() and value.isdigit():
        if len(value.lstrip("0")) > _MOST_DIGITS:
            return LONGEST_DELAY
        longest = int(LONGEST_DELAY.total_seconds())
        return timedelta(seconds=min(int(value), longest))
    then = _date(value)
    if then is None:
        return None
    now = _date(response.headers.get("date", "")) or datetime.now(UTC)
    return min(max(then - now, timedelta()), LONGEST_DELAY)


def _date(value: str) -> datetime | None:
    """Read a date of HTTP, in any of its three forms."""
    if not value:
        return None
    try:
        read = parsedate_to_datetime(value)
    except (ValueError, OverflowError, TypeError):
        return None
    return read if read.tzinfo is not None else read.replace(tzinfo=UTC)
