"""Priorities that do not starve: which of the four a claim looks at first, and for how many.

The order is strict, 0 first. While a queue has more jobs of high priority here than it has slots,
the lower ones would wait for ever, so one job in `ONE_IN` goes to them. Nobody pays for that who
uses one priority: a turn that finds nothing below is repeated a second later at the earliest.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final, NamedTuple

from jobs_sql.claim import ClaimJobsRow

PRIORITIES: Final = 4

ONE_IN: Final = 10
"""Of so many jobs one is of a lower priority, where some of these wait."""

LOOK_EVERY: Final = 1.0
"""Seconds between two looks at lower priorities after one that found nothing."""

STRICT: Final = (0, 1, 2, 3)


class Turn(NamedTuple):
    """How a claim goes through the priorities of one queue.

    Attributes:
        order: The priorities, each once.
        most: How many it may take of each, in the same order.
    """

    order: tuple[int, ...]
    most: tuple[int, ...]


class _Queue:
    __slots__ = ("credit", "look_at", "lowest", "next", "turned")

    def __init__(self) -> None:
        self.credit = 0.0  # jobs that the lower priorities have coming
        self.lowest = 0  # the lowest priority that its own order has reached
        self.next = 0  # which of the lower ones is first
        self.look_at = float("-inf")
        self.turned: Turn | None = None  # what is asked for now, if it is not the strict order


class Turns:
    """The turns of the queues of one worker. Times are monotonic seconds."""

    def __init__(self) -> None:
        self._queues: dict[str, _Queue] = {}

    def turn(self, queue: str, room: int, now: float) -> Turn | None:
        """How the next claim of a queue is to go through its priorities; None for strictly.

        Args:
            queue: Its name.
            room: How many jobs will be asked for, at least one.
            now: The time.
        """
        known = self._queues.get(queue)
        if known is None:
            return None
        known.turned = None
        if known.credit < 1 or now < known.look_at or known.lowest >= PRIORITIES - 1:
            return None
        lower = deque(range(known.lowest + 1, PRIORITIES))
        lower.rotate(-known.next)
        known.next += 1
        most = min(int(known.credit), max(1, room // 2))
        higher = range(known.lowest + 1)
        known.turned = Turn((*lower, *higher), (most,) * len(lower) + (room,) * len(higher))
        return known.turned

    def learn(self, queue: str, asked: int, rows: Sequence[ClaimJobsRow], now: float) -> None:
        """Note what a claim of a queue has taken.

        Args:
            queue: Its name.
            asked: How many it asked for.
            rows: The jobs that were due, not those that were rescued.
            now: The time.
        """
        known = self._queues.get(queue)
        if len(rows) < asked:
            # It has reached them all, or was held to a few of the lower ones by its turn.
            if known is None:
                return
            if known.turned is None:
                known.credit = 0.0
                return
        if known is None:
            known = self._queues[queue] = _Queue()
        if known.turned is None:
            known.lowest = max(row.priority for row in rows)
            lower = 0
        else:
            lower = sum(row.priority > known.lowest for row in rows)
            known.credit -= lower
            if not lower:
                known.credit = 0.0
                known.look_at = now + LOOK_EVERY
        known.turned = None
        # The lower ones get their share of what all have got: one in ten, not one for ten.
        known.credit = min(known.credit + len(rows) / ONE_IN, max(1.0, asked / 2))
