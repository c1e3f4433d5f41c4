"""Run one claimed job and say how it ended. Writes nothing to the database.

A runner calls the function of a plain plan by itself; everything else is `Executor.attempt`. Where
things belong:

- a reading of errors (terminal, later, snoozed): `failure`, which makes an outcome of what was
  raised, for plain plans too;
- what is put around the function (middleware): `plan`, into ``Plan.call``, once;
- a context around the body, other places to run it than the loop and a thread, what becomes of the
  value returned: `Executor.attempt`, in a plan that is not plain.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from jobs.declare import JobHandle
from jobs.errors import CompletionRolledBack, JobTimeout, UnknownJob
from jobs.registry import Registry
from jobs.worker.held import COMPLETED, Held, Outcome
from jobs.worker.threads import Threads

logger = logging.getLogger("jobs.worker")

MESSAGE_LIMIT = 4_000
TRACEBACK_LIMIT = 32_000

# A function that goes on after its deadline is named in the log after so many seconds more.
_OVERRUN_GRACE = 1.0
# Before another try where this worker's own code failed.
_FAULT_DELAY = timedelta(seconds=30)


def storable(text: str, limit: int, *, keep_end: bool = False) -> str:
    """Bound a text and replace what a PostgreSQL text cannot hold (NUL, lone surrogates)."""
    surplus = len(text) - limit
    kept = text if surplus <= 0 else text[-limit:] if keep_end else text[:limit]
    clean = kept.replace("\x00", "\ufffd").encode("utf-8", "replace").decode()
    if surplus <= 0:
        return clean
    cut = f"[{surplus} characters cut]"
    return f"{cut}\n{clean}" if keep_end else f"{clean} {cut}"


def failure(error: BaseException, delay: timedelta) -> Outcome:
    """The outcome of an attempt that raised: retry, which the database turns into the end of the
    job where no attempt is left. Never raises, whatever the error does when it is looked at."""
    return Outcome(
        "retry",
        delay,
        storable(type(error).__qualname__, 255),
        storable(_text(error), MESSAGE_LIMIT),
        storable(_trace(error), TRACEBACK_LIMIT, keep_end=True),
    )


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except BaseException as broken:  # an error whose text raises is still a failure
        return f"<str() of the error raised {type(broken).__name__}>"


def _trace(error: BaseException) -> str:
    try:
        return "".join(traceback.format_exception(error))
    except BaseException as broken:
        return f"<formatting the traceback raised {type(broken).__name__}>"


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
        plain: Whether nothing more than a call is needed, so that a runner makes it by itself.
            Whatever needs a step before or after the function makes a plan that is not plain, and
            has its place in `Executor.attempt`.
    """

    handle: JobHandle[Any]
    load: Callable[[str], Any]
    call: Callable[..., Any]
    takes_run: bool
    seconds: float | None
    plain: bool


def plan(handle: JobHandle[Any]) -> Plan:
    """Decide how the jobs of a declaration are run."""
    seconds = None if handle.timeout is None else handle.timeout.total_seconds()
    return Plan(
        handle=handle,
        load=handle.parse,
        call=handle.fn,
        takes_run=handle.takes_run,
        seconds=seconds,
        plain=handle.is_async and seconds is None,
    )


class Executor:
    """Runs jobs of one registry on the current event loop, synchronous ones in threads.

    Attributes:
        plans: By name, for every job of the registry.
    """

    def __init__(self, registry: Registry, threads: Threads, unknown_delay: timedelta) -> None:
        self.plans = {handle.name: plan(handle) for handle in registry}
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
        if plan.handle.is_async:
            await self._call_async(plan, arguments, job)
        else:
            await self._call_thread(plan, arguments, job)
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
            outcome = failure(error, plan.handle.retry.delay_for(job.row.attempt))
            self._say_failed(job, error, outcome)
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

    async def _call_async(self, plan: Plan, arguments: tuple[Any, ...], job: Held) -> None:
        timeout = plan.handle.timeout
        with self._overrun_watch(plan.seconds, job):
            try:
                async with asyncio.timeout(plan.seconds) as deadline:
                    await plan.call(*arguments)
            except Exception as error:
                if not deadline.expired():
                    raise
                raise JobTimeout(f"the attempt took longer than {timeout}") from error
        if deadline.expired():
            raise JobTimeout(f"the attempt ignored its deadline of {timeout}, and ended late")

    async def _call_thread(self, plan: Plan, arguments: tuple[Any, ...], job: Held) -> None:
        job.thread = True
        watch = _Stopwatch(plan.call, arguments)
        future = self._threads.call(watch.run)
        with self._overrun_watch(plan.seconds, job):
            while not future.done():
                try:
                    await asyncio.wait({future})
                except asyncio.CancelledError:
                    # The thread goes on whatever we do: tell it, and keep the job until it ends,
                    # so that nobody else starts it meanwhile.
                    job.run._cancel()
                    if job.stop_reason == "abandoned":
                        raise
        result = future.result()
        if plan.seconds is not None and watch.seconds > plan.seconds:
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

    def _say_failed(self, job: Held, error: BaseException, outcome: Outcome) -> None:
        logger.warning(
            "job %s (%s) failed in attempt %d of %d: %s: %s",
            job.id,
            job.row.name,
            job.row.attempt,
            job.row.max_attempts,
            outcome.error_type,
            (outcome.error_message or "")[:500],
            # Not where it holds megabytes, or what the encoding of a log file does not take.
            exc_info=error if outcome.traceback == _trace(error) else None,
            extra={"event": "jobs.run.attempt_failed", "job": str(job.id)},
        )
