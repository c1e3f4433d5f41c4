"""The runs under way: begun, cancelled when their lease is lost, ended by a drain.

A slot at work is one task that takes job after job (`Runner`): making a task a job costs more than
everything else that is done for a job that does nothing. What a job in a task of its own would have
for free is seen to here: a job never sees the context variables of the one before, a cancellation
never meets another job than its own (the runner ends with it and is replaced), and the event loop
gets its turn however many jobs end without waiting for anything.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import time
import types
from collections.abc import Callable, Generator, Mapping
from datetime import timedelta
from sys import getrefcount

from jobs.tenancy import forget_tenant
from jobs.worker.execution import Executor
from jobs.worker.held import COMPLETED, Held, Outcome
from jobs.worker.lane import Lane
from jobs.worker.runner import Runner

logger = logging.getLogger("jobs.worker")

_FAULT = Outcome("retry", timedelta(seconds=30), "WorkerFault", "the worker failed to run the job")
_RELEASED = Outcome("released")
# Seconds of jobs in a row before the event loop gets a turn, and between two looks at what waits.
_TURN = 0.002
_LOOK = 0.25


@types.coroutine
def _let_others() -> Generator[None]:
    """Give the event loop a turn."""
    yield


class Crew:
    """The runners of all lanes."""

    def __init__(
        self,
        executor: Executor,
        lanes: Mapping[str, Lane],
        lease: float,
        ended: Callable[[Held], None],
    ) -> None:
        """
        Args:
            executor: Runs what needs more than a call.
            lanes: By queue.
            lease: Seconds after which a job that has not been renewed may be somebody else's.
            ended: Called in the event loop with each job that has begun and ended, or that was
                given up before it began.
        """
        self._executor = executor
        self._lanes = lanes
        self._lease = lease
        self._ended = ended
        self._loop = asyncio.get_running_loop()
        self._context = contextvars.copy_context()
        self._context.run(forget_tenant)  # of whoever started the worker
        self._runners: set[Runner] = set()
        self._turn_ends = 0.0
        self._turn_asked = False
        self._look_timer: asyncio.TimerHandle | None = None
        self._empty: asyncio.Event | None = None  # from the beginning of a drain

    def __len__(self) -> int:
        """Jobs that run or wait for a slot."""
        return sum(lane.held for lane in self._lanes.values())

    def begin(self, job: Held) -> None:
        """Let a job wait for a slot of its queue. `rouse` starts as many as there are slots for."""
        lane = self._lanes[job.row.queue]
        if lane.waiting:
            lane.waiting.append(job)
        else:
            lane.arrives(job, time.monotonic())

    def rouse(self) -> None:
        """Start what waits and has a slot."""
        waits = False
        for lane in self._lanes.values():
            if lane.waiting:
                waits = True
                if not lane.awake:
                    self._wake(lane, 1)
        if waits and self._look_timer is None:
            self._look_timer = self._loop.call_later(_LOOK, self._look)

    def lose(self, job: Held) -> bool:
        """Give up a job whose lease is lost; nothing of it will be written.

        Returns:
            Whether it is given up by this call. Not so where it has ended, was cancelled before,
            or has settled in its own transaction, which tells it.
        """
        if job.stop_reason is not None or job.outcome is not None or job.completion_landed:
            return False
        job.stop_reason = "lost"
        if job.task is None:
            self._withdraw(job)
        else:
            job.run._cancel()
            job.task.cancel()
        return True

    def cancel(self, job: Held) -> None:
        """Cancel a job because an operator asked for it; its settle says so.

        Does nothing where it has ended or was cancelled before.
        """
        if job.stop_reason is not None or job.outcome is not None:
            return
        job.stop_reason = "cancel"
        if job.task is None:
            self._withdraw(job)
            job.outcome = job.stopped
            self._ended(job)
        else:
            job.run._cancel()
            job.task.cancel()
        logger.info(
            "job %s (%s) is cancelled, as an operator asked",
            job.id,
            job.row.name,
            extra={"event": "jobs.worker.cancelling", "job": str(job.id)},
        )

    def hand_back(self) -> None:
        """Hand back what waits for a slot: nothing more is begun."""
        for lane in self._lanes.values():
            while lane.waiting:
                self._give_up(lane.waiting.popleft())

    async def drain(self, seconds: float, hurry: asyncio.Event, grace: float) -> None:
        """Hand back what waits, wait for the runs to end, then cancel the rest and hand it back.

        Args:
            seconds: How long they are waited for.
            hurry: Ends that wait.
            grace: Seconds for the cancelled ones to end.
        """
        self._empty = asyncio.Event()
        self.hand_back()
        self._note_empty()
        waits = [
            asyncio.create_task(event.wait(), name="jobs:drained") for event in (self._empty, hurry)
        ]
        try:
            await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        self.hand_back()
        busy = self._busy()
        for runner, job in busy:
            if job.stop_reason is None:
                job.stop_reason = "drain"
                job.run._cancel()
                runner.cancel()
        if busy:
            await asyncio.wait({runner for runner, _ in busy}, timeout=grace)

    def abandon(self) -> list[Held]:
        """Give up the jobs that have not ended, and return them; end the runners that have none.

        Nothing is written about them from now on. Those in threads do not keep the event loop from
        closing any more; of the others each may.
        """
        if self._look_timer is not None:
            self._look_timer.cancel()
        left = [job for _, job in self._busy()]
        for job in left:
            job.stop_reason = "abandoned"
            logger.error(
                "job %s (%s) does not stop and is left to its lease%s",
                job.id,
                job.row.name,
                ": its thread is still running" if job.thread else "",
                extra={"event": "jobs.worker.abandoned", "job": str(job.id)},
            )
        for runner in self._runners:
            runner.cancel()
        return left

    # -- runners ---------------------------------------------------------------------------------

    def _busy(self) -> list[tuple[Runner, Held]]:
        return [(each, each.job) for each in self._runners if each.job is not None]

    def _wake(self, lane: Lane, most: int) -> None:
        """Have so many more runners look for a job, if there are jobs for them."""
        for _ in range(min(most, len(lane.waiting) - lane.awake)):
            if lane.idle:
                parked = lane.idle.pop().parked
                assert parked is not None
                if not parked.done():  # else it was cancelled: another will take its place
                    parked.set_result(None)
            elif lane.runners < lane.slots:
                self._hire(lane)
            else:
                break

    def _more(self, lane: Lane) -> None:
        """Wake more runners where some wait in the middle of a job: twice as many each time.

        One is enough for jobs that wait for nothing.
        """
        lane.asked = False
        if lane.waiting:
            self._wake(lane, lane.busy - lane.awake)

    def _hire(self, lane: Lane) -> None:
        work = self._serve(lane)
        try:
            runner = Runner(work, lane, self._loop, self._context.copy())
        except BaseException:
            work.close()
            raise
        lane.runners += 1
        self._runners.add(runner)
        runner.add_done_callback(self._gone)

    async def _serve(self, lane: Lane) -> None:
        """Run job after job. Returns after one that must not be followed by another."""
        me = asyncio.current_task()
        assert isinstance(me, Runner)
        waiting, plans, executor = lane.waiting, self._executor.plans, self._executor
        clean = contextvars.copy_context()
        kept = tuple(clean.items())
        unheld = getrefcount(me)
        while True:
            if not waiting:
                await self._park(me, lane)
                continue
            job = waiting.popleft()
            now = time.monotonic()
            if now - job.renewed_at >= self._lease:
                self._give_up(job)  # it may be somebody else's by now
                continue
            me.job, job.task, job.begun = job, me, True
            lane.busy += 1
            if waiting and not lane.asked:
                # If this one waits for something the next must not wait for it.
                lane.asked = True
                self._loop.call_soon(self._more, lane)
            plan = plans.get(job.row.name)
            outcome, closing = _FAULT, False
            try:
                if plan is not None and plan.plain:
                    value = plan.load(job.row.input)
                    await (plan.call(value, job.run) if plan.takes_run else plan.call(value))
                    outcome = executor.unfinished(job, plan) if job.completion_asked else COMPLETED
                else:
                    outcome = await executor.attempt(job, plan)
            except BaseException as error:
                closing = isinstance(error, GeneratorExit)  # maybe of this very coroutine
                outcome = executor.failed(job, plan, error)
            finally:
                me.job = job.task = None
                lane.busy -= 1
                lane.ended += 1
                if not lane.busy and not waiting:
                    lane.rests(time.monotonic())
                job.outcome = outcome if job.stop_reason is None or job.settles else None
                self._ended(job)
            del job  # nothing of it is kept until the next one
            value = None
            if self._empty is not None:
                self._note_empty()
            # Who still holds the task, a timer that was left behind say, means that job.
            if closing or me.spent or getrefcount(me) > unheld:
                return
            if not _same(contextvars.copy_context(), clean, kept):
                return
            if now >= self._turn_ends and waiting:
                self._ask_turn()
                await _let_others()

    async def _park(self, me: Runner, lane: Lane) -> None:
        parked = me.parked = self._loop.create_future()
        lane.idle.append(me)
        try:
            await parked
        finally:
            me.parked = None
            if parked.cancelled() and me in lane.idle:  # by somebody who cancels every task
                lane.idle.remove(me)

    def _gone(self, runner: asyncio.Task[None]) -> None:
        """A runner has ended; where more is to be done another takes its place."""
        assert isinstance(runner, Runner)
        self._runners.discard(runner)
        lane = runner.lane
        lane.runners -= 1
        if not runner.cancelled() and (error := runner.exception()) is not None:
            logger.error("a runner of queue %s failed", lane.queue, exc_info=error)
        if lane.waiting and not self._loop.is_closed():
            self._wake(lane, 1)

    def _ask_turn(self) -> None:
        """Begin another stretch of jobs in a row when all runners have had their turn."""
        if not self._turn_asked:
            self._turn_asked = True
            self._loop.call_soon(self._begin_turn)

    def _begin_turn(self) -> None:
        self._turn_asked = False
        self._turn_ends = time.monotonic() + _TURN

    # -- jobs that never begin -------------------------------------------------------------------

    def _withdraw(self, job: Held) -> None:
        """Take a job out of those that wait."""
        lane = self._lanes[job.row.queue]
        lane.waiting.remove(job)
        self._left(lane)

    def _give_up(self, job: Held) -> None:
        """Hand back a job that waited and is not to be begun."""
        job.outcome = _RELEASED
        self._ended(job)
        self._left(self._lanes[job.row.queue])

    def _left(self, lane: Lane) -> None:
        """A job that waited does not any more, and has not begun."""
        if not lane.held:
            lane.rests(time.monotonic())
        self._note_empty()

    def _look(self) -> None:
        """Hand back what waits for longer than meant, so that another process may have it."""
        self._look_timer = None
        now, waits = time.monotonic(), False
        for lane in self._lanes.values():
            for job in lane.overdue(now):
                self._give_up(job)
            waits = waits or bool(lane.waiting)
        if waits:
            self._look_timer = self._loop.call_later(_LOOK, self._look)

    def _note_empty(self) -> None:
        if self._empty is not None and not len(self):
            self._empty.set()


def _same(
    context: contextvars.Context,
    clean: contextvars.Context,
    kept: tuple[tuple[contextvars.ContextVar[object], object], ...],
) -> bool:
    """Whether a job has left the context variables as they were."""
    try:
        if context != clean:  # the same table most of the time, which is seen without a look inside
            return False
        for variable, value in kept:
            if context[variable] is not value:
                return False
    except Exception:  # values may refuse to be compared
        return False
    return True
