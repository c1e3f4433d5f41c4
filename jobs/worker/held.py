"""The jobs that this process holds: what the claim loop, the renewals and the settles share."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass, field
from datetime import timedelta
from uuid import UUID

from jobs.run import Run
from jobs_sql.claim import ClaimJobsRow


@dataclass(slots=True, eq=False)
class Outcome:
    """What a finished run asks of the database.

    Attributes:
        kind: completed, retry, dead, released, snoozed, refused or cancelled.
        delay: Until the job is due again, for retry, released and snoozed.
        error_type: Class name of the error, None without one.
        error_message: Its text, bounded and free of what PostgreSQL cannot store.
        traceback: Its traceback, bounded, for the attempt's row.
        result: What the function returned, as JSON text; None for nothing.
    """

    kind: str
    delay: timedelta = timedelta()
    error_type: str | None = None
    error_message: str | None = None
    traceback: str | None = None
    result: str | None = None


@dataclass(slots=True, eq=False)
class Held:
    """A claimed job from its claim to the answer to its settle.

    Attributes:
        row: The row as claimed.
        run: What the function is given.
        renewed_at: Monotonic seconds when the newest lease that landed was asked for.
        task: The task that runs it, None until it starts.
        thread: Whether the function runs in a thread, which cannot be interrupted.
        stop_reason: Why the worker cancelled it (lost, cancel, drain, and abandoned where it does
            not end); None while it did not.
        outcome: Set when the run has ended; None then where nothing may be written any more.
        tries: How often its settle has met a row that another session held.
        answered: Whether its settle has had its answer.
    """

    row: ClaimJobsRow
    run: Run
    renewed_at: float
    task: asyncio.Task[None] | None = None
    thread: bool = False
    stop_reason: str | None = None
    outcome: Outcome | None = None
    tries: int = 0
    answered: bool = False

    @property
    def settles(self) -> bool:
        """Whether its end may be written: its lease is not lost, and it is not abandoned."""
        return self.stop_reason in (None, "cancel", "drain")

    @property
    def stopped(self) -> Outcome:
        """The outcome of a run that ended because the worker cancelled it."""
        return Outcome("cancelled" if self.stop_reason == "cancel" else "released")

    @property
    def id(self) -> UUID:
        return self.row.id

    @property
    def claims(self) -> int:
        return self.row.claims


@dataclass(slots=True)
class Holding:
    """All jobs held by the process. Written by the event loop, read by the renewal thread."""

    _jobs: dict[UUID, Held] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, job: Held) -> Held | None:
        """Hold a job. Returns an older claim of it that was held until now, and is lost."""
        with self._lock:
            older = self._jobs.get(job.id)
            self._jobs[job.id] = job
            return older

    def remove(self, job: Held) -> None:
        with self._lock:
            if self._jobs.get(job.id) is job:
                del self._jobs[job.id]

    def snapshot(self) -> list[Held]:
        """All held jobs, in order of id, so that statements touch rows in one order."""
        with self._lock:
            jobs = list(self._jobs.values())
        return sorted(jobs, key=lambda job: job.id)

    def __len__(self) -> int:
        return len(self._jobs)


def hold(row: ClaimJobsRow, worker: str, asked_at: float) -> Held:
    """Make the record of a row that was just claimed.

    Args:
        row: The claimed row.
        worker: Label of this process.
        asked_at: Monotonic seconds when the claim was sent.
    """
    run = Run(
        id=row.id,
        run_id=row.run_id,
        name=row.name,
        queue=row.queue,
        attempt=row.attempt,
        max_attempts=row.max_attempts,
        tenant=row.tenant or None,
        claims=row.claims,
        worker=worker,
        created_at=row.created_at,
        traceparent=row.traceparent,
        enqueued_by=row.enqueued_by,
    )
    return Held(row, run, asked_at)
