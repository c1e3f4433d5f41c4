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


class Rounds:
    """Where the rounds of one worker's queues stand."""

    def __init__(self) -> None:
        self._starts: dict[tuple[str, int], str] = {}
        self._marks: dict[tuple[str, int], Mark] = {}
        self._blanks_first = False

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
        return 0 if self._blanks_first else LANES + 1

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
        for queue in queues:
            for priority in range(PRIORITIES):
                place = (queue, priority)
                self._advance(place, ends.get(place), blanks.get(place, []))

    def _advance(
        self, place: tuple[str, int], end: ChooseJobsRow | None, taken: Sequence[Mark]
    ) -> None:
        """Move the beginning of a stretch behind what has been dealt with in it."""
        if end is None:
            self._marks.pop(place, None)
        elif len(taken) < end.blanks:  # there was no room for all
            if taken:
                self._marks[place] = max(taken)
        elif end.seen < STRETCH:
            self._marks.pop(place, None)
        else:
            self._marks[place] = Mark(end.available_at, end.id)
