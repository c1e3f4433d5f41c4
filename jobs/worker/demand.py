"""What a claim is asked for: one object between the lanes and the statement.

Whatever narrows or steers a claim (full tenants, floors of a search) is decided in `Demand.ask`,
travels in the `Ask`, and learns from `Demand.answered`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from jobs.worker.lane import Lane
from jobs.worker.limits import Limits
from jobs.worker.steering import Steering
from jobs_sql.claim import ClaimJobsRow


@dataclass(frozen=True, slots=True)
class Ask:
    """What one claim asks for.

    Attributes:
        room: How many jobs of each queue, at least one each.
        rescue: Whether to look for lapsed leases as well. Then ``room`` is what can start at once.
        ahead: Whether some queue is asked for more than can start at once.
    """

    room: dict[str, int]
    rescue: bool
    ahead: bool = False


class Demand:
    """The lanes of a worker, as its claims see them."""

    def __init__(
        self, lanes: Mapping[str, Lane], look_every: float, steering: Steering | None = None
    ) -> None:
        """
        Args:
            lanes: By queue.
            look_every: Seconds between two looks for lapsed leases in the same queue.
            steering: What steers the claims, and limits them. Default: no limits.
        """
        self.steering = steering or Steering(Limits())
        self._lanes = lanes
        self._look_every = look_every
        if not self.steering.may_rescue:
            for lane in lanes.values():
                lane.looked_at = math.inf

    def ask(self, now: float) -> Ask | None:
        """What to claim now; None for nothing.

        Where a queue is due for a look its jobs claimed ahead run out first; the pass that looks
        asks all queues for free slots only.
        """
        due = now - self._look_every
        rescue = False
        for lane in self._lanes.values():
            if lane.looked_at <= due:
                lane.refill = lane.slots - 1
                rescue = rescue or lane.free > 0
        room = {
            queue: wanted
            for queue, lane in self._lanes.items()
            if (wanted := lane.room(now, rescue or lane.looked_at <= due))
        }
        room = self.steering.shrink(room)
        if not room:
            return None
        ahead = any(wanted > self._lanes[queue].free for queue, wanted in room.items())
        return Ask(room, rescue, ahead)

    def answered(self, ask: Ask, rows: Sequence[ClaimJobsRow], now: float) -> bool:
        """Note what an ask has found.

        Args:
            ask: What was asked.
            rows: The answer.
            now: Monotonic seconds when it was asked.

        Returns:
            Whether to look again soon: some queue had jobs, but not as many as were asked for, or
            jobs were ended, which a pass does a few at a time.
        """
        found = dict.fromkeys(ask.room, 0)
        characters = dict.fromkeys(ask.room, 0)
        others = 0
        seen_before: set[str] = set()
        for row in rows:
            if row.verdict == "claimed":
                found[row.queue] += 1
                characters[row.queue] += len(row.input)
                if row.claims > 1:
                    seen_before.add(row.queue)
            else:
                others += 1
        more = others > 0
        for queue, asked in ask.room.items():
            lane = self._lanes[queue]
            lane.answered(asked, found[queue], characters[queue])
            more = more or 0 < found[queue] < asked
            # There may be more after a burial, or where all that could be taken has been claimed
            # before, as what is rescued was: a process that dies leaves a crowd.
            if ask.rescue and not others and not (lane.hungry and queue in seen_before):
                lane.looked_at = now
        return more

    def hears(self, queue: str) -> bool:
        """Something was enqueued, maybe in a queue that nobody here serves.

        Returns:
            Whether a claim could take it now. If not, the next free slot is a reason to claim.
        """
        lane = self._lanes.get(queue)
        if lane is None:
            return False
        if lane.free:
            return True
        lane.hungry = True
        return False

    @property
    def wants(self) -> bool:
        """Whether some queue has jobs waiting in the database, and room here."""
        return any(lane.wants for lane in self._lanes.values())
