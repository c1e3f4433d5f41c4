"""The newest progress of the runs of a process, written at most once a second.

One statement writes what has changed since the last one, whatever the number of calls. What is not
written yet when a run ends is written before its settle is sent, so that the row of the finished
job has the last word of the run.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, Final

import psycopg

from jobs.errors import JobsError
from jobs.run import Run
from jobs_sql.progress import WriteProgressRow, write_progress_async

logger = logging.getLogger("jobs.worker")

EVERY: Final = 1.0
"""Seconds between two statements, when nothing ends meanwhile."""

_PASSING: Final = (psycopg.Error, TimeoutError, OSError, JobsError)
_REFUSALS: Final = (psycopg.DataError, psycopg.IntegrityError, psycopg.errors.RaiseException)

_Rows = Coroutine[Any, Any, list[WriteProgressRow]]
Send = Callable[[Callable[[psycopg.AsyncConnection[Any]], _Rows]], _Rows]


class Reporter:
    """What has changed, and whether it is time to write it.

    Attributes:
        used: Whether any run of this worker has ever said how far it is.
        due: Whether `report` has something to write now.
    """

    def __init__(self, worker: str, ring: Callable[[], None]) -> None:
        """
        Args:
            worker: Label of this process, part of the fence.
            ring: Called in the event loop when `report` should be called soon.
        """
        self._worker = worker
        self._ring = ring
        self._loop = asyncio.get_running_loop()
        self._changed: dict[Run, None] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._written_at = float("-inf")
        self.used = False
        self.due = False

    def changed(self, run: Run) -> None:
        """A run has a new point. Called in any thread, never blocks."""
        if not run._noted:
            run._noted = self.used = True
            with contextlib.suppress(RuntimeError):  # the loop is closed, nobody is left to tell
                self._loop.call_soon_threadsafe(self._note, run)

    def stop(self) -> None:
        """Ring no more."""
        if self._timer is not None:
            self._timer.cancel()

    async def report(self, send: Send) -> None:
        """Write what has changed. Never raises: what could not be written is tried again later."""
        self.due = False
        runs = [run for run in self._changed if run._point is not run._point_written]
        self._changed.clear()
        for run in runs:
            run._noted = False
        if not runs:
            return
        try:
            busy = await self.flush(runs, send)
        except _PASSING as error:
            logger.warning(
                "writing the progress of %d jobs failed: %s",
                len(runs),
                str(error),
                extra={"event": "jobs.worker.progress_failed", "jobs": len(runs)},
            )
            busy = set(runs)
        for run in busy:
            self.changed(run)

    async def flush(self, runs: Iterable[Run], send: Send) -> set[Run]:
        """Write the newest points of runs that have one which is not written.

        Returns:
            Those whose row another session holds for the moment.

        Raises what ``send`` raises where sending again may help. Otherwise the points are dropped:
        the loop that sends them settles jobs as well.
        """
        pending = [run for run in runs if run._point is not run._point_written]
        if not pending:
            return set()
        self._written_at = time.monotonic()
        points = [run._point for run in pending]
        try:
            rows = await send(
                lambda conn: write_progress_async(
                    conn,
                    ids=[run.id for run in pending],
                    claims=[run.claims for run in pending],
                    fractions=[point and point.fraction for point in points],
                    messages=[point and point.message for point in points],
                    worker=self._worker,
                )
            )
        except Exception as error:
            expected = isinstance(error, _PASSING)
            if expected and not isinstance(error, _REFUSALS):
                raise
            logger.error(
                "the progress of %d jobs is refused: %s",
                len(pending),
                str(error),
                exc_info=None if expected else error,
                extra={"event": "jobs.worker.progress_refused", "jobs": len(pending)},
            )
            rows = []
        busy = {(row.id, row.claims) for row in rows if row.verdict == "busy"}
        for run, point in zip(pending, points, strict=True):
            if (run.id, run.claims) not in busy:
                run._point_written = point  # also where it is lost: nobody asks again
        return {run for run in pending if (run.id, run.claims) in busy}

    def _note(self, run: Run) -> None:
        self._changed[run] = None
        if self._timer is None and not self.due:
            wait = max(0.0, self._written_at + EVERY - time.monotonic())
            self._timer = self._loop.call_later(wait, self._elapse)

    def _elapse(self) -> None:
        self._timer = None
        self.due = True
        self._ring()
