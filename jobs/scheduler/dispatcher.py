"""The round of a scheduler: keep the lease, know the schedules, fire what is due."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Coroutine
from datetime import timedelta
from typing import Any, Final, TypeVar

import psycopg
from psycopg import AsyncConnection

from jobs.errors import SchemaOutdated
from jobs.registry import Registry
from jobs.scheduler.calling import Caller, Calls
from jobs.scheduler.clock import DatabaseClock
from jobs.scheduler.firing import send, storable
from jobs.scheduler.leading import arm, role_of
from jobs.scheduler.plan import Plan, UnusableError, hoped_for, plan, said_of, warning
from jobs.scheduler.stats import SchedulerStats
from jobs.service.link import Link
from jobs.timetable import Due
from jobs_sql import fire, leader
from jobs_sql import schedule as sql

logger = logging.getLogger("jobs.scheduler")

T = TypeVar("T")

# Fires of one schedule before the others have their turn.
BATCH: Final = 10
# Seconds for one statement.
STATEMENT_SECONDS: Final = 10.0
# Seconds that a leader may be late with what it has to do next until another takes over.
LATE: Final = 2.0
# Seconds that are promised at least.
_PROMISE: Final = 1.0
# Seconds behind the end of a lease that another looks at it, at most.
_BEHIND: Final = 0.2
# Seconds before a schedule that could not fire is tried again, doubling.
_RETRY_FIRST: Final = 1.0
_RETRY_MOST: Final = 60.0
# Seconds before it looks again whether others fire what it cannot, and their rows say so.
LOOK: Final = 300.0
# Seconds before the database is asked again after trouble with it, doubling.
_TROUBLE_FIRST: Final = 0.5
_TROUBLE_MOST: Final = 10.0

# Errors of a statement that say nothing about the connection or the server.
_ABOUT_THE_JOBS: Final = (
    psycopg.DataError,
    psycopg.IntegrityError,
    psycopg.errors.LockNotAvailable,
    psycopg.errors.DeadlockDetected,
    psycopg.errors.SerializationFailure,
    psycopg.errors.ProgramLimitExceeded,
)
_TROUBLE: Final = (psycopg.Error, TimeoutError, OSError, SchemaOutdated)


class Dispatcher:
    """Fires what is due while it leads; learns of changes with the statement that keeps the lease.

    Between two of those nothing is sent but fires: watermarks and the next occurrences are in
    memory, and the fence of a fire tells when they are not true any more.

    The lease ends a little after the next thing that the leader has to do, and each fire renews it
    in its own statement. So one that is gone is replaced when its next fire is late, and those that
    wait look at the lease when it ends and no sooner.

    One leads of those that can fire the same. What several of different roles can fire, each tries,
    and the fence lets one.
    """

    def __init__(
        self,
        link: Link,
        registry: Registry,
        stats: SchedulerStats,
        *,
        lease: timedelta,
        refresh: float,
        patience: float,
    ) -> None:
        self._link = link
        self._registry = registry
        self._me = {"role": role_of(registry), "holder": stats.name}
        self._stats = stats
        self._lease = lease
        self._refresh = refresh
        self._woken = asyncio.Event()
        self._calls = Calls(Caller(patience), self._woken.set)
        self._clock = DatabaseClock()
        self._plans: dict[str, Plan] = {}
        self._armed = False
        self._unchanged = True  # whether rows may still say what an earlier version declared
        self._loaded: str | None = None  # the fingerprint of what is in memory
        self._alone = False  # whether nobody leads in another role
        self._look_at = float("inf")  # by when to see whether the others fire the rest
        self._next_tick = 0.0
        self._leads_until = float("-inf")
        self._renew_at = float("inf")  # by when a leader has promised to fire or to tick
        self._trouble = 0
        self._stopping = False

    # -- life ------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Go round until stopped. Whatever the database does, it goes on."""
        try:
            await self._rounds()
            await self._calls.ended()
        finally:
            await self._calls.give_up()

    async def _rounds(self) -> None:
        while not self._stopping:
            self._woken.clear()
            try:
                await self._round()
                wait = self._wait()
                self._trouble = 0
            except _TROUBLE as error:
                wait = self._troubled(error)
            except Exception as error:
                logger.exception("a round failed", extra={"event": "jobs.scheduler.failed"})
                wait = self._troubled(error)
            if wait > 0:
                try:
                    async with asyncio.timeout(wait):
                        await self._woken.wait()
                except TimeoutError:
                    continue

    def stop(self) -> None:
        """Fire nothing more; `run` ends after the statement and the functions in flight."""
        self._stopping = True
        self._woken.set()

    async def interrupt(self, grace: float) -> None:
        """Cancel the statement in flight, so that it cannot take effect later."""
        await self._link.interrupt(grace)

    async def resign(self, seconds: float) -> None:
        """Let another take over at once, if this one leads. Never raises."""
        if not self.leading:
            return
        self._forget()
        try:
            await self._link.call(
                lambda conn: leader.resign_scheduler_async(conn, **self._me), seconds
            )
        except _TROUBLE as error:
            logger.info("the lease is left to lapse: %s", error)

    @property
    def leading(self) -> bool:
        """Whether this one fires, by its own memory."""
        return time.monotonic() < self._leads_until

    # -- one round -------------------------------------------------------------------------------

    async def _round(self) -> None:
        if time.monotonic() >= self._next_tick:
            await self._tick()
        if self._stats.leading and not self.leading:
            self._demote("its lease was not renewed in time")
            self._next_tick = 0.0
            return
        now = self._clock.now()
        due = [one for one in self._plans.values() if self._fires(one) and one.next_due <= now]
        for at, one in enumerate(sorted(due, key=lambda one: one.next_due), 1):
            for _ in range(BATCH):
                if self._stopping or not self.leading:
                    break
                if not await self._fire(one, last=at == len(due)):
                    break
        if self.leading and not self._stopping and time.monotonic() >= self._renew_at:
            await self._tick()  # what was promised came to nothing

    def _fires(self, one: Plan) -> bool:
        waits = one.paused or self._calls.pending(one.name)
        return not waits and one.not_before <= time.monotonic()

    def _wait(self) -> float:
        """Seconds until the next thing to do."""
        until = self._next_tick - time.monotonic()
        if self.leading:
            until = min(until, self._renew_at - time.monotonic(), self._next_fire())
        return max(until, 0.0)

    def _next_fire(self, without: Plan | None = None) -> float:
        """Seconds until the next fire, one schedule left out; may be negative."""
        return min(
            (
                max(self._clock.until(one.next_due), one.not_before - time.monotonic())
                for one in self._plans.values()
                if not one.paused and one is not without and not self._calls.pending(one.name)
            ),
            default=float("inf"),
        )

    def _next(self, one: Plan, due: Due) -> float:
        """Seconds until the next thing to do once this has fired."""
        return min(
            self._next_tick - time.monotonic(),
            self._next_fire(one),
            self._clock.until(one.table.after(due.watermark)),
        )

    def _promise(self, seconds: float) -> timedelta:
        """The lease for a leader that fires or ticks in so many seconds."""
        return min(self._lease, timedelta(seconds=max(seconds, _PROMISE) + LATE))

    def _renewed(self, at: float, promised: float, lease: timedelta) -> None:
        self._renew_at = at + max(promised, _PROMISE)
        self._leads_until = at + lease.total_seconds()

    async def _tick(self) -> None:
        """Keep or take the lease; while it is ours, see to it that the schedules are known."""
        if not self._armed:
            # The first sight of a task arms it, whoever leads.
            await self._arm(replace=False)
            self._armed = True
        promised = min(self._refresh, self._next_fire())
        asked_at = time.monotonic()
        row = await self._keep(promised)
        if row is None:
            return
        self._next_tick = asked_at + self._refresh
        if not self._stats.leading:
            self._stats.leading = True
            self._renew_at = 0.0  # once it knows
            self._loaded = None
            self._unchanged = True
            logger.info(
                "scheduler %s leads",
                self._stats.name,
                extra={"event": "jobs.scheduler.leads", "scheduler": self._stats.name},
            )
        if row.alone and not self._alone:
            # What those that are gone have declared, or could fire, is up to this one now.
            self._loaded, self._unchanged = None, True
        self._alone = row.alone
        if self._unchanged:
            self._unchanged = await self._arm(replace=True)
        if self._loaded != row.fingerprint or time.monotonic() >= self._look_at:
            # What is changed from now on differs from what this tick has seen, or is in the list
            # already and read once more.
            self._loaded = row.fingerprint if await self._load() else None

    async def _keep(self, promised: float) -> leader.TickSchedulerRow | None:
        """Keep or take the lease for so many seconds and a little; None where another leads."""
        lease, asked_at = self._promise(promised), time.monotonic()
        row = await self._call(
            lambda conn: leader.tick_scheduler_async(conn, lease=lease, **self._me)
        )
        assert row is not None
        self._clock.set(row.read_at)
        if row.leads:
            self._renewed(asked_at, promised, lease)
            return row
        ends = max(self._clock.until(row.expires_at), 0.0) + random.uniform(0.0, _BEHIND)
        self._next_tick = min(asked_at + self._refresh, time.monotonic() + ends)
        if self._stats.leading:
            self._demote("another has taken over")
        return None

    def _forget(self) -> None:
        self._leads_until = float("-inf")
        self._stats.leading = False
        self._plans = {}
        self._loaded = None

    def _demote(self, why: str) -> None:
        self._forget()
        logger.warning(
            "scheduler %s does not lead any more: %s",
            self._stats.name,
            why,
            extra={"event": "jobs.scheduler.demoted", "scheduler": self._stats.name},
        )

    async def _arm(self, *, replace: bool) -> bool:
        """Note the declared tasks; return whether somebody holds a row that is to be changed."""
        if not self._registry.tasks:
            return False
        row = await self._call(lambda conn: arm(conn, self._registry, replace=replace))
        return row is not None and row.busy > 0

    async def _load(self) -> bool:
        """Read all schedules anew. Those that cannot fire are marked, and in nobody's way.

        Returns whether all rows say now what they should.
        """
        rows = await self._call(lambda conn: sql.list_schedules_async(conn, name=None))
        found: dict[str, Plan] = {}
        marks: list[tuple[sql.ListSchedulesRow, str | None]] = []
        self._look_at = float("inf")
        for row in rows:
            self._clock.set(row.read_at)
            before = self._plans.get(row.name)
            try:
                one = plan(row, self._registry)
            except UnusableError as error:
                self._look_at = time.monotonic() + LOOK
                if self._alone or not hoped_for(row, error):
                    marks.append((row, str(error)))
                continue
            if one is None:
                continue
            found[row.name] = one
            if before is not None and before.revision == one.revision and before.failures:
                one.failures, one.not_before = before.failures, before.not_before
            else:
                marks.append((row, warning(row)))
        self._plans = found
        self._stats.schedules = len(found)
        said_all = True
        for row, said in marks:
            said_all &= await self._mark(row, said)
        declared = {task.name for task in self._registry.tasks}
        if not declared <= {row.name for row in rows}:  # somebody has removed one
            await self._arm(replace=False)
            self._next_tick = 0.0
        return said_all

    # -- one fire --------------------------------------------------------------------------------

    async def _fire(self, one: Plan, *, last: bool) -> bool:
        """Fire a schedule that is due, maybe the last of them; say whether to go on with it."""
        due = one.due(self._clock.now())
        if due is None:
            one.next_due = one.table.after(one.watermark)
            return False
        try:
            if one.calls:
                call = await self._calls.made(one, due)
                if call is None:
                    return False  # its function takes its time, and the others do not wait for it
                due, made = call
            else:
                made = one.aim(due.occurrence)
        except Exception as error:
            await self._failed(one, error)
            return False
        if self._stopping or not self.leading:
            return False
        try:
            promised = self._next(one, due) if last else 0.0
            lease, asked_at = self._promise(promised), time.monotonic()
            row = await self._call(lambda conn: send(conn, one, due, made, lease=lease, **self._me))
        except _ABOUT_THE_JOBS as error:
            await self._failed(one, error)
            return False
        except _TROUBLE:
            self._loaded, self._next_tick = None, 0.0  # nobody knows whether it has fired
            raise
        assert row is not None
        self._clock.set(row.read_at)
        if row.verdict == "fired":
            one.fired(due)
            if row.leads:
                self._renewed(asked_at, promised, lease)
            else:
                self._next_tick = 0.0  # another has taken over
            self._stats.fired += 1
            self._stats.enqueued += row.job_count
            logger.info(
                "%s fired for %s: %d jobs",
                one.name,
                due.occurrence.isoformat(),
                row.job_count,
                extra={"event": "jobs.scheduler.fired", "task": one.name},
            )
            return row.leads and one.next_due <= self._clock.now()
        if row.verdict in ("early", "busy"):  # the clock was set back, or somebody holds the row
            one.not_before = time.monotonic() + _RETRY_FIRST
            return False
        # It is not as it was read: another has fired it, or it was changed, paused or removed.
        self._stats.overtaken += row.verdict == "moved"
        one.not_before = time.monotonic() + _RETRY_FIRST
        one.paused = row.verdict in ("paused", "gone")
        self._loaded = None
        self._next_tick = min(self._next_tick, time.monotonic() + _RETRY_FIRST)
        return False

    async def _failed(self, one: Plan, error: Exception) -> None:
        """A schedule could not fire. The others go on; it is tried again."""
        self._stats.failed += 1
        one.failures += 1
        wait = min(_RETRY_FIRST * 2.0 ** min(one.failures - 1, 10), _RETRY_MOST)
        one.not_before = time.monotonic() + wait
        said = storable(said_of(error))
        logger.error(
            "%s cannot fire, and is tried again in %g s: %s",
            one.name,
            wait,
            said,
            exc_info=error if one.failures == 1 else None,
            extra={"event": "jobs.scheduler.task_failed", "task": one.name},
        )
        if await self._mark(one, said):
            one.error = said

    async def _mark(self, one: Plan | sql.ListSchedulesRow, error: str | None) -> bool:
        """Say on a row what is wrong with it; return whether it says so now."""
        error = None if error is None else storable(error)
        if error == one.error:
            return True
        if error is not None:
            logger.warning(
                "schedule %s: %s",
                one.name,
                error,
                extra={"event": "jobs.scheduler.marked", "task": one.name},
            )
        marked = await self._call(
            lambda conn: fire.mark_schedule_async(
                conn, name=one.name, revision=one.revision, watermark=one.watermark, error=error
            )
        )
        return marked > 0

    # -- the database ----------------------------------------------------------------------------

    async def _call(self, statement: Callable[[AsyncConnection[Any]], Coroutine[Any, Any, T]]) -> T:
        return await self._link.call(statement, STATEMENT_SECONDS)

    def _troubled(self, error: Exception) -> float:
        """Note trouble with the database; the seconds to wait before it is asked again."""
        self._trouble += 1
        wait = min(_TROUBLE_FIRST * 2.0 ** min(self._trouble - 1, 10), _TROUBLE_MOST)
        if self._trouble == 1 or self._trouble % 10 == 0:
            logger.warning(
                "scheduler %s cannot reach the database (%d times): %s",
                self._stats.name,
                self._trouble,
                " ".join(str(error).split()),
                extra={"event": "jobs.scheduler.trouble", "scheduler": self._stats.name},
            )
        return wait * random.uniform(0.5, 1.0)
