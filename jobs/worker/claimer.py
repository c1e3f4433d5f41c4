"""The claim loop: ask for due jobs, as many as `Demand` says, again and again."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from operator import attrgetter
from random import uniform
from typing import Any

import psycopg
from psycopg import AsyncConnection

from jobs.errors import JobsError
from jobs.service.errands import Errands
from jobs.service.link import Link
from jobs.service.listener import Errand
from jobs.service.pace import Pace
from jobs.worker.config import WorkerConfig
from jobs.worker.demand import Ask, Demand
from jobs.worker.register import BEAT_EVERY, Registration
from jobs.worker.slots import Slots
from jobs.worker.steering import Steer
from jobs.worker.strays import Strays
from jobs_sql.claim import ClaimJobsRow, claim_jobs_async
from jobs_sql.counter import fold_counters_async
from jobs_sql.tenants import choose_jobs_async
from jobs_sql.wake import prune_wakes_async

logger = logging.getLogger("jobs.worker")

TIMEOUT = 15.0
_RESCUE_LIMIT = 100
_PARK_LIMIT = 500
# Seconds between two prunings, and how many rows one may remove.
_PRUNE_EVERY = 60.0
_PRUNE_LIMIT = 10_000
# Before another claim that is worth it, in seconds.
_AT_ONCE = 0.001
# Retries that are looked for when they are due, not at the next poll: how soon in seconds, how many
# at the same time, and by how much late, so as not to come too early.
_EXPECT_WITHIN = 60.0
_MOST_EXPECTED = 1_000
_LATE = 0.001
# Order in which jobs of one claim start.
_IN_ORDER = attrgetter("priority", "available_epoch", "id.int")
_EXPECTED = (psycopg.OperationalError, TimeoutError, OSError, JobsError)


class Claimer:
    """One loop over one connection.

    A pass is one statement over every queue that wants jobs. After a full answer the next pass
    comes as soon as a slot of that queue is free, otherwise after a wait (see `Pace`).
    """

    def __init__(
        self,
        link: Link,
        config: WorkerConfig,
        demand: Demand,
        take: Callable[[list[ClaimJobsRow], float], None],
        choked: Callable[[], bool],
        busy: Callable[[], bool],
        idle: Callable[[], None],
        registration: Registration,
        strays: Strays,
        slots: Slots,
    ) -> None:
        """
        Args:
            link: Connection of this loop alone.
            config: Settings of the worker.
            demand: What to ask for.
            take: Called with the rows of an answer, in the order in which its jobs start, and the
                monotonic time when they were asked for.
            choked: Whether nothing should be claimed for now; `relieve` is called when that may
                be over.
            busy: Whether the process holds any job.
            idle: Called when a pass that began with nothing held has found nothing.
            registration: Tells the registry of workers that this one lives.
            strays: Finds what a claim got whose answer was lost.
            slots: What is to be sent for concurrency keys; it wakes the loop by `tend`.
        """
        self._link = link
        self._config = config
        self._demand = demand
        self._take = take
        self._choked = choked
        self._busy = busy
        self._idle = idle
        self._registration = registration
        self._strays = strays
        self._slots = slots
        self._pace = Pace(config.poll.total_seconds(), config.idle_poll.total_seconds())
        self._prune_at = time.monotonic() + uniform(0, _PRUNE_EVERY)
        self._errands = Errands()
        self._was_choked = False
        self._expected = 0
        self._looked = False
        self._woken = asyncio.Event()
        self._looks = True
        self._stopping = False

    def wake(self) -> None:
        """Look again now."""
        self._looks = True
        self._woken.set()

    def tend(self) -> None:
        """See to the concurrency keys now. That alone is no reason to claim."""
        self._woken.set()

    def hear(self, queue: str) -> None:
        """Something was enqueued, in a queue that may not be ours."""
        if self._demand.hears(queue):
            self._pace.heard()
            self.wake()

    def trust(self, live: bool) -> None:
        """Enqueues are heard from now on, so that looks may be rarer; or they are not."""
        config = self._config
        self._pace.ceiling = (config.live_poll if live else config.idle_poll).total_seconds()
        if not live:
            self._pace.heard()
            self.wake()

    def expect(self, delay: timedelta) -> None:
        """A job of ours waits again and is due after so long: look then, others may be faster."""
        seconds = max(delay.total_seconds(), 0.0)
        if seconds <= _EXPECT_WITHIN and self._expected < _MOST_EXPECTED:
            self._expected += 1
            asyncio.get_running_loop().call_later(seconds + _LATE, self._due_again)

    def _due_again(self) -> None:
        self._expected -= 1
        self.wake()

    def errand(self, errand: Errand) -> asyncio.Future[Exception | None]:
        """Send a statement before the next claim, which is made now; see `Errands.add`."""
        answer = self._errands.add(errand)
        self.wake()
        return answer

    def relieve(self) -> None:
        """Look again if nothing was claimed because of a choke that is over."""
        if self._was_choked and not self._choked():
            self.wake()

    def stop(self) -> None:
        """Claim nothing more; `run` returns after the claim in flight."""
        self._stopping = True
        self.wake()

    async def interrupt(self, grace: float) -> None:
        """Cancel the claim in flight on the server, so that it cannot claim for nobody."""
        await self._link.interrupt(grace)

    async def finish(
        self, task: asyncio.Task[None], hurrying: asyncio.Event, grace: float, cancel: float
    ) -> None:
        """Wait out the claim in flight. One that hangs is cancelled on the server.

        Args:
            task: Runs `run`, of which a stop has been asked.
            hurrying: Ends the wait.
            grace: Its seconds.
            cancel: Seconds for the cancelled one to end.
        """
        hurried = asyncio.create_task(hurrying.wait(), name="jobs:hurry")
        await asyncio.wait({task, hurried}, timeout=grace, return_when=asyncio.FIRST_COMPLETED)
        hurried.cancel()
        if not task.done():
            await self.interrupt(cancel)
            await asyncio.wait({task}, timeout=cancel)

    async def run(self) -> None:
        """Claim until stopped. Never raises."""
        due = 0.0
        while not self._stopping:
            self._woken.clear()
            try:
                await self._errands.run(self._link, TIMEOUT)
                await self._slots.send(self._link)
                if self._looks or time.monotonic() >= due:
                    self._looks = False
                    wait = 0.0 if self._stopping else self._until_next(await self._look())
                    due = time.monotonic() + wait
                wait = 0.0 if self._slots.pending else due - time.monotonic()
            except Exception as error:  # the loop outlives whatever one claim raises
                self._report(error)
                wait = self._pace.failed()
                due = time.monotonic() + wait
            if wait > 0:
                await self._sleep(wait)

    async def _look(self) -> float:
        """Claim once, after what is due beside it; return the seconds to wait unless woken.

        The first look is a claim, and the sign of life comes at once behind it.
        """
        if self._strays.due:
            self._take(await self._strays.find(self._link, TIMEOUT), self._strays.asked_at)
        if not self._looked:
            self._looked = True
            await self._pass()
            return 0.0
        if not self._registration.due:
            return await self._pass()
        if await self._registration.beat(self._link, self._config.queues):
            return await self._pass()
        # It has looked at the queues as well, so that an idle worker sends no more than its looks.
        return self._pace.nothing()

    def _ask(self, now: float) -> Ask | None:
        self._was_choked = self._choked()
        return None if self._was_choked else self._demand.ask(now)

    async def _pass(self) -> float:
        """Claim once; return the seconds to wait unless woken."""
        if self._stopping:
            return 0.0
        asked_at = time.monotonic()
        ask = self._ask(asked_at)
        if ask is None:
            return self._config.idle_poll.total_seconds()  # woken long before by a free slot
        busy = self._busy()  # asked before: a retry may become due behind the back of this claim
        rows, again = self._slots.took(await self._claim(ask))
        more = self._demand.answered(ask, rows, asked_at)
        self._take(rows, asked_at)
        if again:
            return 0.0
        if not rows:
            if not busy and not self._slots.pending:
                self._idle()
            return _AT_ONCE if self._demand.steering.unfinished else self._pace.nothing()
        await self._prune()
        wait = self._pace.found() if more else self._pace.filled()
        return 0.0 if self._demand.wants and not self._choked() else wait

    async def _prune(self) -> None:
        """Tidy up now and then, where there is something to do: an idle worker sends nothing."""
        now = time.monotonic()
        if now >= self._prune_at and not self._stopping:
            self._prune_at = now + _PRUNE_EVERY
            pruned = await self._link.call(
                lambda conn: prune_wakes_async(conn, most=_PRUNE_LIMIT), TIMEOUT
            )
            folded = await self._link.call(
                lambda conn: fold_counters_async(conn, most=_PRUNE_LIMIT), TIMEOUT
            )
            if pruned == _PRUNE_LIMIT or (folded or 0) >= _PRUNE_LIMIT:
                self._prune_at = now

    def _until_next(self, wait: float) -> float:
        """Not longer than until the next beat, or until a tenant that is too fast may go on."""
        wait, now = min(wait, BEAT_EVERY), time.monotonic()
        at = self._demand.steering.next_at(now)
        return wait if at is None else min(wait, max(_AT_ONCE, at - now))

    async def _claim(self, ask: Ask) -> list[ClaimJobsRow]:
        asked_at = time.monotonic()
        try:
            return await self._claim_steered(ask, asked_at)
        except Exception as error:
            self._strays.failed(asked_at, error)
            raise

    async def _claim_steered(self, ask: Ask, began: float) -> list[ClaimJobsRow]:
        steering = self._demand.steering
        ask = replace(ask, room={queue: ask.room[queue] for queue in sorted(ask.room)})
        if steering.by_tenant:
            rows = await self._link.call(lambda conn: self._by_tenant(conn, ask, began), TIMEOUT)
        else:
            steer = steering.steer(ask.room, began)
            sweep = self._slots.looks(began)
            rows = await self._link.call(lambda conn: self._send(conn, ask, steer, sweep), TIMEOUT)
        rows.sort(key=_IN_ORDER)
        steering.learn(ask.room, ask.rescue, rows, began, time.monotonic())
        return rows

    async def _by_tenant(
        self, conn: AsyncConnection[Any], ask: Ask, now: float
    ) -> list[ClaimJobsRow]:
        """Choose and claim: what is chosen stays locked in between."""
        steering = self._demand.steering
        room = ask.room
        sweep = self._slots.looks(now)
        async with conn.transaction():
            chosen = await choose_jobs_async(
                conn,
                queues=list(room),
                free=list(room.values()),
                **steering.choose(room, now)._asdict(),
                rescue=ask.rescue,
                sweep=sweep,
                tidy=sweep and self._slots.tidies(now),
            )
            steer, more = steering.chosen(room, chosen)
            if not steer.chosen and not more:
                return []  # so that an idle worker sends one statement a look
            return await self._send(conn, ask, steer, sweep)

    async def _send(
        self, conn: AsyncConnection[Any], ask: Ask, steer: Steer, sweep: bool
    ) -> list[ClaimJobsRow]:
        return await claim_jobs_async(
            conn,
            queues=list(ask.room),
            free=list(ask.room.values()),
            rescue=ask.rescue,
            rescue_limit=_RESCUE_LIMIT,
            limited=self._slots.limited,
            limits=self._slots.limits,
            park_limit=_PARK_LIMIT,
            sweep=sweep,
            ahead=ask.ahead,
            worker=self._config.name,
            lease=self._config.lease,
            **steer._asdict(),
        )

    def _report(self, error: Exception) -> None:
        if self._stopping:
            return  # most likely we have cancelled it, and nobody misses it
        expected = isinstance(error, _EXPECTED)
        logger.log(
            logging.WARNING if expected else logging.ERROR,
            "claiming failed: %s",
            str(error),
            exc_info=None if expected else error,
            extra={"event": "jobs.worker.claim_failed", "worker": self._config.name},
        )

    async def _sleep(self, seconds: float) -> None:
        """Wait, unless a slot worth filling or a stop ends the wait."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._woken.wait()
