"""Run one claimed job and say how it ended. Writes nothing to the database.

A runner calls the function of a plain plan by itself; everything else is `Executor.attempt`. Where
things belong:

- a reading of errors (terminal, later, snoozed): `jobs.worker.failing`, which makes an outcome of
  what was raised, for plain plans too;
- what is put around the function (middleware): `plan`, into ``Plan.call``, once; around a function
  that does not run on the loop: `Executor._around`;
- a context around the body, other places to run it than the loop and a thread, what becomes of the
  value returned: `Executor.attempt`, in a plan that is not plain.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from jobs.classify import Layer, Snoozed
from jobs.declare import JobHandle
from jobs.errors import CompletionRolledBack, JobTimeout, UnknownJob
from jobs.middleware import Middleware, within
from jobs.registry import Registry
from jobs.run import Run
from jobs.worker.failing import decide, failure, snoozed
from jobs.worker.held import COMPLETED, Held, Outcome
from jobs.worker.threads import Threads

logger = logging.getLogger("jobs.worker")

# A function that goes on after its deadline is named in the log after so many seconds more.
_OVERRUN_GRACE = 1.0
# Before another try where this worker's own code failed.
_FAULT_DELAY = timedelta(seconds=30)


class _Stopwatch:
    """A call in a thread, timed there: the event loop may hear of its end much later."""

    def __init__(self, fn: Callable[..., object], arguments: tuple[Any, ...]) -> None:
        self._fn = fn
        self._arguments = arguments
        self.seconds = 0.0

    def run(self) -> object:
        started = time.monotonic()
        try:
            return self._fn(*self._arguments)
        finally:
            self.seconds = time.monotonic() - started


@dataclass(slots=True, eq=False)
class Plan:
    """How the jobs of one name are run: decided once, when a worker starts.

    Attributes:
        handle: The declaration.
        load: From the stored text to the input.
        call: What is called with it: the function, or what was put around it.
        takes_run: Whether it is called with the `Run` as well.
        seconds: Longest duration of an attempt, None for no end.
        layers: The rules that hold for its errors, the nearest first.
        around: What is entered around a function that does not run on the loop; around others it
            is in ``call``.
        plain: Whether nothing more than a call is needed, so that a runner makes it by itself.
            Whatever needs a step before or after the function makes a plan that is not plain, and
            has its place in `Executor.attempt`.
    """

    handle: JobHandle[Any]
    load: Callable[[str], Any]
    call: Callable[..., Any]
    takes_run: bool
    seconds: float | None
    layers: tuple[Layer, ...]
    around: tuple[Middleware, ...]
    plain: bool


def plan(handle: JobHandle[Any], registry: Registry, outer: tuple[Middleware, ...] = ()) -> Plan:
    """Decide how the jobs of a declaration are run.

    Args:
        handle: The declaration.
        registry: Where it is registered.
        outer: Middleware of the worker, which is entered before that of the registry.
    """
    seconds = None if handle.timeout is None else handle.timeout.total_seconds()
    layers = (Layer("the job", handle.errors), Layer("the registry", registry.errors))
    around = (*outer, *registry.middleware)
    call, takes_run = handle.fn, handle.takes_run
    if around and handle.is_async:
        call, takes_run, around = _wrapped(call, takes_run, around), True, ()
    return Plan(
        handle=handle,
        load=handle.parse,
        call=call,
        takes_run=takes_run,
        seconds=seconds,
        layers=tuple(layer for layer in layers if layer.rules),
        around=around,
        plain=handle.is_async and seconds is None,
    )


def _wrapped(
    fn: Callable[..., Any], takes_run: bool, around: tuple[Middleware, ...]
) -> Callable[[Any, Run], Awaitable[Any]]:
    """Put middleware around an asynchronous function."""
    if takes_run:
        return lambda value, run: within(around, run, lambda: fn(value, run))
    return lambda value, run: within(around, run, lambda: fn(value))


class Executor:
    """Runs jobs of one registry on the current event loop, synchronous ones in threads.

    Attributes:
        plans: By name, for every job of the registry.
    """

    def __init__(
        self,
        registry: Registry,
        threads: Threads,
        unknown_delay: timedelta,
        middleware: tuple[Middleware, ...] = (),
    ) -> None:
        self.plans = {handle.name: plan(handle, registry, middleware) for handle in registry}
        self._threads = threads
        self._unknown_delay = unknown_delay

    async def attempt(self, job: Held, plan: Plan | None) -> Outcome:
        """Run a job whose plan is not plain.

        Args:
            job: The job.
            plan: How it is run, None for a name that is not registered.

        Raises:
            BaseException: What the function raised, for `failed` to make an outcome of.
        """
        if plan is None:
            return self._unknown(job)
        value = plan.load(job.row.input)
        arguments = (value, job.run) if plan.takes_run else (value,)
        with self._overrun_watch(plan.seconds, job):
            if plan.handle.is_async:
                await self._call_async(plan, arguments)
            elif plan.around:
                await self._around(
                    plan, job, lambda seconds: self._call_thread(plan, arguments, job, seconds)
                )
            else:
                await self._call_thread(plan, arguments, job, plan.seconds)
        return self.unfinished(job, plan) if job.completion_asked else COMPLETED

    def unfinished(self, job: Held, plan: Plan) -> Outcome:
        """The outcome of a function that returned after ``run.complete()``.

        Its own transaction decides. If it committed, this settle is answered as a repeat.
        """
        error = CompletionRolledBack(
            f"job {job.id} called run.complete() and returned, but the transaction around "
            "it was not committed"
        )
        return failure(error, plan.handle.retry.delay_for(job.row.attempt))

    def failed(self, job: Held, plan: Plan | None, error: BaseException) -> Outcome:
        """The outcome of an attempt that raised. Never raises, so that it costs this job only."""
        if job.stop_reason is not None:
            if job.stop_reason == "drain" and (later := snoozed(job, error)) is not None:
                return later  # handed back as well, and it says until when
            return job.stopped  # whatever it raised, the interruption was ours
        if plan is None:  # the last line of defence for the runner
            logger.error(
                "running job %s (%s) failed inside the worker",
                job.id,
                job.row.name,
                exc_info=error,
            )
            return failure(error, _FAULT_DELAY)
        if isinstance(error, asyncio.CancelledError):
            # The function raised it by itself, or something it awaited was cancelled.
            error = RuntimeError("the job function was cancelled from within")
        try:
            outcome = snoozed(job, error) or decide(job, error, plan.handle.retry, plan.layers)
        except Exception as fault:
            logger.exception("running job %s (%s) failed inside the worker", job.id, job.row.name)
            outcome = failure(fault, _FAULT_DELAY)
        return outcome

    def _unknown(self, job: Held) -> Outcome:
        unknown = UnknownJob(
            f"job {job.id} has the name {job.row.name!r}, which this process has not "
            f"registered; it is handed back for {self._unknown_delay}"
        )
        logger.warning(
            "%s",
            unknown,
            extra={"event": "jobs.worker.unknown", "job": str(job.id), "name_": job.row.name},
        )
        return Outcome("released", self._unknown_delay)

    async def _call_async(self, plan: Plan, arguments: tuple[Any, ...]) -> None:
        timeout = plan.handle.timeout
        try:
            async with asyncio.timeout(plan.seconds) as deadline:
                await plan.call(*arguments)
        except (Exception, Snoozed) as error:
            if not deadline.expired():
                raise
            raise JobTimeout(f"the attempt took longer than {timeout}") from error
        if deadline.expired():
            raise JobTimeout(f"the attempt ignored its deadline of {timeout}, and ended late")

    async def _around(
        self, plan: Plan, job: Held, call: Callable[[float | None], Awaitable[Any]]
    ) -> None:
        """Enter the middleware around a function that does not run on the loop.

        The deadline holds for the way in and the way out; the call is given what is left of the
        time, and keeps it by itself.
        """
        loop = asyncio.get_running_loop()
        ends = None if plan.seconds is None else loop.time() + plan.seconds

        async def body() -> None:
            if ends is None:
                await call(None)
                return
            deadline.reschedule(None)
            try:
                await call(max(0.0, ends - loop.time()))
            finally:
                deadline.reschedule(max(ends, loop.time() + _OVERRUN_GRACE))

        try:
            async with asyncio.timeout_at(ends) as deadline:
                await within(plan.around, job.run, body)
        except (Exception, Snoozed) as error:
            if not deadline.expired():
                raise
            raise JobTimeout(f"the attempt took longer than {plan.handle.timeout}") from error
        if deadline.expired():
            raise JobTimeout(f"the attempt ignored its deadline of {plan.handle.timeout}")

    async def _call_thread(
        self, plan: Plan, arguments: tuple[Any, ...], job: Held, seconds: float | None
    ) -> None:
        job.thread = True
        watch = _Stopwatch(plan.call, arguments)
        future = self._threads.call(watch.run)
        while not future.done():
            try:
                await asyncio.wait({future})
            except asyncio.CancelledError:
                # The thread goes on whatever we do: tell it, and keep the job until it ends, so
                # that nobody else starts it meanwhile.
                job.run._cancel()
                if job.stop_reason == "abandoned":
                    raise
        late = seconds is not None and watch.seconds > seconds
        if late and isinstance(future.exception(), Snoozed):
            raise JobTimeout(f"the attempt took longer than {plan.handle.timeout}")
        result = future.result()
        if late:
            raise JobTimeout(f"the attempt took longer than {plan.handle.timeout}")
        if inspect.iscoroutine(result):
            result.close()
            raise TypeError(
                "the job function is not declared async but returned a coroutine, which nobody ran"
            )

    @contextlib.contextmanager
    def _overrun_watch(self, seconds: float | None, job: Held) -> Iterator[None]:
        """Tell the run when its time is up, and the log when it goes on all the same."""
        if seconds is None:
            yield
            return
        loop = asyncio.get_running_loop()
        timers = (
            loop.call_later(seconds, job.run._cancel),
            loop.call_later(seconds + _OVERRUN_GRACE, self._overrun, job, seconds),
        )
        try:
            yield
        finally:
            for timer in timers:
                timer.cancel()

    def _overrun(self, job: Held, seconds: float) -> None:
        logger.warning(
            "job %s (%s) goes on after its deadline of %g s%s; it keeps its slot until it ends",
            job.id,
            job.row.name,
            seconds,
            " in a thread, which cannot be stopped" if job.thread else "",
            extra={"event": "jobs.timeout.abandoned", "job": str(job.id)},
        )
