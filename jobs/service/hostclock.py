"""A word in the log where the clock of this host and that of the database differ.

Nothing depends on it: what is due, and whose lease has lapsed, is for the database's clock alone.
But times in logs do not fit those in rows, and whoever reads them should know.
"""

from __future__ import annotations

import logging
import threading
import time
from datetime import datetime
from typing import Final

logger = logging.getLogger("jobs.service")

# Seconds that nobody needs to hear of, of a difference and of its change.
TOLERATED: Final = 5.0


class HostClock:
    """Compares the two clocks, and says what it finds once, and again where that changes."""

    def __init__(self) -> None:
        self._said = 0.0
        self._lock = threading.Lock()

    def compare(self, told: datetime, asked_at: float) -> None:
        """Compare. May be called from any thread.

        Args:
            told: What the database's clock has shown while a statement was answered.
            asked_at: `time.time` when the statement was sent.
        """
        now, theirs = time.time(), told.timestamp()
        # It was at any time between the two here, which alone is no difference.
        ahead = max(asked_at - theirs, 0.0) - max(theirs - now, 0.0)
        if abs(ahead) <= TOLERATED:
            ahead = 0.0
        with self._lock:
            if abs(ahead - self._said) <= TOLERATED:
                return
            self._said = ahead
        logger.log(
            logging.WARNING if ahead else logging.INFO,
            "the clock of this host is %s",
            f"{abs(ahead):.0f} s {'ahead of' if ahead > 0 else 'behind'} that of the database"
            if ahead
            else "with that of the database again",
            extra={"event": "jobs.service.clock", "seconds": round(ahead, 3)},
        )
