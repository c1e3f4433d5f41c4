"""What steers a claim beside the free slots: tenants, limits, priorities, floors.

One object a worker. `steer` says what goes into the statement, `learn` reads its answer. A worker
that limits tenants makes a choice before each claim instead (`choose`, `chosen`). One without
limits and without a backlog sends what it would send without all this.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from jobs.worker.floors import Floors, Reach
from jobs.worker.held import Held
from jobs.worker.limits import Grant, Limiter, Limits
from jobs.worker.stats import WorkerStats
from jobs.worker.tenants import Rounds
from jobs.worker.turns import PRIORITIES, STRICT, Turn, Turns
from jobs_sql.claim import ClaimJobsRow
from jobs_sql.tenants import ChooseJobsRow


class Steer(NamedTuple):
    """Arguments of ``ClaimJobs`` that say where to look, named as in its header.

    Lists have four entries a queue, in the order of the queues asked, or none.
    """

    turns: list[int]
    mosts: list[int]
    floor_ats: list[datetime]
    floor_ids: list[UUID]
    chosen: list[UUID]


class Choice(NamedTuple):
    """Arguments of ``ChooseJobs`` beside queues and free slots, named as in its header."""

    turns: list[int]
    mosts: list[int]
    floor_ats: list[datetime]
    floor_ids: list[UUID]
    tenant_room: int
    tenants: list[str]
    tenant_rooms: list[int]
    lane_starts: list[str]
    lane_limit: int
    stretch: int
    blanks_hop: int


#: Every queue from its oldest due job, in strict order of priority.
STRAIGHT = Steer([], [], [], [], [])


class Steering:
    """Used in the event loop only. Times are monotonic seconds."""

    def __init__(self, limits: Limits) -> None:
        self.limiter = Limiter(limits)
        #: Whether there are limits, so that `begin` and `end` have something to do.
        self.counts = limits != Limits()
        self._grants: dict[Held, Grant] = {}
        self._turns = Turns()
        self._floors = Floors()
        self._rounds = Rounds()
        self._reaches: dict[str, Reach] = {}
        #: Whether the last choice passed over a tenant that may go on later.
        self.left_out = False

    def shrink(self, room: Mapping[str, int]) -> dict[str, int]:
        """What the limits of this process leave of what is wanted; queues without room are gone."""
        return self.limiter.shrink(room)

    @property
    def may_rescue(self) -> bool:
        """Whether lapsed jobs may be started here: not where a limit stops all jobs of tenants."""
        return not self.limiter.stops_tenants

    @property
    def whole(self) -> bool:
        """Whether what was steered last looks at all due jobs, so that nothing means nothing."""
        return not self.unfinished and all(r == "whole" for r in self._reaches.values())

    @property
    def unfinished(self) -> bool:
        """Whether the last choice found nothing, but has not seen everybody."""
        return self._rounds.unfinished

    def next_at(self, now: float) -> float | None:
        """When a tenant that is too fast now may go on, if any is."""
        return self.limiter.next_at(now)

    def force(self) -> None:
        """Let the next claim look at all due jobs."""
        self._floors.force()

    @property
    def by_tenant(self) -> bool:
        """Whether a claim is preceded by a choice, in one transaction with it."""
        return self.limiter.limits.by_tenant

    def choose(self, room: Mapping[str, int], now: float) -> Choice:
        """Where the choice before the next claim is to look.

        Args:
            room: What it asks for, by queue, in the order in which it names them.
            now: The time.
        """
        tenants = self.limiter.tenant_room(now)
        if tenants is None:
            raise AssertionError("tenants have no limit here")
        self.left_out = 0 in tenants.rooms and not self.limiter.stops_tenants
        turns, orders = self._go_through(room, now)
        queues = list(room)
        marks = self._rounds.floors(queues, orders)
        return Choice(
            *_flat(turns, list(room.values())),
            [mark.at for mark in marks],
            [mark.id for mark in marks],
            tenants.default,
            tenants.tenants,
            tenants.rooms,
            self._rounds.starts(queues, orders),
            self._rounds.lanes,
            self._rounds.stretch,
            self._rounds.blanks_hop(),
        )

    def chosen(self, room: Mapping[str, int], rows: Sequence[ChooseJobsRow]) -> tuple[Steer, bool]:
        """The claim of what a choice has found, and whether a claim of none has something to do."""
        of_jobs = [row for row in rows if row.kind != "more"]
        self._rounds.learn(list(room), of_jobs)
        self._reaches = dict.fromkeys(room, "whole")
        ids = [row.id for row in of_jobs if row.kind == "job"]
        steer = STRAIGHT._replace(mosts=[0] * len(room) * PRIORITIES, chosen=ids)
        return steer, len(of_jobs) < len(rows)

    def steer(self, room: Mapping[str, int], now: float) -> Steer:
        """Where the next claim is to look, where tenants are not told apart; as `choose`."""
        turns, orders = self._go_through(room, now)
        self._reaches = self._floors.reach(list(room), now)
        marks = self._floors.floors(self._reaches, orders) or ()
        return Steer(
            *_flat(turns, list(room.values())),
            [mark.at for mark in marks],
            [mark.id for mark in marks],
            [],
        )

    def _go_through(
        self, room: Mapping[str, int], now: float
    ) -> tuple[list[Turn | None], list[tuple[int, ...]]]:
        turns = [self._turns.turn(queue, count, now) for queue, count in room.items()]
        return turns, [turn.order if turn else STRICT for turn in turns]

    def learn(
        self,
        room: Mapping[str, int],
        rescue: bool,
        rows: Sequence[ClaimJobsRow],
        began: float,
        ended: float,
    ) -> None:
        """Read the answer to what was steered last.

        Args:
            room: What was asked for.
            rescue: Whether lapsed leases were looked for.
            rows: The answer, in the order in which its jobs start.
            began: When it was asked for.
            ended: When it was answered.
        """
        if rescue:
            return  # rescued jobs keep their old due times, and stood in no line
        found: dict[str, list[ClaimJobsRow]] = {queue: [] for queue in room}
        missed = set()
        for row in rows:
            if row.verdict == "claimed":
                found[row.queue].append(row)
            elif row.verdict == "again":  # some job of its queue was looked at and left ready
                missed.add(row.queue)
        for queue, count in room.items():
            self._turns.learn(queue, count, found[queue], ended)
        if not self.by_tenant:
            self._floors.learn(self._reaches, room, found, began, ended, missed)

    # -- the life of a job -----------------------------------------------------------------------

    def begin(self, job: Held, now: float) -> None:
        """Count a claimed job against the limits, if there are any."""
        if self.counts:
            self._grants[job] = self.limiter.admit(job.row.queue, job.row.tenant, now)

    def end(self, job: Held) -> bool:
        """Count a job no longer: it has ended, or will never begin. May be repeated.

        Returns:
            Whether a limit that was reached is not reached any more, so that a claim is worth it.
        """
        grant = self._grants.pop(job, None)
        if grant is None:
            return False
        return grant.release() if job.begun else grant.abandon()

    def size(self, figures: WorkerStats) -> None:
        """Write down how much is remembered."""
        figures.tenants_counted = self.limiter.tenants_counted
        figures.tenants_paced = self.limiter.tenants_paced
        figures.tenants_refused = self.limiter.tenants_refused


def _flat(turns: Sequence[Turn | None], room: Sequence[int]) -> tuple[list[int], list[int]]:
    """The order of the priorities, and how many of each; empty where all are strict."""
    if not any(turns):
        return [], []
    every = [
        turn or Turn(STRICT, (count,) * PRIORITIES) for turn, count in zip(turns, room, strict=True)
    ]
    return (
        [priority for turn in every for priority in turn.order],
        [most for turn in every for most in turn.most],
    )
