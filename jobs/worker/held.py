"""The jobs that this process holds: what the claim loop, the renewals and the settles share.

A record is made for each job, so it holds no more than a job needs: what a function is given
(`Run`) is made when somebody asks for it. A value that comes with the row and goes to the function
belongs into `make_run`; one that the function's end sends to the database is an attribute of
`Outcome`.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from operator import attrgetter
from typing import TYPE_CHECKING, Final
from uuid import UUID

from jobs.run import Desk, Run
from jobs_sql.claim import ClaimJobsRow

if TYPE_CHECKING:
    from jobs.worker.runner import Runner

in_order_of_id: Final = attrgetter("row.id.int")
"""Sort key of held jobs, so that statements touch rows in one order."""


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


COMPLETED: Final = Outcome("completed")
"""The outcome of every job that ends well and has nothing more to say."""


class Held:
    """A claimed job from its claim to the answer to its settle.

    It waits (no task, no outcome), runs (a task), or has ended (an outcome, or a reason of a stop).

    Attributes:
        row: The row as claimed.
        worker: Label of this process.
        desk: What the worker offers to its runs.
        renewed_at: Monotonic seconds when the newest lease that landed was asked for.
        begun: Whether a runner has taken it.
        task: The task that runs it, None before and afterwards.
        thread: Whether the function runs in a thread, which cannot be interrupted.
        stop_reason: Why the worker cancelled it (lost, cancel, drain, and abandoned where it does
            not end); None while it did not.
        outcome: Set when the run has ended; None then where nothing may be written any more.
        tries: How often its settle has met a row that another session held.
        answered: Whether its settle has had its answer.
    """

    __slots__ = (
        "_run",
        "answered",
        "begun",
        "desk",
        "outcome",
        "renewed_at",
        "row",
        "stop_reason",
        "task",
        "thread",
        "tries",
        "worker",
    )

    def __init__(
        self, row: ClaimJobsRow, worker: str, renewed_at: float, desk: Desk | None = None
    ) -> None:
        self.row = row
        self.worker = worker
        self.desk = desk
        self.renewed_at = renewed_at
        self.begun = False
        self.task: Runner | None = None
        self.thread = False
        self.stop_reason: str | None = None
        self.outcome: Outcome | None = None
        self.tries = 0
        self.answered = False
        self._run: Run | None = None

    @property
    def run(self) -> Run:
        """What the function is given; made when first asked for, in the event loop."""
        run = self._run
        if run is None:
            run = self._run = make_run(self.row, self.worker, self.desk)
        return run

    @property
    def completion_asked(self) -> bool:
        """Whether the function has called ``run.complete()``, so that its transaction decides."""
        return self._run is not None and self._run._completion_asked

    @property
    def completion_landed(self) -> bool:
        """Whether that landed: its row may be locked or gone without the lease being lost."""
        return self._run is not None and self._run._completion_landed

    @property
    def result(self) -> str | None:
        """What a job that has completed has stored, as JSON text."""
        if self._run is not None and self._run._completion_asked:
            return self._run._completion_result
        return None if self.outcome is None else self.outcome.result

    @property
    def unwritten(self) -> Run | None:
        """The run, where it has said how far it is and that is not written yet."""
        run = self._run
        return None if run is None or run._point is run._point_written else run

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


def make_run(row: ClaimJobsRow, worker: str, desk: Desk | None) -> Run:
    """Make what the function of a claimed job is given."""
    return Run(
        row.id,
        UUID(row.run_id),
        row.name,
        row.queue,
        row.attempt,
        row.max_attempts,
        row.tenant or None,
        row.claims,
        worker,
        datetime.fromtimestamp(row.created_epoch, UTC),
        row.traceparent,
        row.enqueued_by,
        desk,
    )


class Holding:
    """All jobs held by the process. Written by the event loop, read by the renewal thread."""

    __slots__ = ("_jobs", "_lock")

    def __init__(self) -> None:
        # By the integer of the id: its hash is the interpreter's own.
        self._jobs: dict[int, Held] = {}
        self._lock = threading.Lock()

    def add(self, jobs: Iterable[Held]) -> list[Held]:
        """Hold jobs. Returns older claims of them that were held until now, and are lost."""
        older = []
        held = self._jobs
        with self._lock:
            for job in jobs:
                key = job.row.id.int
                if key in held:
                    older.append(held[key])
                held[key] = job
        return older

    def remove(self, jobs: Iterable[Held]) -> None:
        """Hold jobs no longer."""
        held = self._jobs
        with self._lock:
            for job in jobs:
                key = job.row.id.int
                if held.get(key) is job:
                    del held[key]

    def snapshot(self) -> list[Held]:
        """All held jobs, in order of id, so that statements touch rows in one order."""
        with self._lock:
            jobs = list(self._jobs.values())
        jobs.sort(key=in_order_of_id)
        return jobs

    def __len__(self) -> int:
        return len(self._jobs)
