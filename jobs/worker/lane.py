"""A queue as one worker serves it: its slots, the jobs that wait for one, and how many to claim.

Jobs that take a moment are claimed ahead: more of them than there are free slots, because a claim
of five costs almost as much as one of a hundred. How many is decided here, without a clock of its
own, and `docs/decisions/0010-claim-ahead.md` says why. In short:

- never more than this lane has run in `HORIZON` at its present pace, and `MOST` in all;
- nothing before `PROOF` jobs have ended in this process;
- the number doubles while claims come back full, and falls back to the slots with the first that
  does not, so that the last jobs of a backlog are shared by all workers;
- a look for lapsed leases asks for free slots only: what was held by a process that died is never
  claimed ahead;
- what waits longer than its time is handed back (`overdue`).
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from jobs.worker.held import Held

if TYPE_CHECKING:
    from jobs.worker.runner import Runner

HORIZON: Final = 0.1
"""Seconds of work that may wait here for a slot."""

MOST: Final = 1_000
"""Jobs that may be held at the same time, where a lane has fewer slots."""

CHARACTERS: Final = 16 * 1024 * 1024
"""Characters of payloads that may be held at the same time, where the slots hold fewer."""

PROOF: Final = 20
"""Jobs that must have ended here before any is claimed ahead."""

# A pace slower than this says nothing more; seconds a job.
_SLOWEST: Final = 1.0


class Lane:
    """The slots of one queue. Used in the event loop only.

    Attributes:
        queue: Its name.
        slots: How many of its jobs may run at the same time here.
        waiting: Claimed jobs that no runner has taken yet, in the order in which they start.
        busy: Runners that have a job.
        runners: Runners there are, at most as many as slots.
        idle: Those without a job, the one that was busy last at the end.
        asked: Whether somebody will see soon whether more runners are needed.
        ended: Jobs that have ended here, ever.
        hungry: The last claim came back full: a free slot is worth another.
        looked_at: Monotonic seconds when lapsed leases were looked for.
    """

    __slots__ = (
        "_began",
        "_checked",
        "_ended_before",
        "_pace",
        "_reach",
        "_rests_since",
        "_size",
        "asked",
        "busy",
        "ended",
        "hungry",
        "idle",
        "looked_at",
        "queue",
        "refill",
        "runners",
        "slots",
        "waiting",
    )

    def __init__(self, queue: str, slots: int) -> None:
        self.queue = queue
        self.slots = slots
        self.waiting: deque[Held] = deque()
        self.busy = 0
        self.runners = 0
        self.idle: list[Runner] = []
        self.asked = False
        self.ended = 0
        self.hungry = False
        self.looked_at = float("-inf")
        #: With so many jobs held, or fewer, a hungry lane is to be filled again.
        self.refill = slots - 1
        self._reach = slots
        self._pace = 0.0  # seconds a job, 0 before the first
        self._began = 0.0
        self._ended_before = 0
        self._rests_since = 0.0
        self._checked = (0.0, 0)
        self._size = 1.0  # of a payload, in characters

    @property
    def held(self) -> int:
        """Jobs that run or wait for a slot."""
        return self.busy + len(self.waiting)

    @property
    def free(self) -> int:
        """Slots that no job has or waits for."""
        return max(0, self.slots - self.busy - len(self.waiting))

    @property
    def awake(self) -> int:
        """Runners that will look for a job in their next step."""
        return self.runners - len(self.idle) - self.busy

    @property
    def wants(self) -> bool:
        """Whether the end of a job is reason enough for another claim."""
        return self.hungry and self.busy + len(self.waiting) <= self.refill

    def arrives(self, job: Held, now: float) -> None:
        """Let a claimed job wait for a slot."""
        if not self.busy and not self.waiting:
            # It was idle, which says nothing of its pace.
            self._began += now - max(self._began, self._rests_since)
            self._checked = (now, self.ended)
        self.waiting.append(job)

    def rests(self, now: float) -> None:
        """Nothing runs or waits any more."""
        self._rests_since = now

    def room(self, now: float, look: bool) -> int:
        """How many jobs to claim now, 0 for none.

        Args:
            now: Monotonic seconds.
            look: Whether lapsed leases are looked for at the same time.
        """
        free = self.free
        if look:
            return free
        target = self._target(now)
        if target <= self.slots:
            self.refill = self.slots - 1
            return free
        held = self.held
        self.refill = max(target // 2, self.slots - 1)
        return target - held if held <= self.refill else 0

    def answered(self, asked: int, found: int, characters: int) -> None:
        """A claim of ``asked`` jobs has found so many, with payloads of so many characters."""
        if found:
            sample = max(1.0, characters / found)
            self._size = max(sample, (self._size + sample) / 2)
        self.hungry = found >= asked
        if self.hungry:
            self._reach = min(max(self.slots, MOST), self._reach * 2)
        else:
            self._reach = self.slots

    def overdue(self, now: float) -> list[Held]:
        """Take what has to be handed back out of those that wait.

        Called now and then while any waits. At the pace since the last call they would wait for
        longer than meant: the newest are given up, until the rest fits.
        """
        since, ended = self._checked
        self._checked = (now, self.ended)
        seconds, ended = now - since, self.ended - ended
        if not self.waiting or seconds <= 0:
            return []
        in_time = int(ended * HORIZON / seconds)
        # Slack: the pace of a moment is no law, and a hand-back makes a job wait behind others.
        if len(self.waiting) <= 4 * in_time:
            return []
        self._reach = self.slots
        self._pace = min(_SLOWEST, seconds / max(1, ended))
        self._began, self._ended_before = now, self.ended
        return [self.waiting.pop() for _ in range(len(self.waiting) - in_time)]

    def _target(self, now: float) -> int:
        """How many jobs to hold."""
        ended = self.ended - self._ended_before
        if not self.held:
            now = self._rests_since
        if ended:
            sample = min(_SLOWEST, (now - self._began) / ended)
            # Slower is believed at once, faster by half.
            self._pace = max(sample, (self._pace + sample) / 2)
            self._began, self._ended_before = now, self.ended
        elif self.busy and now - self._began > self._pace:
            self._pace = min(_SLOWEST, now - self._began)  # nothing ends any more
        if self.ended < PROOF:
            return self.slots
        in_time, in_memory = HORIZON / max(self._pace, 1e-9), CHARACTERS / self._size
        return max(self.slots, min(self._reach, MOST, int(in_time), int(in_memory)))
