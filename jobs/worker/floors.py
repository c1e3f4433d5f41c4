"""Seek floors: where in a queue the next claim begins to look.

Under a snapshot that somebody holds open no dead index entry can be removed, and a claim that
begins at the oldest would walk over those of all jobs that ever ran. So each begins at the last job
that this process has claimed of a queue and priority. What lands behind it (a late commit, a job
that keeps an old due time) is found by claims that begin further back, called sweeps. Without such
a snapshot a sweep costs nothing, and a queue that is not backed up is swept all the time.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final, Literal, NamedTuple
from uuid import UUID

from jobs.worker.turns import PRIORITIES
from jobs_sql.claim import ClaimJobsRow

EVERY: Final = 0.5
"""Seconds between two sweeps of a kind while a queue is backed up."""

SHARE: Final = 0.05
"""Share of a worker's time that sweeps of a kind may take."""

NEAR: Final = timedelta(seconds=10)
"""How far a near sweep goes back."""

MARGIN: Final = timedelta(milliseconds=250)
"""How far every claim goes back while the queue is not backed up: commits overtake each other."""

Reach = Literal["floor", "near", "whole"]


class Mark(NamedTuple):
    """A place in the order of a queue and priority."""

    at: datetime
    id: UUID


#: Before every job.
START: Final = Mark(datetime.min.replace(tzinfo=UTC), UUID(int=0))


class _Sweep:
    """When sweeps of one kind are allowed."""

    __slots__ = ("_free_at", "_queues")

    def __init__(self) -> None:
        self._free_at = float("-inf")
        self._queues: dict[str, float] = {}

    def allows(self, queue: str, backed_up: bool, now: float) -> bool:
        if now < self._free_at:
            return False
        return not backed_up or now - self._queues.get(queue, float("-inf")) >= EVERY

    def done(self, queues: Iterable[str], began: float, ended: float, cost: float) -> None:
        self._free_at = ended + cost / SHARE
        self.covered(queues, began)

    def covered(self, queues: Iterable[str], began: float) -> None:
        for queue in queues:
            self._queues[queue] = began


class _Usual:
    """How long a claim takes that begins at the floor."""

    __slots__ = ("_call", "_job", "known")

    def __init__(self) -> None:
        self.known = False
        self._call = 0.0
        self._job = 0.0

    def learn(self, seconds: float, jobs: int) -> None:
        self.known = True
        if jobs:
            each = max(0.0, seconds - self._call) / jobs
            self._job = each if not self._job else self._job + (each - self._job) / 4
        else:
            self._call = seconds if not self._call else self._call + (seconds - self._call) / 4

    def beyond(self, seconds: float, jobs: int) -> float:
        """How much longer this one took."""
        return max(0.0, seconds - self._call - jobs * self._job)


class Floors:
    """The floors of one worker. Times are monotonic seconds.

    Kept in memory: a new process begins with a sweep of everything.
    """

    def __init__(self) -> None:
        self._marks: dict[str, list[Mark | None]] = {}
        self._backed_up: set[str] = set()
        self._near = _Sweep()
        self._whole = _Sweep()
        self._usual = _Usual()
        self._forced = False

    def force(self) -> None:
        """Let the next claim sweep everything."""
        self._forced = True

    def reach(self, queues: Sequence[str], now: float) -> dict[str, Reach]:
        """How far back the next claim goes in each queue."""
        forced, self._forced = self._forced, False
        return {queue: "whole" if forced else self._choose(queue, now) for queue in queues}

    def _choose(self, queue: str, now: float) -> Reach:
        backed_up = queue in self._backed_up
        if not any(self._marks.get(queue, ())) or self._whole.allows(queue, backed_up, now):
            return "whole"
        near = self._usual.known and self._near.allows(queue, backed_up, now)
        return "near" if near else "floor"

    def floors(
        self, reaches: Mapping[str, Reach], orders: Sequence[Sequence[int]]
    ) -> list[Mark] | None:
        """Where a claim begins, None for before everything.

        Args:
            reaches: How far it goes back in each queue.
            orders: In which order it goes through the priorities of each.

        Returns:
            A mark for each queue and priority, in that order.
        """
        if all(reach == "whole" for reach in reaches.values()):
            return None
        return [
            self._floor(queue, priority, reach)
            for (queue, reach), order in zip(reaches.items(), orders, strict=True)
            for priority in order
        ]

    def _floor(self, queue: str, priority: int, reach: Reach) -> Mark:
        mark = self._marks[queue][priority] if queue in self._marks else None
        if mark is None or reach == "whole":
            return START
        if reach == "floor" and queue in self._backed_up:
            return mark
        back = NEAR if reach == "near" else MARGIN
        return Mark(mark.at - back, START.id) if mark.at - START.at > back else START

    def learn(
        self,
        reaches: Mapping[str, Reach],
        asked: Mapping[str, int],
        found: Mapping[str, Sequence[ClaimJobsRow]],
        began: float,
        ended: float,
        missed: Collection[str] = (),
    ) -> None:
        """Note what a claim has found that looked for no lapsed leases.

        Args:
            reaches: How far back it went.
            asked: How many jobs it asked for, by queue.
            found: What it claimed, by queue, the last of a priority last.
            began: When it was sent.
            ended: When it was answered.
            missed: Queues where it left a job ready that it has looked at: the floor stays.
        """
        jobs = 0
        for queue, count in asked.items():
            rows = found.get(queue, ())
            jobs += len(rows)
            if len(rows) >= count:
                self._backed_up.add(queue)
            else:
                self._backed_up.discard(queue)
            marks = self._marks.setdefault(queue, [None] * PRIORITIES)
            if queue in missed:
                continue
            for priority, row in {row.priority: row for row in rows}.items():
                # After a full sweep it may lie further back than before: there is more behind it.
                marks[priority] = Mark(_moment(row.available_epoch), row.id)
        self._pay(reaches, jobs, began, ended)

    def _pay(self, reaches: Mapping[str, Reach], jobs: int, began: float, ended: float) -> None:
        seconds = ended - began
        whole = [queue for queue, reach in reaches.items() if reach == "whole"]
        near = [queue for queue, reach in reaches.items() if reach == "near"]
        if not whole and not near:
            self._usual.learn(seconds, jobs)
            return
        cost = self._usual.beyond(seconds, jobs)
        if whole:
            self._whole.done(whole, began, ended, cost)
            self._near.covered(whole, began)
        if near:
            self._near.done(near, began, ended, cost)


def _moment(epoch: float) -> datetime:
    """An instant; the beginning of time for what Python has no date for."""
    try:
        return datetime.fromtimestamp(epoch, UTC)
    except (OverflowError, ValueError):
        return START.at
