"""Send the outcomes of finished runs, in batches, until each has been answered."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from datetime import timedelta

import psycopg

from jobs.worker.held import Held, Outcome
from jobs.worker.link import Link
from jobs_sql.settle import SettleJobsRow, settle_jobs_async

logger = logging.getLogger("jobs.worker")

MAX_BATCH = 500
_TIMEOUT = 10.0
_FIRST_PAUSE = 0.02
_LONGEST_PAUSE = 2.0


class Settler:
    """One loop over one connection: whatever has piled up while a batch was under way is the next.

    A settle is sent again for as long as it takes: what has landed already is answered as a repeat,
    what has been taken away as lost, so that sending again is always safe.
    """

    def __init__(
        self, link: Link, worker: str, answered: Callable[[Held, str, str | None], None]
    ) -> None:
        """
        Args:
            link: Connection of this settler alone.
            worker: Label of this process, part of the fence.
            answered: Called in the event loop with the job, the verdict (landed, repeated, lost,
                refused) and the state the job is in now (None unless landed).
        """
        self._link = link
        self._worker = worker
        self._answered = answered
        self._pending: deque[Held] = deque()
        self._flying = 0
        self._parked = 0
        self._work = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def backlog(self) -> int:
        """Outcomes not answered yet."""
        return len(self._pending) + self._flying + self._parked

    def submit(self, job: Held) -> None:
        """Queue the outcome of ``job``. Never blocks."""
        self._pending.append(job)
        self._idle.clear()
        self._work.set()

    async def flush(self, timeout: float) -> bool:
        """Wait until nothing is unanswered; return whether that came in ``timeout`` seconds."""
        try:
            async with asyncio.timeout(timeout):
                await self._idle.wait()
        except TimeoutError:
            return False
        return True

    async def run(self) -> None:
        """Settle until cancelled."""
        pause = _FIRST_PAUSE
        while True:
            await self._work.wait()
            batch = [self._pending.popleft() for _ in range(min(len(self._pending), MAX_BATCH))]
            if not self._pending:
                self._work.clear()
            if not batch:
                continue
            self._flying = len(batch)
            try:
                unanswered = await self._settle(batch)
            except Exception:  # whatever it is, the outcomes must not be lost
                logger.exception("settling %d jobs failed unexpectedly", len(batch))
                unanswered = [job for job in batch if not job.answered]
            finally:
                self._flying = 0
            if unanswered:
                self._pending.extendleft(reversed(unanswered))
                self._work.set()
                await asyncio.sleep(pause)
                pause = min(pause * 2, _LONGEST_PAUSE)
            else:
                pause = _FIRST_PAUSE
            if not self.backlog:
                self._idle.set()

    def _park(self, job: Held) -> None:
        """Send a job's settle again later: another session holds its row, and the others go on."""
        self._parked += 1
        delay = min(_FIRST_PAUSE * 2.0 ** min(job.tries, 10), _LONGEST_PAUSE)
        job.tries += 1
        asyncio.get_running_loop().call_later(delay, self._unpark, job)

    def _unpark(self, job: Held) -> None:
        self._parked -= 1
        self.submit(job)

    def _answer(self, job: Held, verdict: str, state: str | None) -> None:
        job.answered = True
        self._answered(job, verdict, state)

    async def _settle(self, batch: list[Held]) -> list[Held]:
        """Send a batch; return the jobs whose settle has to be sent again."""
        try:
            rows = await self._send(batch)
        except (psycopg.OperationalError, psycopg.InterfaceError, TimeoutError, OSError) as error:
            logger.warning(
                "settling %d jobs failed, trying again: %s",
                len(batch),
                error,
                extra={"event": "jobs.worker.settle_failed", "jobs": len(batch)},
            )
            return batch
        except psycopg.Error as error:
            return await self._isolate(batch, error)
        by_token = {(row.id, row.claims): row for row in rows}
        for job in batch:
            row = by_token[(job.id, job.claims)]
            if row.verdict == "again":
                self._park(job)
            else:
                self._answer(job, row.verdict, row.state)
        return []

    async def _isolate(self, batch: list[Held], error: psycopg.Error) -> list[Held]:
        """A batch the server refuses: find the one it refuses, so that the others settle."""
        if len(batch) > 1:
            again = []
            for job in batch:
                again += await self._settle([job])
            return again
        (job,) = batch
        logger.error(
            "the database refuses the outcome of job %s (%s): %s",
            job.id,
            job.row.name,
            error,
            extra={"event": "jobs.worker.settle_refused", "job": str(job.id)},
        )
        if job.outcome is None or job.outcome.error_type == "SettleRefused":
            self._answer(job, "refused", None)  # its lease lapses, and the claim takes it up
            return []
        kind = "completed" if job.outcome.kind == "completed" else "retry"
        job.outcome = Outcome(
            kind, timedelta(minutes=1), "SettleRefused", f"SQLSTATE {error.sqlstate}", None
        )
        return [job]

    async def _send(self, batch: list[Held]) -> list[SettleJobsRow]:
        batch.sort(key=lambda job: job.row.id)
        outcomes = [job.outcome or Outcome("released") for job in batch]
        return await self._link.call(
            lambda conn: settle_jobs_async(
                conn,
                ids=[job.row.id for job in batch],
                claims=[job.row.claims for job in batch],
                outcomes=[outcome.kind for outcome in outcomes],
                delays=[outcome.delay for outcome in outcomes],
                error_types=[outcome.error_type for outcome in outcomes],
                error_messages=[outcome.error_message for outcome in outcomes],
                tracebacks=[outcome.traceback for outcome in outcomes],
                worker=self._worker,
            ),
            _TIMEOUT,
        )
