"""What a job function is given besides its input, and how it settles in its own transaction."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NoReturn, overload
from uuid import UUID

import psycopg
from psycopg.pq import TransactionStatus

from jobs.classify import Snoozed
from jobs.errors import LONGEST_DELAY, CompletionOutsideTransaction, DelayInvalid, LeaseLost
from jobs.faults import ResultInvalid
from jobs.progress import Point, checked
from jobs.results import ResultCodec
from jobs.retry import is_final
from jobs.scoped import NO_SESSIONS, RunConnection, Sessions
from jobs_sql.progress import write_progress, write_progress_async
from jobs_sql.settle import SettleJobsRow, settle_jobs, settle_jobs_async

# Somebody else touches the row (a renewal): how often and how long to ask again, in seconds.
_AGAIN_PAUSE = 0.02
_AGAIN_TRIES = 250
# Two threads of one function may begin to wait at the same time.
_MAKING = threading.Lock()

NO_RESULT: Final = object()
"""Says that `Run.complete` is given no result, which None does not."""


@dataclass(frozen=True, slots=True)
class Desk:
    """What a worker offers to all of its runs.

    Attributes:
        changed: Called with a run that has said how far it is, in the thread that says so.
        sessions: Where `Run.connection` takes sessions from.
    """

    changed: Callable[[Run], None]
    sessions: Sessions = NO_SESSIONS


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
    _desk: Desk | None = field(default=None, repr=False)
    # What the declaration derives from the input. The tenant above is what the enqueuer was.
    _derived_tenant: str | None = field(default=None, repr=False)
    # None where the function stores nothing.
    _results: ResultCodec | None = field(default=None, repr=False)
    # Monotonic seconds when the attempt's time is up, and the same by this host's clock.
    _ends_at: float | None = field(default=None, repr=False)
    _deadline: datetime | None = field(default=None, repr=False)
    # The newest progress, what of it the database has, and whether the worker knows of the former.
    _point: Point | None = field(default=None, repr=False)
    _point_written: Point | None = field(default=None, repr=False)
    _noted: bool = field(default=False, repr=False)
    _cancelled: bool = field(default=False, repr=False)
    # Made by whoever waits for the flag; most never do.
    _cancelled_event: threading.Event | None = field(default=None, repr=False)
    # complete() was called: the outcome is decided by a transaction, and the worker asks for it.
    _completion_asked: bool = field(default=False, repr=False)
    # What it stores as the result, as JSON text.
    _completion_result: str | None = field(default=None, repr=False)
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

    @property
    def deadline(self) -> datetime | None:
        """When the attempt's time is up, None where the declaration has no timeout.

        By this host's clock, in UTC, for comparing with this host's clock and for handing on. The
        worker itself counts `remaining`, which no change of a clock can move.
        """
        return self._deadline

    @property
    def remaining(self) -> float | None:
        """Seconds until the attempt's time is up, never below 0; None without a timeout."""
        return None if self._ends_at is None else max(0.0, self._ends_at - time.monotonic())

    def _limit(self, seconds: float) -> None:
        """Begin to count the attempt's time. Of the worker."""
        self._ends_at = time.monotonic() + seconds
        self._deadline = datetime.now(UTC) + timedelta(seconds=seconds)

    def progress(self, fraction: float, message: str | None = None) -> None:
        """Say how far the run is, for whoever looks at the job.

        Never waits: the newest point is written at most once a second, and before the job's row
        says that the run has ended. It stays on the row over further attempts until one says
        otherwise, and on the finished job; a requeue forgets it.

        Args:
            fraction: From 0 to 1, kept to six digits. May fall.
            message: A text to show beside it; cut after 1,000 characters.

        Raises InvalidInput for what is no such number or text.
        """
        self._point = checked(fraction, message)
        if self._desk is not None:
            self._desk.changed(self)

    def connection(self) -> RunConnection:
        """A transaction on a session of the application, which carries the tenant of this job.

        ``async with run.connection() as conn:`` takes it from the worker's ``pool``, in a thread
        ``with run.connection() as conn:`` from its ``sync_pool``. The block is one transaction,
        committed at its end, rolled back by an exception. Within it the setting ``jobs.tenant`` is
        the tenant that the declaration derives from the input, empty for `NO_TENANT`, so that
        policies of row-level security can read ``current_setting('jobs.tenant', true)``. The
        setting ends with the transaction, in whatever way that ends.

        Raises:
            RunConnectionUnavailable: On entering, where the worker has no such pool.
            RunFeatureUnavailable: In a process.
        """
        sessions = NO_SESSIONS if self._desk is None else self._desk.sessions
        return RunConnection(sessions, self._derived_tenant)

    @overload
    def complete(self, conn: psycopg.Connection[Any], *, result: object = NO_RESULT) -> None: ...

    @overload
    def complete(
        self, conn: psycopg.AsyncConnection[Any], *, result: object = NO_RESULT
    ) -> Awaitable[None]: ...

    def complete(
        self,
        conn: psycopg.Connection[Any] | psycopg.AsyncConnection[Any],
        *,
        result: object = NO_RESULT,
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
            result: What is stored as the job's result, as the annotation of the function says. What
                the function returns afterwards is not stored.

        Raises:
            ResultInvalid: The result would not come back equal. Let it leave the job function.
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
        text = self._result_text(result)
        if isinstance(conn, psycopg.AsyncConnection):
            return self._complete_async(conn, text)
        point = self._point
        for _ in range(_AGAIN_TRIES):
            if point is not None and point is not self._point_written:
                write_progress(conn, **self._point_to_write(point))
            if self._landed(settle_jobs(conn, **self._settlement(text))):
                return None
            time.sleep(_AGAIN_PAUSE)
        raise self._lost("its row stayed locked by another session")

    async def _complete_async(self, conn: psycopg.AsyncConnection[Any], text: str | None) -> None:
        point = self._point
        for _ in range(_AGAIN_TRIES):
            if point is not None and point is not self._point_written:
                await write_progress_async(conn, **self._point_to_write(point))
            if self._landed(await settle_jobs_async(conn, **self._settlement(text))):
                return
            await asyncio.sleep(_AGAIN_PAUSE)
        raise self._lost("its row stayed locked by another session")

    def _result_text(self, result: object) -> str | None:
        if result is NO_RESULT:
            return None
        if self._results is None or not self._results.keeps:
            raise ResultInvalid("the function is annotated with None", field="result")
        return self._results.dump(result)

    def _point_to_write(self, point: Point) -> dict[str, Any]:
        return {
            "ids": [self.id],
            "claims": [self.claims],
            "fractions": [point.fraction],
            "messages": [point.message],
            "worker": self.worker,
        }

    def _settlement(self, result: str | None) -> dict[str, Any]:
        self._completion_asked, self._completion_result = True, result
        return {
            "ids": [self.id],
            "claims": [self.claims],
            "outcomes": ["completed"],
            "delays": [timedelta()],
            "error_types": [None],
            "error_messages": [None],
            "tracebacks": [None],
            "results": [result],
            "worker": self.worker,
            # the slot of its concurrency key stays, so that no claim waits for this transaction
            "release": False,
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
