"""The time of the database between two statements that told it."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta


class DatabaseClock:
    """The newest time that the database has told, moved on by this process's monotonic clock.

    It is never ahead of the database: the way of the answer is not added. What is due by it is due
    by the database, which has the last word all the same.
    """

    def __init__(self) -> None:
        self._told: datetime | None = None
        self._at = 0.0

    def set(self, told: datetime) -> None:
        """Note what a statement that has just been answered told."""
        self._told = told.astimezone(UTC)
        self._at = time.monotonic()

    def now(self) -> datetime:
        """The present, in UTC. Asked only after `set`."""
        assert self._told is not None
        return self._told + timedelta(seconds=time.monotonic() - self._at)

    def until(self, instant: datetime) -> float:
        """Seconds until an instant; negative where it has passed. Asked only after `set`."""
        return (instant - self.now()).total_seconds()
