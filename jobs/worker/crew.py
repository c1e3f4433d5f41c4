"""The runs under way: begun, cancelled when their lease is lost, ended by a drain."""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Callable
from datetime import timedelta

from jobs.worker.execution import Executor
from jobs.worker.held import Held, Outcome

logger = logging.getLogger("jobs.worker")

_FAULT = Outcome("retry", timedelta(seconds=30), "WorkerFault", "the worker failed to run the job")


class Crew:
    """A task for each running job."""

    def __init__(self, executor: Executor, ended: Callable[[Held], None]) -> None:
        """
        Args:
            executor: Runs one job.
            ended: Called in the event loop with each job that has begun and ended.
        """
        self._executor = executor
        self._ended = ended
        self._jobs: dict[asyncio.Task[None], Held] = {}
        self._empty = asyncio.Event()
        self._empty.set()

    def __len__(self) -> int:
        return len(self._jobs)

    def begin(self, job: Held) -> None:
        """Start a job in a task of its own."""
        work = self._executor.run(job)
        try:
            task = asyncio.create_task(work, name=f"job:{job.row.name}:{job.row.id}")
        except BaseException:
            work.close()
            raise
        job.task = task
        self._jobs[task] = job
        self._empty.clear()
        task.add_done_callback(functools.partial(self._done, job))

    def lose(self, job: Held) -> bool:
        """Cancel a run whose lease is lost; nothing of it will be written.

        Returns:
            Whether it is cancelled by this call. Not so where it has ended, was cancelled before,
            or has settled in its own transaction, which tells it.
        """
        task = job.task
        if task is None or task.done() or job.stop_reason is not None:
            return False
        if job.run._completion_landed:
            return False
        job.stop_reason = "lost"
        job.run._cancelled.set()
        task.cancel()
        return True

    def cancel(self, job: Held) -> None:
        """Cancel a run because an operator asked for it; its settle says so.

        Does nothing where it has ended or was cancelled before.
        """
        task = job.task
        if task is None or task.done() or job.stop_reason is not None:
            return
        job.stop_reason = "cancel"
        job.run._cancelled.set()
        task.cancel()
        logger.info(
            "job %s (%s) is cancelled, as an operator asked",
            job.id,
            job.row.name,
            extra={"event": "jobs.worker.cancelling", "job": str(job.id)},
        )

    async def drain(self, seconds: float, hurry: asyncio.Event, grace: float) -> None:
        """Wait for the runs to end, then cancel the rest, which are handed back.

        Args:
            seconds: How long they are waited for.
            hurry: Ends that wait.
            grace: Seconds for the cancelled ones to end.
        """
        waits = [
            asyncio.create_task(event.wait(), name="jobs:drained") for event in (self._empty, hurry)
        ]
        try:
            await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        for task, job in list(self._jobs.items()):
            if job.stop_reason is None:
                job.stop_reason = "drain"
                job.run._cancelled.set()
                task.cancel()
        if self._jobs:
            await asyncio.wait(set(self._jobs), timeout=grace)

    def abandon(self) -> list[Held]:
        """Give up the jobs that have not ended, and return them.

        Nothing is written about them from now on. Those in threads do not keep the event loop from
        closing any more; of the others each may.
        """
        left = [(task, job) for task, job in self._jobs.items() if not task.done()]
        for task, job in left:
            job.stop_reason = "abandoned"
            task.cancel()
        return [job for _, job in left]

    def _done(self, job: Held, task: asyncio.Task[None]) -> None:
        del self._jobs[task]
        if not self._jobs:
            self._empty.set()
        if task.cancelled():
            # Before its first step, or after its last: the outcome stands if there is one.
            if job.outcome is None and job.settles:
                job.outcome = job.stopped
        elif (error := task.exception()) is not None:
            logger.error("running job %s failed inside the worker", job.id, exc_info=error)
            job.outcome = _FAULT if job.settles else None
        self._ended(job)
