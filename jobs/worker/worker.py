"""The worker: claim, run, settle, and stop without losing anything."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Literal

from jobs.errors import ConfigError
from jobs.middleware import Middleware, checked_middleware
from jobs.registry import Registry
from jobs.run import Desk
from jobs.scoped import TENANT_SETTING, Sessions
from jobs.service.life import Service
from jobs.service.link import Link, Target, close_links
from jobs.service.listener import Listener, listening_target
from jobs.worker.claimer import Claimer
from jobs.worker.config import configure
from jobs.worker.crew import Crew
from jobs.worker.demand import Demand
from jobs.worker.execution import Executor
from jobs.worker.farewell import GRACE, Farewell, flush
from jobs.worker.held import COMPLETED, Held, Holding, Outcome
from jobs.worker.hooks import BACKLOG, Hooks
from jobs.worker.lane import Lane
from jobs.worker.limits import Limits
from jobs.worker.processes import Processes, checked_processes
from jobs.worker.register import Registration
from jobs.worker.renewer import Renewer
from jobs.worker.settler import CHOKED, Settler
from jobs.worker.slots import Slots
from jobs.worker.stats import WorkerStats, account, account_ended, ending
from jobs.worker.steering import Steering
from jobs.worker.strays import Strays
from jobs.worker.threads import Threads
from jobs_sql.claim import ClaimJobsRow

logger = logging.getLogger("jobs.worker")


class Worker(Service):
    """Runs the jobs of a registry.

    In an application, on its event loop::

        async with jobs.Worker(dsn, registry, queues={"onboarding": 10, "default": 50}):
            ...                                     # serves until the block ends, then drains

    As a process of its own: ``await worker.run()`` serves until SIGTERM or SIGINT.

    The worker opens four connections of its own: one claims, one settles, one renews leases from a
    thread, one listens for enqueues. For itself it never borrows from the application's pool.
    """

    noun = "worker"

    def __init__(
        self,
        database: object,
        registry: Registry,
        queues: Mapping[str, int] | Iterable[str] | None = None,
        *,
        name: str | None = None,
        lease: timedelta = timedelta(seconds=30),
        poll: timedelta = timedelta(milliseconds=250),
        idle_poll: timedelta | None = None,
        drain: timedelta = timedelta(seconds=30),
        listen: Literal[False] | str = "auto",
        limits: Limits | None = None,
        middleware: Iterable[Middleware] = (),
        pool: object = None,
        sync_pool: object = None,
        tenant_setting: str = TENANT_SETTING,
        processes: int | None = None,
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
            idle_poll: Longest wait between two looks at an empty queue. Default: 2 s, or 5 s while
                it is proven that enqueues are heard.
            drain: How long a stop waits for running jobs before it cancels and hands them back.
            listen: Whether to listen for enqueues, and where: ``"auto"`` where ``database`` is, a
                connection string (a direct one, where ``database`` leads to a pooler), or False.
                What cannot be heard is found by looking.
            limits: What this process may do at once of all queues, of a queue and of a tenant, and
                how fast, beside the slots.
            middleware: Functions of the run that return a context manager, entered around every
                run, the first outermost, outside of the middleware of the registry.
            pool: A psycopg ``AsyncConnectionPool`` of the application, or a function that returns
                an asynchronous context manager of a connection, for `Run.connection`.
            sync_pool: The same for synchronous functions: a psycopg ``ConnectionPool``.
            tenant_setting: The setting in which `Run.connection` says the tenant to PostgreSQL.
            processes: How many processes there are for jobs with ``executor="process"``, at most
                1,000. Default: one for each processor. They are started when needed.

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
            name=name,
            queues=queues,
            lease=lease,
            poll=poll,
            idle_poll=idle_poll,
            drain=drain,
            limits=limits,
        )
        super().__init__(self.config.name)
        shown = f"jobs:{self.name}"[:63]
        self._target = Target.of(database, shown)
        self._listen_target = listening_target(listen, self._target, shown)
        self._registry = registry
        self._stats = WorkerStats(self.name)
        self._holding = Holding()
        self._steering = Steering(self.config.limits)
        self._until_idle = False
        self._middleware = checked_middleware("middleware", middleware)
        self._sessions = Sessions(pool, sync_pool, tenant_setting)
        self._most_processes = checked_processes(processes, registry)

    # -- life ------------------------------------------------------------------------------------

    def _to_open(self) -> Sequence[Link]:
        return Link(self._target), Link(self._target)

    def _say_started(self) -> None:
        logger.info(
            "worker %s serves %s with %d jobs",
            self.name,
            ", ".join(f"{queue} ({slots})" for queue, slots in self.config.queues.items()),
            len(self._registry),
            extra={"event": "jobs.worker.started", "worker": self.name},
        )

    def _begin(self, links: Sequence[Link]) -> None:
        claims, settles = self._links = links
        self._threads = Threads(f"jobs-{self.name}")
        self._slots = Slots(
            self._registry,
            self.config.queues,
            lambda queue: self._claimer.hear(queue),
            lambda: self._claimer.tend(),
        )
        self._settler = Settler(
            settles, self.name, self._answered, self._completed, self._more, self._slots
        )
        self._desk = Desk(self._settler.reporter.changed, self._sessions)
        self._processes = Processes(self._most_processes)
        lease = self.config.lease.total_seconds()
        self._lanes = {queue: Lane(queue, slots) for queue, slots in self.config.queues.items()}
        executor = Executor(
            self._registry,
            self._threads,
            self.config.unknown_delay,
            self._middleware,
            self._processes,
        )
        self._hooks: Hooks | None = None
        if any(handle.on_settled is not None for handle in self._registry):
            self._hooks = Hooks(
                self._registry, self._threads, self.name, self._hook_failed, self._relieve
            )
        self._crew = Crew(executor, self._lanes, lease, self._ended)
        registration = Registration(self.config, self._holding, self.stats, not self._until_idle)
        self._farewell = Farewell(registration)
        self._strays = Strays(self.config, self._holding)
        self._claimer = Claimer(
            claims,
            self.config,
            Demand(self._lanes, min(1.0, lease / 6), self._steering),
            self._take,
            self._choked,
            self._busy,
            self._idle,
            registration,
            self._strays,
            self._slots,
        )
        self._renewer = Renewer(
            self._target, self._holding, self.name, self.config.lease, self._lost, self._crew.cancel
        )
        self._renewer.start()
        self._settle_task = asyncio.create_task(self._settler.run(), name="jobs:settle")
        self._claim_task = asyncio.create_task(self._claimer.run(), name="jobs:claim")
        self._listener: Listener | None = None
        if self._listen_target is not None and not self._until_idle:  # that one never waits
            self._listener = Listener(
                self._listen_target, self._claimer, self.name, cancelling=self._renewer.hurry
            )
            self._listener.start()

    def _halt(self) -> None:
        self._claimer.stop()
        self._slots.leave()
        self._crew.hand_back()

    def stop(self) -> None:
        """Ask for a drain: claim nothing more, let running jobs end, hand back the rest.

        Returns at once; `wait` waits for the end. Asking again hurries: running jobs are cancelled
        and handed back now. Call it in the event loop; from elsewhere use
        ``loop.call_soon_threadsafe(worker.stop)``.
        """
        super().stop()

    async def run(self, *, until_idle: bool = False, signals: bool = True) -> None:
        """Start, serve until stopped, drain.

        Args:
            until_idle: Stop by itself when nothing is due any more. Jobs that are due later
                (delayed, or retrying) are left for another time.
            signals: Whether SIGTERM and SIGINT ask for a stop, and a second one hurries it. Only
                possible in the main thread.

        Raises as `start`. When it is cancelled it hands back its jobs and closes first.
        """
        self._until_idle = until_idle
        await super().run(signals=signals)

    async def run_until_idle(self) -> WorkerStats:
        """Run what is due, and say what was done: for tests and scripts.

        As `run` with ``until_idle``, without signals.
        """
        await self.run(until_idle=True, signals=False)
        return self.stats()

    def stats(self) -> WorkerStats:
        """A copy of the figures so far."""
        figures = replace(self._stats, state=self._state, in_flight=len(self._holding))
        self._steering.size(figures)
        return figures

    # -- the life of a job -----------------------------------------------------------------------

    def _choked(self) -> bool:
        if self._hooks is not None and self._hooks.backlog >= BACKLOG:
            return True
        return self._settler.backlog >= CHOKED

    def _more(self) -> bool:
        return any(lane.waiting for lane in self._lanes.values())

    def _busy(self) -> bool:
        return len(self._holding) > 0 or (self._hooks is not None and self._hooks.backlog > 0)

    def _idle(self) -> None:
        """Nothing is held and nothing was found."""
        if not self._until_idle or self._stopping.is_set():
            return
        if not self._steering.whole:  # maybe because it did not look everywhere
            self._steering.force()
            self._claimer.wake()
        elif not self._steering.left_out:  # else they are looked at again when they may go on
            self.stop()

    def _take(self, rows: list[ClaimJobsRow], asked_at: float) -> None:
        """Start what was claimed, in the order given; report what was buried or refused."""
        name, desk = self.name, self._desk
        jobs = [Held(row, name, asked_at, desk) for row in rows if row.verdict == "claimed"]
        if len(jobs) < len(rows):
            for row in rows:
                if row.verdict != "claimed":
                    over = account_ended(self._stats, row)
                    if over is not None and self._hooks is not None:
                        self._hooks.tell(row, *over)
        self._stats.claimed += len(jobs)
        for older in self._holding.add(jobs):
            self._lost(older, "this worker has claimed the job again")
        now = time.monotonic()
        age = now - asked_at
        # Claimed so slowly that they may be somebody else's by now.
        late = age >= self.config.lease.total_seconds()
        if age > self.config.renew_every and not late:
            self._renewer.hurry()
        for job in jobs:
            if late or self._stopping.is_set():  # a stop may come from within this very loop
                job.outcome = Outcome("released")
                self._settler.submit(job)
                continue
            try:
                self._steering.begin(job, now)
                self._crew.begin(job)
            except Exception:  # one that cannot be begun must not take its neighbours along
                logger.exception("job %s (%s) could not be begun", job.id, job.row.name)
                job.outcome = Outcome("released", self.config.unknown_delay)
                self._steering.end(job)
                self._settler.submit(job)
        self._crew.rouse()

    def _ended(self, job: Held) -> None:
        """A run has ended, or never begins. Without an outcome nothing may be written about it."""
        if job.outcome is not None:
            self._settler.submit(job)
        else:
            self._let_go(job)
        steering = self._steering
        if (steering.counts and steering.end(job)) or self._lanes[job.row.queue].wants:
            self._claimer.wake()

    def _lost(self, job: Held, reason: str) -> None:
        """A lease is found lost; a job that has ended, or settled by itself, is left alone."""
        if not self._crew.lose(job):
            return
        if job.task is None and self._steering.end(job):  # it will not end: it has not begun
            self._claimer.wake()
        self._stats.lost += 1
        self._strays.disown(job)
        logger.error(
            "job %s (%s) lost its lease and is cancelled: %s",
            job.id,
            job.row.name,
            reason,
            extra={"event": "jobs.worker.lease_lost", "job": str(job.id)},
        )
        self._let_go(job)

    def _answered(self, job: Held, verdict: str, state: str | None) -> None:
        """The database has answered a settle (called by the settler)."""
        self._let_go(job)
        account(self._stats, job, verdict, state)
        if self._hooks is not None and (over := ending(job, verdict, state)) is not None:
            outcome = job.outcome or Outcome("completed")
            if over[0] == "completed":
                self._hooks.tell(job.row, *over, result=job.result)
            else:
                self._hooks.tell(job.row, *over, outcome.error_type, outcome.error_message)
        if verdict in ("lost", "refused"):
            self._strays.disown(job)
        elif state == "ready" and job.outcome is not None:
            self._ready_again(job.row.queue, job.outcome)

    def _completed(self, jobs: list[Held]) -> None:
        """What `_answered` does, for jobs that have landed as completed."""
        self._holding.remove(jobs)
        self._stats.completed += len(jobs)
        if self._hooks is not None:
            for job in jobs:
                outcome = job.outcome or COMPLETED
                self._hooks.tell(job.row, "completed", None, result=outcome.result)
        self._relieve()

    def _ready_again(self, queue: str, outcome: Outcome) -> None:
        """A job waits again: look for it when it is due, or let others know."""
        if outcome.kind in ("retry", "snoozed"):
            self._claimer.expect(outcome.delay)
        elif not outcome.delay:
            self._farewell.handed_back(queue)

    def _let_go(self, job: Held) -> None:
        """The process has nothing more to do with a job."""
        self._holding.remove((job,))
        self._relieve()

    def _hook_failed(self) -> None:
        self._stats.hooks_failed += 1

    def _relieve(self) -> None:
        """There is less to do than before: see whether that is reason enough for a claim."""
        if self._until_idle and not self._busy():
            self._claimer.wake()
        else:
            self._claimer.relieve()

    # -- stopping --------------------------------------------------------------------------------

    async def _drain(self) -> None:
        """Claim in flight, running jobs, settles; renewals go on meanwhile."""
        logger.info(
            "worker %s drains %d jobs",
            self.name,
            len(self._holding),
            extra={"event": "jobs.worker.draining", "worker": self.name},
        )
        seconds = self.config.drain.total_seconds()
        ends = time.monotonic() + seconds
        await asyncio.gather(
            self._end_claim(), self._crew.drain(seconds, self._hurrying, GRACE.cancel)
        )
        if not await flush(self._settler, ends, self._hurrying, GRACE.flush):
            self._stats.unsettled = self._settler.backlog
            logger.error(
                "worker %s leaves %d outcomes unsettled: their leases will lapse",
                self.name,
                self._settler.backlog,
                extra={"event": "jobs.worker.unsettled", "worker": self.name},
            )
        if self._claim_task.done():  # else it is still at that connection
            await self._slots.finish(self._links[0], self._farewell.turn, GRACE.flush)
        self._abandon()
        if self._hooks is not None:
            left = max(GRACE.hook, ends - time.monotonic())
            await self._hooks.drain(left, self._hurrying, GRACE.cancel)
        await self._farewell.end()

    def _say_stopped(self) -> None:
        logger.info(
            "worker %s has stopped: %d completed, %d retried, %d ended, %d handed back",
            self.name,
            self._stats.completed,
            self._stats.retried,
            self._stats.ended,
            self._stats.released,
            extra={"event": "jobs.worker.stopped", "worker": self.name},
        )

    async def _end_claim(self) -> None:
        """Wait out the claim in flight. One that hangs is cancelled on the server."""
        task = self._claim_task
        await self._claimer.finish(task, self._hurrying, GRACE.claim, GRACE.cancel)
        if task.done():
            self._farewell.begin(self._links[0])

    def _abandon(self) -> None:
        """Give up the runs that do not end, so that nothing waits for them any more."""
        for job in self._crew.abandon():
            self._stats.abandoned += 1
            self._holding.remove((job,))

    async def _close(self) -> None:
        """End what is left of the worker. Nothing here waits for the database."""
        # First what goes on without the event loop, should that end before we do.
        self._renewer.end()
        self._threads.close()
        self._settler.reporter.stop()
        await self._processes.close()
        self._claim_task.cancel()
        self._settle_task.cancel()
        await asyncio.wait({self._claim_task, self._settle_task}, timeout=GRACE.cancel)
        await self._renewer.stop()
        if self._listener is not None:
            await self._listener.stop()
        await close_links(self._links)
