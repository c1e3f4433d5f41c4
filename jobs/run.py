"""What a job function is given besides its input, and how it settles in its own transaction."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, NoReturn, overload
from uuid import UUID

import psycopg
from psycopg.pq import TransactionStatus

from jobs.classify import Snoozed
from jobs.errors import LONGEST_DELAY, CompletionOutsideTransaction, DelayInvalid, LeaseLost
from jobs.retry import is_final
from jobs_sql.settle import SettleJobsRow, settle_jobs, settle_jobs_async

# Somebody else touches the row (a renewal): how often and how long to ask again, in seconds.
_AGAIN_PAUSE = 0.02
_AGAIN_TRIES = 250
# Two threads of one function may begin to wait at the same time.
_MAKING = threading.Lock()


@dataclass(slots=True, eq=False)
class Run:
    """One attempt at one job, as seen by the job function.

    Attributes:
        id: The job's id.
        run_id: Identity of the run, the same in every attempt.
        name: The job's name.
        queue: The queue it was claimed from.
        attempt: Number of this attempt, from 1.
        max_attempts: The attempt limit.
        tenant: Tenant the job was enqueued for; None for none.
        claims: Fencing token of this attempt; grows with every claim of the job and is never
            reset, so an outside system can refuse writes of a smaller one.
        worker: Label of the worker process.
        created_at: When the job was enqueued, by the database's clock.
        traceparent: W3C trace parent of the enqueue, if one was given.
        enqueued_by: Who asked, for audit. Never an authority.
    """

    id: UUID
    run_id: UUID
    name: str
    queue: str
    attempt: int
    max_attempts: int
    tenant: str | None
    claims: int
    worker: str
    created_at: datetime
    traceparent: str | None = None
    enqueued_by: str | None = None
    _cancelled: bool = field(default=False, repr=False)
    # Made by whoever waits for the flag; most never do.
    _cancelled_event: threading.Event | None = field(default=None, repr=False)
    # complete() was called: the outcome is decided by a transaction, and the worker asks for it.
    _completion_asked: bool = field(default=False, repr=False)
    # It landed there, so that the job's row may be locked or gone without the lease being lost.
    _completion_landed: bool = field(default=False, repr=False)

    @property
    def final(self) -> bool:
        """Whether a failure of this attempt ends the job."""
        return is_final(self.attempt, self.max_attempts)

    @property
    def cancelled(self) -> bool:
        """Whether the run should stop: it was cancelled by an operator, its lease is lost, its time
        is up or the worker is leaving.

        Asynchronous functions are cancelled; synchronous ones look here between pieces of work and
        stop by raising something. A function that returns says that its work is done, and a job is
        completed then whatever this was.
        """
        return self._cancelled

    def wait_cancelled(self, timeout: float | None = None) -> bool:
        """Wait until the run should stop, in a synchronous function that would sleep otherwise.

        Blocks the thread, so never call it in an asynchronous function: that one is cancelled.

        Args:
            timeout: Seconds to wait at most; None for as long as it takes.

        Returns:
            `cancelled`: False where the time was up first.
        """
        event = self._cancelled_event
        if event is None:
            with _MAKING:
                event = self._cancelled_event = self._cancelled_event or threading.Event()
        # The flag is set before the event is looked for, and looked at after the event was made.
        return self._cancelled or event.wait(timeout)

    def _cancel(self) -> None:
        """Tell the function that it should stop. Of the worker; may be called by any thread."""
        self._cancelled = True
        if (event := self._cancelled_event) is not None:
            event.set()

    def snooze(self, delay: timedelta) -> NoReturn:
        """End this run and have the job run again later, as if it had not been tried now.

        Uses no attempt, is no error and counts for nothing. Never returns: it raises what carries
        the delay out of the function, which is no `Exception`, so that only a bare ``except`` or
        one of BaseException can hold it up. What the function has done is done, and the next run
        begins from the start.

        Args:
            delay: Until the job is due again, by the database's clock; up to ten years.

        Raises DelayInvalid for what is no time, or a negative one: the attempt fails then.
        """
        if not isinstance(delay, timedelta) or not timedelta() <= delay <= LONGEST_DELAY:
            raise DelayInvalid(
                f"job {self.id} snoozes for {delay!r:.200}, expected a timedelta from 0 to "
                f"{LONGEST_DELAY.days} days",
                fix="Pass a timedelta, for example timedelta(minutes=5).",
            )
        raise Snoozed(delay)

    @overload
    def complete(self, conn: psycopg.Connection[Any]) -> None: ...

    @overload
    def complete(self, conn: psycopg.AsyncConnection[Any]) -> Awaitable[None]: ...

    def complete(
        self, conn: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]
    ) -> Awaitable[None] | None:
        """Settle this job as completed inside the transaction that is open on ``conn``.

        What the transaction wrote and the end of the job then commit together or not at all: the
        effect happens exactly once. Call it once, after the job's own writes. If the transaction
        does not commit, let the exception leave the job function; a function that returns normally
        all the same has failed its attempt. Once it has committed the job stays completed, whatever
        the function does afterwards.

        Args:
            conn: The connection that carries the function's own transaction. A synchronous one
                returns None, an asynchronous one an awaitable.

        Raises:
            LeaseLost: The job is no longer held by this run, or this run has settled it before,
                for example in a transaction whose commit was not answered. Roll back.
            CompletionOutsideTransaction: The connection is in autocommit mode with no transaction
                open, so that there is nothing to commit together with.

        Locks the job's row until the transaction ends; renewals and rescues pass it by.
        """
        if conn.autocommit and conn.info.transaction_status == TransactionStatus.IDLE:
            raise CompletionOutsideTransaction(
                f"run.complete() of job {self.id} was called outside a transaction"
            )
        if isinstance(conn, psycopg.AsyncConnection):
            return self._complete_async(conn)
        for _ in range(_AGAIN_TRIES):
            if self._landed(settle_jobs(conn, **self._settlement())):
                return None
            time.sleep(_AGAIN_PAUSE)
        raise self._lost("its row stayed locked by another session")

    async def _complete_async(self, conn: psycopg.AsyncConnection[Any]) -> None:
        for _ in range(_AGAIN_TRIES):
            if self._landed(await settle_jobs_async(conn, **self._settlement())):
                return
            await asyncio.sleep(_AGAIN_PAUSE)
        raise self._lost("its row stayed locked by another session")

    def _settlement(self) -> dict[str, Any]:
        self._completion_asked = True
        return {
            "ids": [self.id],
            "claims": [self.claims],
            "outcomes": ["completed"],
            "delays": [timedelta()],
            "error_types": [None],
            "error_messages": [None],
            "tracebacks": [None],
            "results": [None],
            "worker": self.worker,
        }

    def _landed(self, rows: list[SettleJobsRow]) -> bool:
        verdict = rows[0].verdict
        if verdict == "lost":
            raise self._lost("another worker has it, or it was ended")
        if verdict == "repeated":
            # A success for the worker, which has nothing else to write. But this transaction holds
            # the effects of the function once more, and must not commit.
            raise self._lost("it has been settled by this run already")
        self._completion_landed = self._completion_landed or verdict == "landed"
        return verdict == "landed"

    def _lost(self, why: str) -> LeaseLost:
        return LeaseLost(f"job {self.id} ({self.name}) is no longer held by this run: {why}")
