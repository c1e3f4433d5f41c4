"""The scheduler as a service."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import ClassVar, Final

from jobs.errors import ConfigError
from jobs.registry import Registry
from jobs.scheduler.dispatcher import Dispatcher
from jobs.scheduler.stats import SchedulerStats
from jobs.service.life import Service
from jobs.service.link import Link, Target
from jobs.service.settings import check_duration, check_name, default_name

logger = logging.getLogger("jobs.scheduler")

# Between two statements of a scheduler that has nothing to fire: six a minute.
REFRESH: Final = timedelta(seconds=10)
LEASE: Final = timedelta(seconds=30)
# Seconds of a drain for what was cancelled, and for the last statement.
CANCEL_GRACE: Final = 2.0


class Scheduler(Service):
    """Fires the tasks of a registry, and the schedules that were made at run time.

    In an application, on its event loop::

        async with jobs.Scheduler(dsn, registry):
            ...                                     # fires until the block ends

    As a process of its own: ``await scheduler.run()`` serves until SIGTERM or SIGINT.

    Run as many as you like: each occurrence fires once. Of those whose registries have the same
    names of tasks and jobs one leads, and fires; where it is gone another takes over, at once after
    a stop in order, else when a fire of it is 2 s late. Applications, and versions of one, with
    different tasks do not wait for each other.

    The scheduler opens one connection of its own and never borrows from the application's pool.
    """

    noun: ClassVar[str] = "scheduler"

    def __init__(
        self,
        database: object,
        registry: Registry,
        *,
        name: str | None = None,
        lease: timedelta = LEASE,
        refresh: timedelta = REFRESH,
        patience: timedelta = timedelta(seconds=30),
        drain: timedelta = timedelta(seconds=10),
    ) -> None:
        """
        Args:
            database: A connection string, or a psycopg pool whose connection string is used.
            registry: The tasks this process declares, and the jobs that schedules may enqueue.
            name: Label in rows and logs. Default: host, process id and a random part.
            lease: How long another one waits at most for a leader that does not answer, from 1
                second and more than ``refresh``. Usually it waits until 2 s after the next fire, or
                after the next of the statements of ``refresh``.
            refresh: How soon a changed schedule or pause acts, and how often the lease is renewed
                by one that fires nothing: one statement each time.
            patience: How long the function of a task may take. It runs in a thread; one that hangs
                is left to itself and stops its own task only.
            drain: How long a stop waits for the fire in flight.

        Raises:
            ConfigError: A setting is unusable; the message names it.
        """
        if not isinstance(registry, Registry):
            raise ConfigError(
                f"registry is a {type(registry).__name__}, expected a jobs.Registry",
                fix="Write jobs.Registry.of(module) with the modules that declare your tasks.",
            )
        if name is not None:
            check_name("name", name)
        check_duration("refresh", refresh, timedelta(milliseconds=10), timedelta(hours=1))
        check_duration("lease", lease, timedelta(seconds=1), timedelta(days=1))
        if lease <= refresh:
            raise ConfigError(f"lease is {lease}, expected more than refresh, which is {refresh}")
        check_duration("patience", patience, timedelta(milliseconds=10), timedelta(hours=1))
        check_duration("drain", drain, timedelta(0), timedelta(days=1))
        super().__init__(name or default_name())
        self._target = Target.of(database, f"jobs:{self.name}"[:63])
        self._registry = registry
        self._lease, self._refresh = lease, refresh.total_seconds()
        self._patience, self._grace = patience.total_seconds(), drain.total_seconds()
        self._stats = SchedulerStats(self.name)

    def stats(self) -> SchedulerStats:
        """A copy of the figures so far."""
        return replace(self._stats, state=self._state)

    # -- the parts of its life -------------------------------------------------------------------

    def _to_open(self) -> Sequence[Link]:
        return (Link(self._target),)

    def _begin(self, links: Sequence[Link]) -> None:
        self._link = links[0]
        self._dispatcher = Dispatcher(
            self._link,
            self._registry,
            self._stats,
            lease=self._lease,
            refresh=self._refresh,
            patience=self._patience,
        )
        self._task = asyncio.create_task(self._dispatcher.run(), name="jobs:schedule")

    def _say_started(self) -> None:
        logger.info(
            "scheduler %s knows %d tasks",
            self.name,
            len(self._registry.tasks),
            extra={"event": "jobs.scheduler.started", "scheduler": self.name},
        )

    def _say_stopped(self) -> None:
        logger.info(
            "scheduler %s has stopped: %d occurrences fired, %d jobs enqueued",
            self.name,
            self._stats.fired,
            self._stats.enqueued,
            extra={"event": "jobs.scheduler.stopped", "scheduler": self.name},
        )

    def _halt(self) -> None:
        self._dispatcher.stop()

    async def _drain(self) -> None:
        """Wait for the round in flight, then let another lead. One that hangs keeps the lease."""
        hurried = asyncio.create_task(self._hurrying.wait(), name="jobs:hurry")
        await asyncio.wait(
            {self._task, hurried}, timeout=self._grace, return_when=asyncio.FIRST_COMPLETED
        )
        hurried.cancel()
        if self._task.done():
            await self._dispatcher.resign(CANCEL_GRACE)
        else:
            await self._dispatcher.interrupt(CANCEL_GRACE)
            await asyncio.wait({self._task}, timeout=CANCEL_GRACE)

    async def _close(self) -> None:
        self._task.cancel()
        await asyncio.wait({self._task}, timeout=CANCEL_GRACE)
        await self._link.close()
