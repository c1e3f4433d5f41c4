"""Run one claimed job and say how it ended. Writes nothing to the database."""

from __future__ import annotations

import asyncio
import functools
import logging
import traceback
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

_COMPLETED = Outcome("completed")


def storable(text: str, limit: int, *, keep_end: bool = False) -> str:
    """Bound a text and replace what a PostgreSQL text cannot hold (NUL, lone surrogates)."""
    clean = text.replace("\x00", "\ufffd").encode("utf-8", "replace").decode()
    if len(clean) <= limit:
        return clean
    cut = f"[{len(clean) - limit} characters cut]"
    return f"{cut}\n{clean[-limit:]}" if keep_end else f"{clean[:limit]} {cut}"


def failure(error: BaseException, delay: timedelta) -> Outcome:
    """The outcome of an attempt that raised: retry, which the database turns into the end of the
    job where no attempt is left."""
    try:
        message = str(error)
    except Exception as broken:  # an error whose text raises is still a failure
        message = f"<str() of the error raised {type(broken).__name__}>"
    trace = "".join(traceback.format_exception(error))
    return Outcome(
        "retry",
        delay,
        storable(type(error).__qualname__, 255),
        storable(message, MESSAGE_LIMIT),
        storable(trace, TRACEBACK_LIMIT, keep_end=True),
    )


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
            job.outcome = await self._attempt(job)
        except asyncio.CancelledError:
            # Only the worker cancels this task. After a lost lease nothing may be written.
            job.outcome = Outcome("released") if job.stop_reason == "drain" else None
        except BaseException as error:  # the last line of defence for the loop
            logger.exception("running job %s (%s) failed inside the worker", job.id, job.row.name)
            job.outcome = failure(error, timedelta(seconds=30))

    async def _attempt(self, job: Held) -> Outcome | None:
        handle = self._registry.get(job.row.name)
        if handle is None:
            logger.warning(
                "%s",
                UnknownJob(
                    f"job {job.id} has the name {job.row.name!r}, which this process has not "
                    f"registered; it is handed back for {self._unknown_delay}"
                ),
                extra={"event": "jobs.worker.unknown", "job": str(job.id), "name_": job.row.name},
            )
            return Outcome("released", self._unknown_delay)
        try:
            value = handle.parse(job.row.input)
            if handle.is_async:
                await self._call_async(handle, value, job)
            else:
                await self._call_thread(handle, value, job)
        except asyncio.CancelledError:
            if job.stop_reason is not None:
                raise
            # The function raised it by itself, or something it awaited was cancelled.
            error: BaseException = RuntimeError("the job function was cancelled from within")
            return self._failed(handle, job, error)
        except BaseException as error:  # also SystemExit: a job must not end the worker
            return self._failed(handle, job, error)
        if job.stop_reason == "lost":
            return None
        if job.run._completing:
            # Its own transaction decides. If it committed, this settle is answered as a repeat.
            return failure(
                CompletionRolledBack(
                    f"job {job.id} called run.complete() and returned, but the transaction around "
                    "it was not committed"
                ),
                handle.retry.delay_for(job.row.attempt),
            )
        return _COMPLETED

    async def _call_async(self, handle: JobHandle[Any], value: Any, job: Held) -> None:
        arguments = (value, job.run) if handle.takes_run else (value,)
        if handle.timeout is None:
            await handle.fn(*arguments)
            return
        deadline = asyncio.timeout(handle.timeout.total_seconds())
        try:
            async with deadline:
                await handle.fn(*arguments)
        except TimeoutError as error:
            if not deadline.expired():
                raise
            raise JobTimeout(f"the attempt took longer than {handle.timeout}") from error
        if deadline.expired():
            logger.warning(
                "job %s (%s) ignored its deadline of %s and finished late",
                job.id,
                job.row.name,
                handle.timeout,
                extra={"event": "jobs.timeout.abandoned", "job": str(job.id)},
            )
            raise JobTimeout(f"the attempt ignored its deadline of {handle.timeout}")

    async def _call_thread(self, handle: JobHandle[Any], value: Any, job: Held) -> None:
        arguments = (value, job.run) if handle.takes_run else (value,)
        job.thread = True
        future = self._threads.call(functools.partial(handle.fn, *arguments))
        timeout = None if handle.timeout is None else handle.timeout.total_seconds()
        late = False
        while not future.done():
            try:
                done, _ = await asyncio.wait({future}, timeout=timeout)
            except asyncio.CancelledError:
                # The thread goes on whatever we do: tell it, and keep the job until it ends, so
                # that nobody else starts it meanwhile.
                job.run._cancelled.set()
                continue
            if not done:
                late, timeout = True, None
                job.run._cancelled.set()
                logger.warning(
                    "job %s (%s) overran its deadline of %s in a thread, which cannot be stopped",
                    job.id,
                    job.row.name,
                    handle.timeout,
                    extra={"event": "jobs.timeout.abandoned", "job": str(job.id)},
                )
        future.result()
        if late:
            raise JobTimeout(f"the attempt took longer than {handle.timeout}")

    def _failed(self, handle: JobHandle[Any], job: Held, error: BaseException) -> Outcome | None:
        if job.stop_reason == "lost":
            return None
        if job.stop_reason == "drain":
            return Outcome("released")  # whatever it raised, the interruption was ours
        logger.warning(
            "job %s (%s) failed in attempt %d of %d: %s: %s",
            job.id,
            job.row.name,
            job.row.attempt,
            job.row.max_attempts,
            type(error).__name__,
            storable(str(error), 500),
            exc_info=error,
            extra={"event": "jobs.run.attempt_failed", "job": str(job.id)},
        )
        return failure(error, handle.retry.delay_for(job.row.attempt))
