"""Run one claimed job and say how it ended. Writes nothing to the database.

A runner calls the function of a plain plan by itself; everything else is `Executor.attempt`. Where
things belong:

- a reading of errors (terminal, later, snoozed): `jobs.worker.failing`, which makes an outcome of
  what was raised, for plain plans too;
- what is put around the function (middleware): `plan`, into ``Plan.call``, once; around a function
  that does not run on the loop: `Executor._around`;
- a context around the body, and where it runs: `Executor.attempt`, in a plan that is not plain;
- what becomes of the value returned: innermost, in the place where the function runs, so that
  middleware sees a result that cannot be stored as the failure it is.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import logging
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from jobs.classify import Layer, Snoozed
from jobs.declare import JobHandle
from jobs.definition import NoTenant
from jobs.errors import CompletionRolledBack, JobTimeout, UnknownJob
from jobs.faults import RunFeatureUnavailable
from jobs.middleware import Middleware, within
from jobs.registry import Registry
from jobs.results import ResultCodec
from jobs.run import Run
from jobs.tenancy import tenant_scope
from jobs.worker.failing import decide, failure, snoozed
from jobs.worker.held import COMPLETED, Held, Outcome
from jobs.worker.processes import Processes
from jobs.worker.threads import Threads

logger = logging.getLogger("jobs.worker")

# A function that goes on after its deadline is named in the log after so many seconds more.
_OVERRUN_GRACE = 1.0
# Before another try where this worker's own code failed.
_FAULT_DELAY = timedelta(seconds=30)


class _Stopwatch:
    """A call in a thread, timed there: the event loop may hear of its end much later."""

    def __init__(
        self, fn: Callable[..., object], arguments: tuple[Any, ...], results: ResultCodec | None
    ) -> None:
        self._fn = fn
        self._arguments = arguments
        self._results = results
        self.ended = 0.0

    def run(self) -> str | None:
        try:
            result = self._fn(*self._arguments)
        finally:
            self.ended = time.monotonic()
        if inspect.iscoroutine(result):
            result.close()
            raise TypeError(
                "the job function is not declared async but returned a coroutine, which nobody ran"
            )
        return None if self._results is None else self._results.dump(result)


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
        results: What stores the value returned, None where nothing is stored.
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
    results: ResultCodec | None
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
    results = handle.results if handle.results.keeps else None
    call, takes_run = handle.fn, handle.takes_run
    if results is not None and handle.is_async:
        call = _stored(call, results)
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
        results=results,
        plain=(
            handle.is_async
            and seconds is None
            and results is None
            and isinstance(handle.tenant, NoTenant)
        ),
    )


def _stored(
    fn: Callable[..., Awaitable[Any]], results: ResultCodec
) -> Callable[..., Awaitable[str | None]]:
    """Make an asynchronous function return the text of its result."""

    async def call(*arguments: Any) -> str | None:
        return results.dump(await fn(*arguments))

    return call


def _wrapped(
    fn: Callable[..., Any], takes_run: bool, around: tuple[Middleware, ...]
) -> Callable[[Any, Run], Awaitable[Any]]:
    """Put middleware around an asynchronous function."""
    if takes_run:
        return lambda value, run: within(around, run, lambda: fn(value, run))
    return lambda value, run: within(around, run, lambda: fn(value))


class Executor:
    """Runs jobs of one registry on the current event loop, in threads and in processes.

    Attributes:
        plans: By name, for every job of the registry.
    """

    def __init__(
        self,
        registry: Registry,
        threads: Threads,
        unknown_delay: timedelta,
        middleware: tuple[Middleware, ...] = (),
        processes: Processes | None = None,
    ) -> None:
        self.plans = {handle.name: plan(handle, registry, middleware) for handle in registry}
        self._threads = threads
        self._processes = processes
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
        handle = plan.handle
        value = plan.load(job.row.input)
        tenant = handle.derive_tenant(value)
        job.run._derived_tenant = tenant
        job.run._results = plan.results
        with tenant_scope(tenant):
            if handle.executor == "process":
                text = await self._off_loop(
                    plan, job, functools.partial(self._call_process, plan, job)
                )
            else:
                arguments = (value, job.run) if plan.takes_run else (value,)
                # Taken before the run can be told, so that one that is told and returns is late.
                ends = None if plan.seconds is None else time.monotonic() + plan.seconds
                with self._overrun_watch(plan.seconds, job):
                    if handle.is_async:
                        text = await self._call_async(plan, arguments)
                    else:
                        text = await self._off_loop(
                            plan, job, lambda _: self._call_thread(plan, arguments, job, ends)
                        )
        if job.completion_asked:
            return self.unfinished(job, plan)
        return (
            COMPLETED if plan.results is None or text is None else Outcome("completed", result=text)
        )

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

    async def _call_async(self, plan: Plan, arguments: tuple[Any, ...]) -> str | None:
        timeout = plan.handle.timeout
        text: str | None = None
        try:
            async with asyncio.timeout(plan.seconds) as deadline:
                text = await plan.call(*arguments)
        except (Exception, Snoozed) as error:
            if not deadline.expired():
                raise
            raise JobTimeout(f"the attempt took longer than {timeout}") from error
        if deadline.expired():
            raise JobTimeout(f"the attempt ignored its deadline of {timeout}, and ended late")
        return text

    async def _off_loop(
        self, plan: Plan, job: Held, call: Callable[[float | None], Awaitable[str | None]]
    ) -> str | None:
        """Call a function that does not run on the loop, within the middleware around it.

        The deadline holds for the way in and the way out; the call is given what is left of the
        time, and keeps it by itself.
        """
        if not plan.around:
            return await call(plan.seconds)
        loop = asyncio.get_running_loop()
        ends = None if plan.seconds is None else loop.time() + plan.seconds
        text: str | None = None

        async def body() -> str | None:
            if ends is None:
                return await call(None)
            deadline.reschedule(None)
            try:
                return await call(max(0.0, ends - loop.time()))
            finally:
                deadline.reschedule(max(ends, loop.time() + _OVERRUN_GRACE))

        try:
            async with asyncio.timeout_at(ends) as deadline:
                text = await within(plan.around, job.run, body)
        except (Exception, Snoozed) as error:
            if not deadline.expired():
                raise
            raise JobTimeout(f"the attempt took longer than {plan.handle.timeout}") from error
        if deadline.expired():
            raise JobTimeout(f"the attempt ignored its deadline of {plan.handle.timeout}")
        return text

    async def _call_process(self, plan: Plan, job: Held, seconds: float | None) -> str | None:
        if self._processes is None:
            raise RunFeatureUnavailable("this worker has no processes")
        return await self._processes.run(plan.handle, job.row.input, job.run, seconds)

    async def _call_thread(
        self, plan: Plan, arguments: tuple[Any, ...], job: Held, ends: float | None
    ) -> str | None:
        job.thread = True
        watch = _Stopwatch(plan.call, arguments, plan.results)
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
        late = ends is not None and watch.ended > ends
        if late and isinstance(future.exception(), Snoozed):
            raise JobTimeout(f"the attempt took longer than {plan.handle.timeout}")
        text: str | None = future.result()
        if late:
            raise JobTimeout(f"the attempt took longer than {plan.handle.timeout}")
        return text

    @contextlib.contextmanager
    def _overrun_watch(self, seconds: float | None, job: Held) -> Iterator[None]:
        """Tell the run when its time is up, and the log when it goes on all the same."""
        if seconds is None:
            yield
            return
        job.run._limit(seconds)
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
