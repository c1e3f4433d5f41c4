"""Run one claimed job and say how it ended. Writes nothing to the database."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import time
import traceback
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

from jobs.declare import JobHandle
from jobs.errors import CompletionRolledBack, JobTimeout, UnknownJob
from jobs.registry import Registry
from jobs.worker.held import Held, Outcome
from jobs.worker.threads import Threads

logger = logging.getLogger("jobs.worker")

MESSAGE_LIMIT = 4_000
TRACEBACK_LIMIT = 32_000

# A function that goes on after its deadline is named in the log after so many seconds more.
_OVERRUN_GRACE = 1.0
# Before another try where this worker's own code failed.
_FAULT_DELAY = timedelta(seconds=30)

_COMPLETED = Outcome("completed")


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


class Executor:
    """Runs jobs of one registry on the current event loop, synchronous ones in threads."""

    def __init__(self, registry: Registry, threads: Threads, unknown_delay: timedelta) -> None:
        self._registry = registry
        self._threads = threads
        self._unknown_delay = unknown_delay

    async def run(self, job: Held) -> None:
        """Run ``job`` and set its outcome; leaves it None where nothing may be settled any more.

        Never raises, whatever the job's function does: a fault costs this job only.
        """
        try:
            outcome = await self._attempt(job)
        except asyncio.CancelledError:
            outcome = job.stopped  # by a drain or a cancel; other reasons are looked at below
        except BaseException as error:  # the last line of defence for the loop
            logger.exception("running job %s (%s) failed inside the worker", job.id, job.row.name)
            outcome = failure(error, _FAULT_DELAY)
        job.outcome = outcome if job.settles else None

    async def _attempt(self, job: Held) -> Outcome:
        handle = self._registry.get(job.row.name)
        if handle is None:
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
        try:
            value = handle.parse(job.row.input)
            arguments = (value, job.run) if handle.takes_run else (value,)
            if handle.is_async:
                await self._call_async(handle, arguments, job)
            else:
                await self._call_thread(handle, arguments, job)
        except asyncio.CancelledError:
            if job.stop_reason is not None:
                raise
            # The function raised it by itself, or something it awaited was cancelled.
            error: BaseException = RuntimeError("the job function was cancelled from within")
            return self._failed(handle, job, error)
        except BaseException as error:  # also SystemExit: a job must not end the worker
            return self._failed(handle, job, error)
        if job.run._completion_asked:
            # Its own transaction decides. If it committed, this settle is answered as a repeat.
            return failure(
                CompletionRolledBack(
                    f"job {job.id} called run.complete() and returned, but the transaction around "
                    "it was not committed"
                ),
                handle.retry.delay_for(job.row.attempt),
            )
        return _COMPLETED

    async def _call_async(
        self, handle: JobHandle[Any], arguments: tuple[Any, ...], job: Held
    ) -> None:
        seconds = None if handle.timeout is None else handle.timeout.total_seconds()
        with self._overrun_watch(seconds, job):
            try:
                async with asyncio.timeout(seconds) as deadline:
                    await handle.fn(*arguments)
            except Exception as error:
                if not deadline.expired():
                    raise
                raise JobTimeout(f"the attempt took longer than {handle.timeout}") from error
        if deadline.expired():
            raise JobTimeout(
                f"the attempt ignored its deadline of {handle.timeout}, and ended late"
            )

    async def _call_thread(
        self, handle: JobHandle[Any], arguments: tuple[Any, ...], job: Held
    ) -> None:
        seconds = None if handle.timeout is None else handle.timeout.total_seconds()
        job.thread = True
        watch = _Stopwatch(handle.fn, arguments)
        future = self._threads.call(watch.run)
        with self._overrun_watch(seconds, job):
            while not future.done():
                try:
                    await asyncio.wait({future})
                except asyncio.CancelledError:
                    # The thread goes on whatever we do: tell it, and keep the job until it ends,
                    # so that nobody else starts it meanwhile.
                    job.run._cancelled.set()
                    if job.stop_reason == "abandoned":
                        raise
        result = future.result()
        if seconds is not None and watch.seconds > seconds:
            raise JobTimeout(f"the attempt took longer than {handle.timeout}")
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
            loop.call_later(seconds, job.run._cancelled.set),
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

    def _failed(self, handle: JobHandle[Any], job: Held, error: BaseException) -> Outcome:
        if job.stop_reason is not None:
            return job.stopped  # whatever it raised, the interruption was ours
        outcome = failure(error, handle.retry.delay_for(job.row.attempt))
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
        return outcome
