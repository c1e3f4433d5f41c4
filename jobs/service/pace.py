"""How long a service waits between two looks at what there is to do."""

from __future__ import annotations

import time

# After a claim that found something more tends to follow, and not each is told of: look again this
# soon, for this long; and then a little less often, for as long as wakes are suppressed.
_HOTTEST_WAIT = 0.002
_HOTTEST_FOR = 0.04
_HOT_WAIT = 0.01
_HOT_FOR = 0.3


class Pace:
    """Waits in seconds: short after a find, doubling from the floor to the ceiling while idle.

    ``ceiling`` may be changed at any time.
    """

    def __init__(self, floor: float, ceiling: float) -> None:
        self._floor = floor
        self.ceiling = ceiling
        self._next = floor
        self._found_at = float("-inf")

    def found(self) -> float:
        """A claim found something, but not as much as it asked for."""
        self._next = self._floor
        self._found_at = time.monotonic()
        return min(_HOTTEST_WAIT, self._floor)

    def filled(self) -> float:
        """A claim found as much as it asked for: the next slot that is free ends the wait.

        Queues that have slots free already are looked at again at the floor, not sooner: they had
        nothing.
        """
        self._next = self._floor
        return self._floor

    def nothing(self) -> float:
        """A claim found nothing."""
        since = time.monotonic() - self._found_at
        if since < _HOT_FOR:
            return min(_HOTTEST_WAIT if since < _HOTTEST_FOR else _HOT_WAIT, self._floor)
        return self._doubled()

    def failed(self) -> float:
        """A claim could not be made: back to the floor, and not faster than that."""
        self._next = max(self._next, self._floor)
        return self._doubled()

    def heard(self) -> None:
        """Something was enqueued. Whoever finds it goes on looking (`found`).

        For the others the waits double from far below the floor: more may have been enqueued
        without a word, and the one who found the first may have no slot left.
        """
        self._next = min(_HOT_WAIT, self._floor)

    def _doubled(self) -> float:
        wait = min(self._next, self.ceiling)
        self._next = min(self._next * 2, self.ceiling)
        return wait
