"""Concurrency keys in a worker: who is let out of their lines, and when.

A claim parks what a key has no room for, a settle lets the next one out. Neither sees what the
other is doing at the same moment, so whoever parked, freed a slot or ended a job of a key looks
again with a fresh snapshot after its own commit: `Slots.send`, between two claims. What a process
took along when it died is found by a sweep every few seconds.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Collection
from typing import Final
from uuid import UUID

from jobs.registry import Registry
from jobs.service.link import Link
from jobs_sql.claim import ClaimJobsRow
from jobs_sql.settle import SettleJobsRow
from jobs_sql.slot import promote_keys_async, sweep_slots_async
from jobs_sql.wake import wake_queue_async

logger = logging.getLogger("jobs.worker")

LOOK_EVERY: Final = 3.0
"""Seconds between two claims that ask whether there is something to sweep."""

SWEEP_KEYS: Final = 500
"""Lines that one statement of a sweep looks at. It goes on until it has seen all."""

TIDY_EVERY: Final = 30.0
"""Seconds between two looks at slots that nobody waits for."""

TIDY_SLOTS: Final = 1_000
"""Slots that one look takes."""

TIMEOUT: Final = 15.0

# Others hold the rows at the head of a line: how often it is tried again, after which pauses.
_TRIES = 8
_FIRST_PAUSE = 0.02
_NOBODY = UUID(int=0)
_NOTES = frozenset({"parked", "again", "blocked", "held"})


class Slots:
    """What one worker knows of concurrency keys. Used in its event loop.

    Attributes:
        limited: Names of jobs with a declared limit, in the order of `limits`.
        limits: Their limits, which win over what the rows say.
    """

    def __init__(
        self,
        registry: Registry,
        queues: Collection[str],
        hear: Callable[[str], object],
        wake: Callable[[], object],
    ) -> None:
        """
        Args:
            registry: The jobs of the worker.
            queues: The queues it serves.
            hear: Called with a queue of those in which a job became ready.
            wake: Called when `send` has something to do.
        """
        declared = {h.name: h.concurrency.limit for h in registry if h.concurrency is not None}
        self.limited = list(declared)
        self.limits = list(declared.values())
        self._queues = queues
        self._hear = hear
        self._wake = wake
        self._serving = True
        self._keys: set[str] = set()
        self._tries: Counter[str] = Counter()
        #: Queues with a job that became ready, and which this worker does not claim.
        self._elsewhere: set[str] = set()
        self._look_at = 0.0
        self._sweeping = False
        self._after = ""
        self._tidy_at = time.monotonic() + TIDY_EVERY
        self._tidying = False
        self._tidied = _NOBODY

    @property
    def pending(self) -> bool:
        """Whether `send` has something to do."""
        return bool(self._keys or self._elsewhere) or self._sweeping or self._tidying

    def looks(self, now: float) -> bool:
        """Whether the claim made at monotonic ``now`` asks for lines as well."""
        if now < self._look_at:
            return False
        self._look_at = now + LOOK_EVERY
        return True

    def tidies(self, now: float) -> bool:
        """Whether it is time to look for slots that were left behind."""
        return now >= self._tidy_at

    def took(self, rows: list[ClaimJobsRow]) -> tuple[list[ClaimJobsRow], bool]:
        """Take note of what a claim says of keys.

        Returns:
            The rows that are jobs, and whether to claim again at once: what stood in front of other
            jobs has been parked, or a slot went to another claim.
        """
        if not any(row.verdict != "claimed" for row in rows):
            return rows, False  # by far the most of answers
        jobs, again = [], False
        for row in rows:
            if row.verdict in _NOTES:
                again = again or self._note(row.verdict, row.concurrency_key)
            else:
                jobs.append(row)
                if row.verdict != "claimed" and row.concurrency_key is not None:
                    self._keys.add(row.concurrency_key)
        return jobs, again

    def _note(self, verdict: str, key: str | None) -> bool:
        if verdict == "parked" and key is not None:
            self._keys.add(key)
        elif verdict == "blocked":
            self._sweeping = True
        elif verdict == "held" and time.monotonic() >= self._tidy_at:
            self._tidying = True
        return verdict in ("parked", "again")

    def settled(self, row: SettleJobsRow) -> None:
        """Take note of the answer to a settle."""
        for queue in row.promoted_queues or ():
            if queue is not None:
                self._ready(queue)
        if row.vacant_key is not None:
            self._keys.add(row.vacant_key)
        if self.pending:
            self._wake()

    def leave(self) -> None:
        """Nothing is claimed any more: others are to hear of what becomes ready."""
        self._serving = False

    async def send(self, link: Link) -> None:
        """Let out who has room, until nothing is left to serve.

        Raises as `Link.call`; what was not answered is tried again by the next call.
        """
        while self.pending:
            if self._keys or self._sweeping:
                await self._promote(link)
            if self._tidying:
                await self._tidy(link)
            while self._elsewhere:
                await self._tell(link, next(iter(self._elsewhere)))

    async def finish(self, link: Link, turn: asyncio.Lock, seconds: float) -> None:
        """`send` at the end of a worker. Never raises: others sweep up what is left.

        Args:
            link: Where to send.
            turn: Held meanwhile, so that nobody else uses it.
            seconds: How long that may take.
        """
        if not self.pending:
            return
        try:
            async with asyncio.timeout(seconds), turn:
                await self.send(link)
        except Exception as error:
            logger.warning("letting jobs out of the lines of their keys failed: %s", str(error))

    async def _promote(self, link: Link) -> None:
        keys, sweeping = sorted(self._keys), self._sweeping
        rows = await link.call(
            lambda conn: promote_keys_async(
                conn,
                keys=keys,
                after=self._after,
                most=SWEEP_KEYS if sweeping else 0,
                tidy=sweeping,
                limited=self.limited,
                limits=self.limits,
            ),
            TIMEOUT,
        )
        self._keys.difference_update(keys)
        cursor = ""
        again = set()
        for row in rows:
            if row.verdict == "cursor":
                cursor = row.concurrency_key
            elif row.verdict == "again":
                again.add(row.concurrency_key)
            elif row.queue is not None:
                self._ready(row.queue)
        if sweeping:
            self._after, self._sweeping = cursor, bool(cursor)
        for key in set(self._tries) - again:
            if key in keys:
                del self._tries[key]
        for key in again:
            self._later(key)

    def _later(self, key: str) -> None:
        """Try a key again, whose line others hold rows of. In the end the sweep will do."""
        self._tries[key] += 1
        if self._tries[key] > _TRIES:
            del self._tries[key]
            return
        pause = _FIRST_PAUSE * 2.0 ** (self._tries[key] - 1)
        asyncio.get_running_loop().call_later(pause, self._now, key)

    def _now(self, key: str) -> None:
        self._keys.add(key)
        self._wake()

    async def _tidy(self, link: Link) -> None:
        rows = await link.call(
            lambda conn: sweep_slots_async(conn, after=self._tidied, most=TIDY_SLOTS), TIMEOUT
        )
        self._keys.update(row.concurrency_key for row in rows if row.concurrency_key is not None)
        left = [row.cursor for row in rows if row.cursor is not None]
        self._tidied, self._tidying = (left[0], True) if left else (_NOBODY, False)
        self._tidy_at = time.monotonic() + TIDY_EVERY

    def _ready(self, queue: str) -> None:
        """A job of a queue was let out of its line."""
        if self._serving and queue in self._queues:
            self._hear(queue)
        else:
            self._elsewhere.add(queue)

    async def _tell(self, link: Link, queue: str) -> None:
        await link.call(lambda conn: wake_queue_async(conn, queue=queue), TIMEOUT)
        self._elsewhere.discard(queue)
