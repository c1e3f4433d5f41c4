"""How far a run says it is: what can be said, checked and made fit to be stored."""

from __future__ import annotations

import math
from typing import Final, NamedTuple

from jobs.errors import InvalidInput
from jobs.texts import replaced

MESSAGE_LIMIT: Final = 1_000
"""Most characters of a message; longer ones are cut."""

_FIX: Final = "Pass a number from 0 to 1, and a text or nothing."


class Point(NamedTuple):
    """How far, from 0 to 1, and what is said of it."""

    fraction: float
    message: str | None


def checked(fraction: object, message: object) -> Point:
    """Return a point that can be stored, rounded to six digits and with the message cut.

    Raises InvalidInput for a fraction that is no finite number from 0 to 1, and for a message that
    is no text.
    """
    if isinstance(fraction, bool) or not isinstance(fraction, int | float):
        raise InvalidInput(
            f"must be a number, and is a {type(fraction).__qualname__}", field="fraction", fix=_FIX
        )
    if not (math.isfinite(fraction) and 0 <= fraction <= 1):
        raise InvalidInput(f"must be from 0 to 1, and is {fraction}", field="fraction", fix=_FIX)
    if message is not None and not isinstance(message, str):
        raise InvalidInput(
            f"must be a str, and is a {type(message).__qualname__}", field="message", fix=_FIX
        )
    # The column is a 4-byte float, which refuses what is too small for it.
    return Point(round(float(fraction), 6), None if message is None else _storable(message))


def _storable(message: str) -> str:
    """The text within the bound, with what PostgreSQL cannot hold replaced."""
    if len(message) > MESSAGE_LIMIT:
        message = message[: MESSAGE_LIMIT - 1] + "\u2026"
    return replaced(message)
