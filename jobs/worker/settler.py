"""Send the outcomes of finished runs, in batches, until each has been answered."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine
from datetime import timedelta
from typing import Any

import psycopg
from psycopg import AsyncConnection

from jobs.errors import JobsError
from jobs.service.link import Link
from jobs.worker.held import Held, Outcome, in_order_of_id
from jobs.worker.reporter import Reporter
from jobs.worker.slots import Slots
from jobs_sql.progress import WriteProgressRow
from jobs_sql.settle import SettleJobsRow, settle_jobs_async

logger = logging.getLogger("jobs.worker")

MAX_BATCH = 500
# No claim while this many outcomes wait for their answer: the database cannot keep up.
CHOKED = 2_000
# Characters of results that one statement may carry, by at most one result more.
MAX_CHARACTERS = 8 * 1024 * 1024
TIMEOUT = 10.0
# While jobs wait for a slot here, fewer outcomes than this are sent after so many seconds.
_WORTH_SENDING = 200
_LINGER = 0.004
_FIRST_PAUSE = 0.02
_LONGEST_PAUSE = 2.0
_REFUSED = "SettleRefused"


def _may_pass(error: Exception) -> bool:
    """Whether sending the same once more can help.

    It cannot where the data is to blame: data exception, constraint violation, or raised by
    somebody's trigger. No rights, read-only, out of disk say nothing against the outcomes.
    """
    if isinstance(error, psycopg.Error):
        blamed = isinstance(error, psycopg.DataError | psycopg.IntegrityError)
        return not blamed and not (error.sqlstate or "").startswith("P0")
    return isinstance(error, JobsError | TimeoutError | OSError)


class Settler:
    """One loop over one connection: whatever has piled up while a batch was under way is the next.

    What belongs to the end of a job is done here: before a batch is sent, in `_send`; with the
    answer to one job, in ``answered``; after a batch has been answered, at the end of `_settle`.
    What running jobs say of their progress is written on the same connection, between two batches.

    A settle is sent again for as long as it takes: what has landed already is answered as a repeat,
    what has been taken away as lost, so that sending again is always safe.
    """

    def __init__(
        self,
        link: Link,
        worker: str,
        answered: Callable[[Held, str, str | None], None],
        completed: Callable[[list[Held]], None],
        more: Callable[[], bool],
        slots: Slots,
    ) -> None:
        """
        Args:
            link: Connection of this settler alone.
            worker: Label of this process, part of the fence.
            answered: Called in the event loop with the job, the verdict (landed, repeated, lost,
                refused) and the state the job is in now (None unless landed).
            completed: Called in its place, once for all jobs of an answer that have landed as
                completed and let nobody out of the line of a key. Must not raise.
            more: Whether more jobs end soon, so that a small batch is worth a moment's wait.
            slots: Is told of the concurrency keys that were let go.
        """
        self._link = link
        self._worker = worker
        self._answered = answered
        self._completed = completed
        self._more = more
        self._slots = slots
        self._pending: deque[Held] = deque()
        self._flying = 0
        self._parked: set[Held] = set()
        self._work = asyncio.Event()
        self.reporter = Reporter(worker, self._work.set)
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def backlog(self) -> int:
        """Outcomes not answered yet."""
        return len(self._pending) + self._flying + len(self._parked)

    def submit(self, job: Held) -> None:
        """Queue the outcome of ``job``. Never blocks."""
        if not self._pending:  # else both are as they have to be
            self._idle.clear()
            self._work.set()
        self._pending.append(job)

    async def flush(self, seconds: float) -> bool:
        """Wait until nothing is unanswered; return whether that came in that many seconds."""
        try:
            async with asyncio.timeout(seconds):
                await self._idle.wait()
        except TimeoutError:
            return False
        return True

    async def run(self) -> None:
        """Settle until cancelled."""
        pause = _FIRST_PAUSE
        while True:
            await self._work.wait()
            if self.reporter.due:
                await self.reporter.report(self._call)
            if len(self._pending) < _WORTH_SENDING and self._more():
                await asyncio.sleep(_LINGER)
            batch = self._next_batch()
            if not self._pending:
                self._work.clear()
            if not batch:
                continue
            self._flying = len(batch)
            try:
                unanswered = await self._settle(batch)
            except Exception:  # whatever it is, the outcomes must not be lost
                logger.exception("settling %d jobs failed unexpectedly", len(batch))
                unanswered = batch
            self._flying = 0
            unanswered = [job for job in unanswered if not job.answered and job not in self._parked]
            if unanswered:
                self._pending.extendleft(reversed(unanswered))
                self._work.set()
                await asyncio.sleep(pause)
                pause = min(pause * 2, _LONGEST_PAUSE)
            else:
                pause = _FIRST_PAUSE
            del batch, unanswered  # nothing of a job is kept until there is more to do
            if not self.backlog:
                self._idle.set()

    def _next_batch(self) -> list[Held]:
        batch: list[Held] = []
        room = MAX_CHARACTERS
        while self._pending and len(batch) < MAX_BATCH and room > 0:
            job = self._pending.popleft()
            batch.append(job)
            if (outcome := job.outcome) is not None and outcome.result is not None:
                room -= len(outcome.result)
        return batch

    def _park(self, job: Held) -> None:
        """Send a job's settle again later, while the others go on."""
        self._flying -= 1
        self._parked.add(job)
        delay = min(_FIRST_PAUSE * 2.0 ** min(job.tries, 10), _LONGEST_PAUSE)
        job.tries += 1
        asyncio.get_running_loop().call_later(delay, self._unpark, job)

    def _unpark(self, job: Held) -> None:
        self._parked.discard(job)
        self.submit(job)

    def _answer(self, job: Held, verdict: str, state: str | None) -> None:
        if job.answered:
            return
        job.answered = True
        self._flying -= 1
        try:
            self._answered(job, verdict, state)
        except Exception:  # the neighbours of the batch have to be answered all the same
            logger.exception("taking note of the end of job %s failed", job.id)

    async def _settle(self, batch: list[Held]) -> list[Held]:
        """Send a batch; return the jobs whose settle has to be sent again soon."""
        try:
            batch = await self._reported(batch)
            rows = await self._send(batch) if batch else []
        except Exception as error:
            if not _may_pass(error):
                return await self._isolate(batch, error)
            logger.warning(
                "settling %d jobs failed, trying again: %s",
                len(batch),
                str(error),
                extra={"event": "jobs.worker.settle_failed", "jobs": len(batch)},
            )
            return batch
        done: list[Held] = []
        for row in rows:
            job = batch[row.place - 1]
            if row.promoted_queues is not None:
                self._slots.settled(row)
            if row.verdict == "landed" and row.state == "completed" and not job.answered:
                job.answered = True
                done.append(job)
            elif row.verdict == "again":
                self._park(job)  # another session holds its row
            else:
                self._answer(job, row.verdict, row.state)
        self._flying -= len(done)
        self._completed(done)
        return []

    async def _isolate(self, batch: list[Held], error: Exception) -> list[Held]:
        """A batch the server refuses: find the ones it refuses, so that the others settle."""
        if len(batch) > 1:
            for place, job in enumerate(batch):
                if await self._settle([job]):
                    return batch[place:]  # for another reason, which holds for the rest as well
            return []
        (job,) = batch
        logger.error(
            "the database refuses the outcome of job %s (%s): %s",
            job.id,
            job.row.name,
            str(error),
            extra={"event": "jobs.worker.settle_refused", "job": str(job.id)},
        )
        if job.outcome is None or job.outcome.error_type == _REFUSED:
            self._answer(job, "refused", None)  # its lease lapses, and the claim takes it up
            return []
        kind = "completed" if job.outcome.kind == "completed" else "retry"
        sqlstate = getattr(error, "sqlstate", None)
        job.outcome = Outcome(kind, timedelta(minutes=1), _REFUSED, f"SQLSTATE {sqlstate}")
        return await self._settle([job])

    async def _reported(self, batch: list[Held]) -> list[Held]:
        """Write the last progress of the jobs; return those whose row nobody holds just now."""
        if not self.reporter.used:
            return batch
        runs = {run: job for job in batch if (run := job.unwritten) is not None}
        busy = await self.reporter.flush(runs, self._call)
        for run in busy:
            self._park(runs[run])
        return [job for job in batch if job not in self._parked] if busy else batch

    async def _call(
        self,
        statement: Callable[[AsyncConnection[Any]], Coroutine[Any, Any, list[WriteProgressRow]]],
    ) -> list[WriteProgressRow]:
        return await self._link.call(statement, TIMEOUT)

    async def _send(self, batch: list[Held]) -> list[SettleJobsRow]:
        batch.sort(key=in_order_of_id)
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
                results=[outcome.result for outcome in outcomes],
                worker=self._worker,
                release=True,
            ),
            TIMEOUT,
        )
