"""The worker: claim, run, settle, and stop without losing anything."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from types import FrameType, TracebackType
from typing import Literal, Self

import psycopg

from jobs.errors import ConfigError
from jobs.registry import Registry
from jobs.worker.config import configure
from jobs.worker.execution import Executor
from jobs.worker.held import Held, Holding, Outcome, hold
from jobs.worker.link import Link, Target
from jobs.worker.pace import Pace
from jobs.worker.renewer import Renewer
from jobs.worker.settler import Settler
from jobs.worker.threads import Threads
from jobs_sql.claim import ClaimJobsRow, claim_jobs_async

logger = logging.getLogger("jobs.worker")

State = Literal["idle", "running", "draining", "stopped"]

# No claim while this many outcomes wait for their answer: the database cannot keep up.
_SETTLE_BACKLOG = 2_000
_CLAIM_TIMEOUT = 15.0
_CLAIM_GRACE = 5.0
_CANCEL_GRACE = 2.0
_FLUSH_GRACE = 5.0
_RESCUE_LIMIT = 100


@dataclass(slots=True)
class WorkerStats:
    """What a worker has done since it started.

    Attributes:
        name: Label of the worker.
        state: idle (not started), running, draining or stopped.
        in_flight: Jobs claimed and not settled yet.
        claimed: Claims, rescued jobs included.
        completed: Jobs that ended well.
        retried: Failed attempts that leave the job ready for another.
        ended: Jobs that ended as dead, failed or cancelled by a settle of this worker.
        buried: Jobs whose lease had lapsed on their last attempt, ended by a claim of this worker.
        released: Jobs handed back without using an attempt (drain, unknown name).
        lost: Runs whose lease was lost; nothing of them was recorded.
    """

    name: str
    state: State = "idle"
    in_flight: int = 0
    claimed: int = 0
    completed: int = 0
    retried: int = 0
    ended: int = 0
    buried: int = 0
    released: int = 0
    lost: int = 0


class Worker:
    """Runs the jobs of a registry.

    In an application, on its event loop::

        async with jobs.Worker(dsn, registry, queues={"onboarding": 10, "default": 50}):
            ...                                     # serves until the block ends, then drains

    As a process of its own: ``await worker.run()`` serves until SIGTERM or SIGINT.

    The worker opens three connections of its own: one claims, one settles, one renews leases from a
    thread. It never borrows from the application's pool.
    """

    def __init__(
        self,
        database: object,
        registry: Registry,
        queues: Mapping[str, int] | Iterable[str] | None = None,
        *,
        name: str | None = None,
        lease: timedelta = timedelta(seconds=30),
        poll: timedelta = timedelta(milliseconds=250),
        idle_poll: timedelta = timedelta(seconds=2),
        drain: timedelta = timedelta(seconds=30),
    ) -> None:
        """
        Args:
            database: A connection string, or a psycopg pool whose connection string is used.
            registry: The jobs this process knows.
            queues: Slots for each queue: how many of its jobs may run at the same time here. A
                list of names gives each 5. Default: 5 slots on the queue ``default``.
            name: Label in rows and logs. Default: host, process id and a random part.
            lease: How long a claim lasts unless renewed; it is renewed every third of it. A job of
                a process that dies is started elsewhere after at most this long plus one poll.
            poll: First wait after a claim that found nothing; doubles up to ``idle_poll``.
            idle_poll: Longest wait between two looks at an empty queue.
            drain: How long a stop waits for running jobs before it cancels and hands them back.

        Raises:
            ConfigError: A setting is unusable; the message names it.
            ClaimQueuesEmpty: No queue has a slot.
        """
        if not isinstance(registry, Registry):
            raise ConfigError(
                f"registry is a {type(registry).__name__}, expected a jobs.Registry",
                fix="Write jobs.Registry.of(module) with the modules that declare your jobs.",
            )
        self.config = configure(
            name=name, queues=queues, lease=lease, poll=poll, idle_poll=idle_poll, drain=drain
        )
        self.name = self.config.name
        self._target = Target.of(database, f"jobs:{self.name}"[:63])
        self._registry = registry
        self._stats = WorkerStats(self.name)
        self._holding = Holding()
        self._running: dict[str, int] = dict.fromkeys(self.config.queues, 0)
        self._tasks: set[asyncio.Task[None]] = set()
        self._stopping = asyncio.Event()
        self._hurrying = asyncio.Event()
        self._hungry: set[str] = set()
        self._choked = False
        self._idle_stop = False
        self._again = asyncio.Event()
        self._teardown: asyncio.Task[None] | None = None

    # -- life ------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Connect and begin to claim.

        Raises:
            SchemaOutdated: The schema is missing or too old.
            psycopg.OperationalError: The database cannot be reached.
            ConfigError: The worker has been started before.
        """
        if self._stats.state != "idle":
            raise ConfigError(
                f"worker {self.name} is {self._stats.state} and cannot be started again",
                fix="Make a new Worker.",
            )
        self._claims, self._settles = Link(self._target), Link(self._target)
        self._threads = Threads(f"jobs-{self.name}")
        self._executor = Executor(self._registry, self._threads, self.config.unknown_delay)
        self._settler = Settler(self._settles, self.name, self._answered)
        self._renewer = Renewer(
            self._target, self._holding, self.name, self.config.lease, self._lost
        )
        try:
            await self._claims.open()
            await self._settles.open()
        except BaseException:
            await self._claims.close()
            await self._settles.close()
            raise
        self._stats.state = "running"
        self._renewer.start()
        self._settle_task = asyncio.create_task(self._settler.run(), name="jobs:settle")
        self._claim_task = asyncio.create_task(self._claim_loop(), name="jobs:claim")
        self._teardown = asyncio.create_task(self._run_down(), name="jobs:drain")
        logger.info(
            "worker %s serves %s with %d jobs",
            self.name,
            ", ".join(f"{queue} ({slots})" for queue, slots in self.config.queues.items()),
            len(self._registry),
            extra={"event": "jobs.worker.started", "worker": self.name},
        )

    def stop(self) -> None:
        """Ask for a drain: claim nothing more, let running jobs end, hand back the rest.

        Returns at once; `wait` waits for the end. Asking again hurries: running jobs are cancelled
        and handed back now.
        """
        if self._stopping.is_set():
            self._hurrying.set()
        self._stopping.set()
        self._again.set()

    async def wait(self) -> None:
        """Wait until the worker has stopped. Every step of the drain is bounded in time."""
        if self._teardown is not None:
            await asyncio.shield(self._teardown)

    async def run(self, *, signals: bool = True) -> None:
        """Start, serve until stopped, drain.

        Args:
            signals: Whether SIGTERM and SIGINT ask for a stop, and a second one hurries it.
        """
        await self.start()
        with self._signals() if signals else contextlib.nullcontext():
            await self._drained()

    async def run_until_idle(self) -> WorkerStats:
        """Start, run what is due, stop when nothing is due any more, and say what was done.

        Jobs that are due later (delayed, or retrying) are left for another time.
        """
        self._idle_stop = True
        await self.start()
        await self._drained()
        return self.stats()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()
        await self.wait()

    def stats(self) -> WorkerStats:
        """A copy of the figures so far."""
        self._stats.in_flight = len(self._holding)
        return WorkerStats(**{f: getattr(self._stats, f) for f in WorkerStats.__slots__})

    async def _drained(self) -> None:
        """Wait for the end; a cancellation from outside asks for a hurried drain first."""
        try:
            await self.wait()
        except asyncio.CancelledError:
            self.stop()
            self.stop()
            await self.wait()
            raise

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        """Let SIGTERM and SIGINT ask for a stop while the block lasts."""
        loop = asyncio.get_running_loop()
        caught = (signal.SIGTERM, signal.SIGINT)
        try:
            for number in caught:
                loop.add_signal_handler(number, self.stop)
        except (NotImplementedError, RuntimeError, ValueError):
            # A loop without signal support (Windows): Python's own handlers run in the main thread.
            def handler(_number: int, _frame: FrameType | None) -> None:
                loop.call_soon_threadsafe(self.stop)

            previous = {number: signal.signal(number, handler) for number in caught}
            try:
                yield
            finally:
                for number, before in previous.items():
                    signal.signal(number, before)
            return
        try:
            yield
        finally:
            for number in caught:
                loop.remove_signal_handler(number)

    # -- claiming --------------------------------------------------------------------------------

    def _room(self) -> dict[str, int]:
        """Free slots of each queue that has any."""
        self._choked = self._settler.backlog >= _SETTLE_BACKLOG
        if self._choked:
            return {}
        slots = self.config.queues
        return {q: slots[q] - n for q, n in self._running.items() if n < slots[q]}

    async def _claim_loop(self) -> None:
        pace = Pace(self.config.poll.total_seconds(), self.config.idle_poll.total_seconds())
        look_every = min(1.0, self.config.lease.total_seconds() / 6)
        looked_at = float("-inf")
        while not self._stopping.is_set():
            self._again.clear()
            room = self._room()
            if not room:
                await self._again.wait()
                continue
            now = time.monotonic()
            rescue = now - looked_at >= look_every
            try:
                rows = await self._claim(room, rescue)
            except Exception as error:  # the loop outlives whatever one claim raises
                self._claim_failed(error)
                await self._sleep(pace.failed())
                continue
            if rescue:
                looked_at = now
            taken = self._take(rows, now)
            # A full answer means that more may be due: look again as soon as a slot is free.
            self._hungry = {queue for queue, free in room.items() if taken.get(queue, 0) >= free}
            wait = pace.found() if rows else pace.nothing()
            if self._idle_stop and not rows and not self._holding:
                self.stop()
            elif not self._hungry & self._room().keys():
                await self._sleep(wait)

    async def _claim(self, room: dict[str, int], rescue: bool) -> list[ClaimJobsRow]:
        queues = sorted(room)
        return await self._claims.call(
            lambda conn: claim_jobs_async(
                conn,
                queues=queues,
                free=[room[queue] for queue in queues],
                rescue=rescue,
                rescue_limit=_RESCUE_LIMIT,
                worker=self.name,
                lease=self.config.lease,
            ),
            _CLAIM_TIMEOUT,
        )

    def _claim_failed(self, error: Exception) -> None:
        expected = isinstance(error, psycopg.OperationalError | TimeoutError | OSError)
        logger.log(
            logging.WARNING if expected else logging.ERROR,
            "claiming failed: %s",
            error,
            exc_info=None if expected else error,
            extra={"event": "jobs.worker.claim_failed", "worker": self.name},
        )

    def _take(self, rows: list[ClaimJobsRow], asked_at: float) -> dict[str, int]:
        """Start what was claimed, report what was buried; return the number taken by queue."""
        taken: dict[str, int] = {}
        rows.sort(key=lambda row: (row.priority, row.available_at, row.id))
        for row in rows:
            if row.verdict == "buried":
                self._stats.buried += 1
                logger.error(
                    "job %s (%s) was ended: its lease lapsed in attempt %d of %d",
                    row.id,
                    row.name,
                    row.attempt,
                    row.max_attempts,
                    extra={"event": "jobs.worker.buried", "job": str(row.id)},
                )
                continue
            self._stats.claimed += 1
            taken[row.queue] = taken.get(row.queue, 0) + 1
            job = hold(row, self.name, asked_at)
            self._holding.add(job)
            if self._stopping.is_set():
                job.outcome = Outcome("released")  # claimed while the stop came: never begun
                self._settler.submit(job)
            else:
                self._begin(job)
        return taken

    def _begin(self, job: Held) -> None:
        self._running[job.row.queue] += 1
        task = asyncio.get_running_loop().create_task(
            self._executor.run(job), name=f"job:{job.row.name}:{job.row.id}"
        )
        job.task = task
        self._tasks.add(task)
        task.add_done_callback(lambda _: self._ended(job))

    def _ended(self, job: Held) -> None:
        if job.task is not None:
            self._tasks.discard(job.task)
        queue = job.row.queue
        self._running[queue] -= 1
        if job.task is not None and job.task.cancelled() and job.stop_reason == "drain":
            job.outcome = Outcome("released")  # cancelled before its first step
        if job.outcome is not None and job.stop_reason != "abandoned":
            self._settler.submit(job)
        else:
            self._holding.remove(job)
        if queue in self._hungry or self._idle_stop:
            self._again.set()

    async def _sleep(self, seconds: float) -> None:
        """Wait, unless a slot worth filling or a stop ends the wait."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._again.wait()

    # -- answers ---------------------------------------------------------------------------------

    def _answered(self, job: Held, verdict: str, state: str | None) -> None:
        """The database has answered a settle (called by the settler)."""
        self._holding.remove(job)
        if self._choked or self._idle_stop:
            self._again.set()
        stats, outcome = self._stats, job.outcome
        if verdict == "repeated" and job.run._completing:
            stats.completed += 1
            return
        if verdict == "lost":
            stats.lost += 1
            logger.error(
                "the outcome of job %s (%s) was not recorded: its lease had been lost",
                job.id,
                job.row.name,
                extra={"event": "jobs.settle.unowned", "job": str(job.id)},
            )
            return
        kind = outcome.kind if outcome is not None else "refused"
        if kind == "completed":
            stats.completed += 1
        elif kind == "released":
            stats.released += 1
        elif state is None or state == "ready":
            stats.retried += 1
        else:
            stats.ended += 1
            logger.error(
                "job %s (%s) ended as %s in attempt %d of %d",
                job.id,
                job.row.name,
                state,
                job.row.attempt,
                job.row.max_attempts,
                extra={"event": "jobs.worker.ended", "job": str(job.id), "state": state},
            )

    def _lost(self, job: Held, reason: str) -> None:
        """The renewals have found a lease lost (called in the event loop)."""
        task = job.task
        if task is None or task.done() or job.stop_reason is not None or job.run._completing:
            return  # its settle, or its own transaction, will be told
        self._stats.lost += 1
        logger.error(
            "job %s (%s) lost its lease and is cancelled: %s",
            job.id,
            job.row.name,
            reason,
            extra={"event": "jobs.worker.lease_lost", "job": str(job.id)},
        )
        job.stop_reason = "lost"
        job.run._cancelled.set()
        self._holding.remove(job)
        task.cancel()

    # -- stopping --------------------------------------------------------------------------------

    async def _run_down(self) -> None:
        """Wait for a stop, then: claim in flight, running jobs, settles, renewals, connections."""
        await self._stopping.wait()
        self._stats.state = "draining"
        logger.info(
            "worker %s drains %d jobs",
            self.name,
            len(self._holding),
            extra={"event": "jobs.worker.draining", "worker": self.name},
        )
        try:
            await self._end_claim()
            await self._end_jobs()
            if not await self._settler.flush(_FLUSH_GRACE):
                logger.error(
                    "worker %s leaves %d outcomes unsettled: their leases will lapse",
                    self.name,
                    self._settler.backlog,
                    extra={"event": "jobs.worker.unsettled", "worker": self.name},
                )
        finally:
            self._settle_task.cancel()
            self._claim_task.cancel()
            await asyncio.wait({self._settle_task, self._claim_task}, timeout=_CANCEL_GRACE)
            await self._renewer.stop()
            self._threads.close()
            await self._claims.close()
            await self._settles.close()
            self._stats.state = "stopped"
        logger.info(
            "worker %s has stopped: %d completed, %d retried, %d handed back",
            self.name,
            self._stats.completed,
            self._stats.retried,
            self._stats.released,
            extra={"event": "jobs.worker.stopped", "worker": self.name},
        )

    async def _end_claim(self) -> None:
        """Wait out the claim in flight.

        One that hangs is cancelled on the server, so that it cannot claim for a dead worker.
        """
        self._again.set()
        done, _ = await asyncio.wait({self._claim_task}, timeout=_CLAIM_GRACE)
        if not done:
            await self._claims.interrupt(_CANCEL_GRACE)
            await asyncio.wait({self._claim_task}, timeout=_CANCEL_GRACE)

    async def _end_jobs(self) -> None:
        if not self._tasks:
            return
        hurry = asyncio.create_task(self._hurrying.wait())
        deadline = time.monotonic() + self.config.drain.total_seconds()
        while self._tasks and not hurry.done() and (left := deadline - time.monotonic()) > 0:
            await asyncio.wait(
                {hurry, *self._tasks}, timeout=left, return_when=asyncio.FIRST_COMPLETED
            )
        hurry.cancel()
        if not self._tasks:
            return
        for job in self._holding.snapshot():
            if job.task is not None and not job.task.done() and job.stop_reason is None:
                job.stop_reason = "drain"
                job.run._cancelled.set()
                job.task.cancel()
        await asyncio.wait(set(self._tasks), timeout=_CANCEL_GRACE)
        for job in self._holding.snapshot():
            if job.task is not None and not job.task.done():
                job.stop_reason = "abandoned"
                self._holding.remove(job)
                logger.error(
                    "job %s (%s) does not stop and is left to its lease%s",
                    job.id,
                    job.row.name,
                    ": its thread is still running" if job.thread else "",
                    extra={"event": "jobs.worker.abandoned", "job": str(job.id)},
                )
