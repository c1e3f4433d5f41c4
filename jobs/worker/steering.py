"""What steers a claim beside the free slots: tenants, limits, priorities, floors.

One object a worker. `steer` says what goes into the statement, `learn` reads its answer. A worker
without limits and without a backlog sends what it would send without all this.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from jobs.worker.floors import Floors, Mark, Reach
from jobs.worker.limits import Grant, Limiter, Limits
from jobs.worker.tenants import LANES, STRETCH, Rounds
from jobs.worker.turns import STRICT, Turn, Turns
from jobs_sql.claim import ClaimJobsRow


class Steer(NamedTuple):
    """Arguments of ``ClaimJobs`` that say where to look, named as in its header.

    Lists have four entries a queue, in the order of the queues asked, or none.
    """

    turns: list[int]
    mosts: list[int]
    floor_ats: list[datetime]
    floor_ids: list[UUID]
    by_tenant: bool
    tenant_room: int
    tenants: list[str]
    tenant_rooms: list[int]
    lane_starts: list[str]
    lane_limit: int
    stretch: int
    blanks_hop: int


#: Every queue from its oldest due job, in strict order of priority, tenants not told apart.
STRAIGHT = Steer([], [], [], [], False, 0, [], [], [], 0, 0, 0)


class Steering:
    """Used in the event loop only. Times are monotonic seconds."""

    def __init__(self, limits: Limits | None) -> None:
        self.limiter = Limiter(limits or Limits())
        self._turns = Turns()
        self._floors = Floors()
        self._rounds = Rounds()
        self._reaches: dict[str, Reach] = {}

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
        return all(reach == "whole" for reach in self._reaches.values())

    def force(self) -> None:
        """Let the next claim look at all due jobs."""
        self._floors.force()

    def steer(self, room: Mapping[str, int], now: float) -> Steer:
        """Where the next claim is to look.

        Args:
            room: What it asks for, by queue, in the order in which it names them.
            now: The time.
        """
        queues = list(room)
        turns = [self._turns.turn(queue, count, now) for queue, count in room.items()]
        orders = [turn.order if turn else STRICT for turn in turns]
        steer = STRAIGHT
        if any(turns):
            steer = _turned(steer, turns, list(room.values()))
        tenants = self.limiter.tenant_room(now)
        if tenants is not None:
            self._reaches = dict.fromkeys(queues, "whole")
            steer = steer._replace(
                by_tenant=True,
                tenant_room=tenants.default,
                tenants=tenants.tenants,
                tenant_rooms=tenants.rooms,
                lane_starts=self._rounds.starts(queues, orders),
                lane_limit=LANES,
                stretch=STRETCH,
                blanks_hop=self._rounds.blanks_hop(),
            )
            return _from(steer, self._rounds.floors(queues, orders))
        self._reaches = self._floors.reach(queues, now)
        marks = self._floors.floors(self._reaches, orders)
        return steer if marks is None else _from(steer, marks)

    def learn(
        self,
        room: Mapping[str, int],
        rescue: bool,
        rows: Sequence[ClaimJobsRow],
        began: float,
        ended: float,
    ) -> list[ClaimJobsRow]:
        """Read the answer to what was steered last.

        Args:
            room: What was asked for.
            rescue: Whether lapsed leases were looked for.
            rows: The answer.
            began: When it was asked for.
            ended: When it was answered.

        Returns:
            The rows that are about jobs.
        """
        by_tenant = self.limiter.limits.by_tenant
        if by_tenant:
            self._rounds.learn(list(room), rows)
            rows = [row for row in rows if row.verdict != "passed"]
        if rescue:
            return list(rows)  # rescued jobs keep their old due times, and stand in no line
        found: dict[str, list[ClaimJobsRow]] = {queue: [] for queue in room}
        for row in rows:
            if row.verdict == "claimed":
                found[row.queue].append(row)
        for queue, count in room.items():
            self._turns.learn(queue, count, found[queue], ended)
        if not by_tenant:
            self._floors.learn(self._reaches, room, found, began, ended)
        return list(rows)

    def admit(self, row: ClaimJobsRow, now: float) -> Grant:
        """Count a claimed job against the limits."""
        return self.limiter.admit(row.queue, row.tenant, now)


def _turned(steer: Steer, turns: Sequence[Turn | None], room: Sequence[int]) -> Steer:
    every = [
        turn or Turn(STRICT, (count,) * len(STRICT))
        for turn, count in zip(turns, room, strict=True)
    ]
    return steer._replace(
        turns=[priority for turn in every for priority in turn.order],
        mosts=[most for turn in every for most in turn.most],
    )


def _from(steer: Steer, marks: Sequence[Mark]) -> Steer:
    return steer._replace(
        floor_ats=[mark.at for mark in marks], floor_ids=[mark.id for mark in marks]
    )
