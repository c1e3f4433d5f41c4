"""Checks of settings that services have in common."""

from __future__ import annotations

import os
import secrets
import socket
from datetime import timedelta

from jobs.definition import NAME_LIMIT
from jobs.errors import ConfigError
from jobs.payload import text_problem


def default_name() -> str:
    """Host, process and a random part: readable, and no other process's, whatever it is called."""
    return f"{socket.gethostname()[:80]}:{os.getpid()}:{secrets.token_hex(6)}"


def check_duration(field: str, value: object, low: timedelta, high: timedelta) -> None:
    """Refuse what is no duration within the bounds (ConfigError)."""
    if not isinstance(value, timedelta):
        raise ConfigError(f"{field} is {value!r:.200}, expected a timedelta")
    if not low <= value <= high:
        raise ConfigError(f"{field} is {value}, expected {low} to {high}")


def check_name(field: str, value: object) -> None:
    """Refuse what is no text of 1 to 255 bytes that can be stored (ConfigError)."""
    problem = text_problem(value, NAME_LIMIT)
    if problem is not None:
        raise ConfigError(f"{field} {value!r:.200}: {problem}")


def check_count(field: str, value: object, low: int, high: int) -> None:
    """Refuse what is no whole number within the bounds (ConfigError)."""
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise ConfigError(
            f"{field} is {value!r:.200}, expected a whole number from {low} to {high}"
        )
