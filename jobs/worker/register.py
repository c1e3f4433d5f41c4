"""What a worker tells the registry of workers: that it lives, and what it does.

For people to look at. Nothing of the worker depends on it, so nothing that goes wrong here is more
than a line in the log.
"""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Callable, Collection, Coroutine
from datetime import timedelta
from importlib import metadata
from typing import Any, Final, TypeVar
from uuid import UUID, uuid4

from psycopg import AsyncConnection

from jobs.service.link import Link
from jobs.worker.config import WorkerConfig
from jobs.worker.held import Holding
from jobs.worker.stats import WorkerStats
from jobs_sql.registry import mark_worker_async, record_worker_async, remove_worker_async

logger = logging.getLogger("jobs.worker")

T = TypeVar("T")

# Seconds between two signs of life. The row outlives two that fail.
BEAT_EVERY = 30.0
_LIFETIMES: Final = 3
# Between two tries where they fail again and again, a right that is missing for instance.
_LONGEST_PAUSE: Final = 600.0
_PRUNE_EVERY_BEATS: Final = 10
_MOST_RUNNING: Final = 100
TIMEOUT: Final = 15.0


class Registration:
    """The row of one worker in ``jobs.worker``."""

    def __init__(
        self,
        config: WorkerConfig,
        holding: Holding,
        stats: Callable[[], WorkerStats],
        stands_in: bool = True,
    ) -> None:
        """
        Args:
            config: Settings of the worker.
            holding: The jobs it holds.
            stats: Its figures so far.
            stands_in: Whether a sign of life that sees nothing due stands for a claim. Not for a
                worker that stops when its claims say that nothing is left.
        """
        self._stands_in = stands_in
        self.id: UUID = uuid4()
        self._config = config
        self._holding = holding
        self._stats = stats
        self._due_at = float("-inf")
        self._pause = BEAT_EVERY
        self._beats = 0
        self._failing = False

    @property
    def due(self) -> bool:
        """Whether it is time for a sign of life."""
        return time.monotonic() >= self._due_at

    async def beat(self, link: Link, looked_at: Collection[str]) -> bool:
        """Send a sign of life. Never raises but when it is cancelled.

        Args:
            link: Where to send it; no other call may be under way there.
            looked_at: Queues that may hold something for this worker.

        Returns:
            Whether these have to be looked at now: something is due there, or it is not known.
        """
        due = await self._send(link, lambda conn: self._describe(conn, looked_at))
        return due is not False or not self._stands_in

    async def drain(self, link: Link) -> None:
        """Say that the worker drains. Never raises but when it is cancelled.

        Args:
            link: Where to send it; no other call may be under way there.
        """
        if self._beats:
            await self._send(link, self._mark)

    async def _send(
        self, link: Link, statement: Callable[[AsyncConnection[Any]], Coroutine[Any, Any, T]]
    ) -> T | None:
        """Send a statement and note when the next one is due; None where it fails."""
        try:
            answer = await link.call(statement, TIMEOUT)
        except Exception as error:  # no reason not to claim
            self._due_at = time.monotonic() + self._pause
            logger.log(
                logging.DEBUG if self._failing else logging.WARNING,
                "worker %s cannot tell the registry of workers that it lives: %s",
                self._config.name,
                " ".join(str(error).split()),
                extra={"event": "jobs.worker.registry_failed", "worker": self._config.name},
            )
            self._failing = True
            self._pause = min(self._pause * 2, _LONGEST_PAUSE)
            return None
        self._failing, self._pause = False, BEAT_EVERY
        self._due_at = time.monotonic() + BEAT_EVERY
        return answer

    def _running(self) -> tuple[int, list[UUID], list[str]]:
        """How many jobs are held, and ids and names of some."""
        held = self._holding.snapshot()
        some = held[:_MOST_RUNNING]
        return len(held), [job.row.id for job in some], [job.row.name for job in some]

    async def _describe(self, conn: AsyncConnection[Any], looked_at: Collection[str]) -> bool:
        prune = self._beats % _PRUNE_EVERY_BEATS == 0
        self._beats += 1
        stats = self._stats()
        in_flight, ids, names = self._running()
        queues = self._config.queues
        due = await record_worker_async(
            conn,
            prune=prune,
            id=self.id,
            lifetime=_lifetime(),
            claimed=stats.claimed,
            completed=stats.completed,
            retried=stats.retried,
            ended=stats.ended,
            cancelled=stats.cancelled,
            buried=stats.buried,
            released=stats.released,
            lost=stats.lost,
            in_flight=in_flight,
            process=os.getpid(),
            state="running",
            name=self._config.name,
            host=_host(),
            version=_version(),
            queues=list(queues),
            slots=list(queues.values()),
            running_ids=ids,
            running_names=names,
            looked_at=sorted(looked_at),
        )
        return due is not False

    async def _mark(self, conn: AsyncConnection[Any]) -> None:
        in_flight, ids, names = self._running()
        await mark_worker_async(
            conn,
            lifetime=_lifetime(),
            in_flight=in_flight,
            running_ids=ids,
            running_names=names,
            id=self.id,
        )

    async def remove(self, link: Link, seconds: float) -> None:
        """Take the row away, if there may be one. Never raises but when it is cancelled.

        Args:
            link: Where to send it; no other call may be under way there.
            seconds: How long to wait for the answer.
        """
        if not self._beats:
            return
        try:
            await link.call(lambda conn: remove_worker_async(conn, id=self.id), seconds)
        except Exception as error:  # it expires
            logger.debug("worker %s stays in the registry: %s", self._config.name, error)


def _lifetime() -> timedelta:
    return timedelta(seconds=BEAT_EVERY * _LIFETIMES)


def _host() -> str:
    return socket.gethostname()[:255].replace("\x00", "") or "(unknown)"


def _version() -> str:
    try:
        return metadata.version("sql-jobs")
    except metadata.PackageNotFoundError:
        return "(unknown)"
