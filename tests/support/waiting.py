"""Bounded waits for something that happens elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

PATIENCE_SECONDS = 15.0
_POLL_SECONDS = 0.01


def until(condition: Callable[[], T], what: str, timeout: float = PATIENCE_SECONDS) -> T:
    """The first true value of ``condition()``, called again and again.

    Raises AssertionError, naming ``what`` was waited for, after ``timeout`` seconds.
    """
    deadline = time.monotonic() + timeout
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {timeout} s: {what} (last seen: {value!r})")
        time.sleep(_POLL_SECONDS)
    return value
