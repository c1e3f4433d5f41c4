"""Whose turn it is: where a claim that tells tenants apart begins its round.

Such a claim goes from tenant to tenant in their order in the index, a bounded number of them, takes
of each what its limits leave, and begins behind the tenant that the one before has ended with.
Jobs without a tenant are in no such order: a stretch of all due jobs is looked through for them, a
little further each time, and they come first and last by turns.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from jobs.worker.floors import START, Mark
from jobs.worker.turns import PRIORITIES
from jobs_sql.tenants import ChooseJobsRow

LANES: Final = 20
"""Tenants that one claim visits at most, of each queue and priority."""

STRETCH: Final = 200
"""Due jobs that one claim looks through for those without a tenant, of each queue and priority."""

WIDER: Final = 16
"""How many times as many a claim may look at after others that have found nothing."""

PATIENCE: Final = 8
"""Claims in a row that may find nothing before the rest is left to the next look."""


class Rounds:
    """Where the rounds of one worker's queues stand."""

    def __init__(self) -> None:
        self._starts: dict[tuple[str, int], str] = {}
        self._marks: dict[tuple[str, int], Mark] = {}
        self._blanks_first = False
        self._wider = 1
        self._in_vain = 0

    @property
    def lanes(self) -> int:
        """How many tenants the next claim visits at most."""
        return LANES * self._wider

    @property
    def stretch(self) -> int:
        """How many due jobs the next claim looks through at most."""
        return STRETCH * self._wider

    @property
    def unfinished(self) -> bool:
        """Whether the last one found nothing, but did not see everybody: look on at once."""
        return 0 < self._in_vain < PATIENCE

    def starts(self, queues: Sequence[str], orders: Sequence[Sequence[int]]) -> list[str]:
        """Behind which tenant each round begins: one a queue and priority, in the order given."""
        return [
            self._starts.get((queue, priority), "")
            for queue, order in zip(queues, orders, strict=True)
            for priority in order
        ]

    def floors(self, queues: Sequence[str], orders: Sequence[Sequence[int]]) -> list[Mark]:
        """Where each stretch begins, in the same order."""
        return [
            self._marks.get((queue, priority), START)
            for queue, order in zip(queues, orders, strict=True)
            for priority in order
        ]

    def blanks_hop(self) -> int:
        """The place of jobs without a tenant in this round: before all, or behind them."""
        self._blanks_first = not self._blanks_first
        return 0 if self._blanks_first else self.lanes + 2  # behind the last, and going back

    def learn(self, queues: Sequence[str], rows: Sequence[ChooseJobsRow]) -> None:
        """Note how far the rounds have come.

        Args:
            queues: Those that were asked.
            rows: What ``ChooseJobs`` has answered.
        """
        blanks: dict[tuple[str, int], list[Mark]] = {}
        ends: dict[tuple[str, int], ChooseJobsRow] = {}
        for row in rows:
            place = (row.queue, row.priority)
            if row.kind == "round":
                self._starts[place] = row.tenant
            elif row.kind == "stretch":
                ends[place] = row
            elif not row.tenant:
                blanks.setdefault(place, []).append(Mark(row.available_at, row.id))
        stretch = self.stretch
        self._widen(rows)
        for queue in queues:
            for priority in range(PRIORITIES):
                place = (queue, priority)
                self._advance(place, ends.get(place), blanks.get(place, []), stretch)

    def _widen(self, rows: Sequence[ChooseJobsRow]) -> None:
        """Where nothing was found and not everybody was seen the next claim sees more."""
        limits = {"round": self.lanes, "stretch": self.stretch}
        found = any(row.kind == "job" for row in rows)
        if not found and any(row.seen >= limits[row.kind] for row in rows):
            self._wider = min(WIDER, self._wider * 4)
            self._in_vain += 1
        else:
            self._wider, self._in_vain = 1, 0

    def _advance(
        self,
        place: tuple[str, int],
        end: ChooseJobsRow | None,
        taken: Sequence[Mark],
        stretch: int,
    ) -> None:
        """Move the beginning of a stretch behind what has been dealt with in it."""
        if end is None:
            self._marks.pop(place, None)
        elif len(taken) < end.blanks:  # there was no room for all
            if taken:
                self._marks[place] = max(taken)
        elif end.seen < stretch:
            self._marks.pop(place, None)
        else:
            self._marks[place] = Mark(end.available_at, end.id)
