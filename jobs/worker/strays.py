"""The jobs of a claim whose answer was lost with its connection.

The database has given them to this process, which does not know. Left alone they cost an attempt
and the wait for their lease; so it asks for them and runs them as if the answer had arrived, under
the claim number that they have.

Only under a name that is this start's alone: what the rows say of their holder is its name.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Iterable
from datetime import timedelta
from typing import Final
from uuid import UUID

import psycopg

from jobs.service.link import Link
from jobs.worker.config import WorkerConfig
from jobs.worker.held import Held, Holding
from jobs_sql.claim import ClaimJobsRow
from jobs_sql.registry import find_lost_claims_async

logger = logging.getLogger("jobs.worker")

# Seconds after the failure. The first look is before the next claim. The others are for a claim
# that the server was still at: it gives up one whose process has gone within 2 s, and one that
# waits for a lock within 5 s.
_LOOKS: Final = (0.0, 2.5, 6.0)
# What the claim's time on the server may lie before the time that we think it was sent: the time of
# the look is taken there, ours here.
_SLACK: Final = 1.0
_MOST: Final = 10_000
_DISOWNED: Final = 10_000


class Strays:
    """Remembers that a claim may have landed unheard, and finds what it claimed."""

    def __init__(self, config: WorkerConfig, holding: Holding) -> None:
        self._config = config
        self._holding = holding
        self._asked_at = 0.0
        self._looks: list[float] = []
        self._disowned: deque[tuple[UUID, int]] = deque(maxlen=_DISOWNED)

    def disown(self, job: Held) -> None:
        """Nothing may be done about a job any more, although its row may say that it is ours."""
        self._disowned.append((job.id, job.claims))

    def failed(self, asked_at: float, error: Exception) -> None:
        """A claim has raised.

        Args:
            asked_at: Monotonic seconds when it was sent.
            error: What it raised.
        """
        if not self._config.own_name or not _may_have_landed(error):
            return
        now = time.monotonic()
        if not self._looks:
            self._asked_at = asked_at
        self._looks = [now + seconds for seconds in _LOOKS]

    @property
    def due(self) -> bool:
        """Whether it is time to look."""
        return bool(self._looks) and time.monotonic() >= self._looks[0]

    @property
    def asked_at(self) -> float:
        """Monotonic seconds when the claim was sent: the age of the leases of what is found."""
        return self._asked_at

    async def find(self, link: Link, seconds: float) -> list[ClaimJobsRow]:
        """Look once.

        Args:
            link: Where to ask. No claim may be under way.
            seconds: How long to wait for the answer.

        Returns:
            The jobs that this process was given and does not know of, in order of id.

        Raises as `Link.call`; then the look is still due.
        """
        # Before the look: a job that is settled meanwhile would be taken for a stray.
        known = self._known(self._holding.snapshot())
        within = time.monotonic() - self._asked_at + _SLACK
        rows = await link.call(
            lambda conn: find_lost_claims_async(
                conn,
                queues=sorted(self._config.queues),
                worker=self._config.name,
                within=timedelta(seconds=within),
                most=_MOST,
            ),
            seconds,
        )
        self._looks.pop(0)
        found = [
            ClaimJobsRow(verdict="claimed", **row._asdict())
            for row in rows
            if (row.id, row.claims) not in known
        ]
        if found:
            logger.warning(
                "the answer to a claim was lost; worker %s has found the %d jobs that it was given",
                self._config.name,
                len(found),
                extra={"event": "jobs.worker.claim_recovered", "jobs": len(found)},
            )
        return found

    def _known(self, held: Iterable[Held]) -> set[tuple[UUID, int]]:
        return {(job.id, job.claims) for job in held} | set(self._disowned)


def _may_have_landed(error: Exception) -> bool:
    """Whether a statement that raised this may have taken effect.

    Not where the server has refused it: that took everything back. A session that is ended from
    outside may be so between the commit and its answer.
    """
    if isinstance(error, psycopg.Error) and error.sqlstate is not None:
        return error.sqlstate.startswith(("57P", "08"))
    return isinstance(error, psycopg.OperationalError | TimeoutError | OSError)
