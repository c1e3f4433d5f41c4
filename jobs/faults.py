"""Errors of runs, of their results and of the processes they are in; see `jobs.errors`."""

from __future__ import annotations

from uuid import UUID

from jobs.errors import JobsError, Terminal


class ResultInvalid(Terminal, ValueError):
    """Raised in an attempt whose function returned what cannot be stored unchanged.

    The job ends at once, as dead (or failed): its function has done its work and would return the
    same again.

    Attributes:
        field: Path of the offending value, for example ``result.items[3].name``.
    """

    code = "JOB_RESULT_INVALID"
    fix = (
        "Return what the annotation says and JSON can hold, or annotate the function with None to "
        "store nothing."
    )

    def __init__(self, cause: str, *, field: str, fix: str | None = None) -> None:
        super().__init__(f"{field}: {cause}", fix=fix)
        self.reason = cause
        self.field = field


class ResultUnreadable(JobsError, ValueError):
    """Raised when a stored result does not fit the annotation of the function any more."""

    code = "JOB_RESULT_UNREADABLE"
    fix = "Annotate the function with a type that accepts it, or read the text with jobs.inspect."


class ResultUnavailable(JobsError):
    """Base of the ways in which a job ended without a result.

    Attributes:
        id: The job.
        state: The state it ended in.
        stop_reason: Why it ended, as on its row.
        last_error: Type and message of its newest failed attempt, if any.
    """

    code = "JOB_RESULT_UNAVAILABLE"

    def __init__(
        self, cause: str, *, id: UUID, state: str, stop_reason: str | None, last_error: str | None
    ) -> None:
        super().__init__(cause)
        self.id = id
        self.state = state
        self.stop_reason = stop_reason
        self.last_error = last_error


class JobFailed(ResultUnavailable):
    """Raised by a wait for the result of a job that ended as failed: no dead letter was wanted."""

    code = "JOB_FAILED"
    fix = "See last_error and the job's attempts; jobs.control.requeue runs it once more."


class JobDead(JobFailed):
    """Raised by a wait for the result of a job that ended as dead."""

    code = "JOB_DEAD"


class JobCancelled(ResultUnavailable):
    """Raised by a wait for the result of a job that was cancelled, or superseded by a sibling."""

    code = "JOB_CANCELLED"
    fix = "Enqueue it anew if it is still wanted."


class JobRefused(ResultUnavailable):
    """Raised by a wait for the result of a job that was refused because its key was busy."""

    code = "JOB_REFUSED"
    fix = "Enqueue it again once the other job of its key has ended."


class ResultTimeout(JobsError, TimeoutError):
    """Raised when a job has not ended within the time that its result was waited for.

    Attributes:
        id: The job, which goes on.
        state: The state it was in when last seen.
    """

    code = "JOB_RESULT_TIMEOUT"
    fix = "Wait again, or longer; nothing was changed."

    def __init__(self, cause: str, *, id: UUID, state: str) -> None:
        super().__init__(cause)
        self.id = id
        self.state = state


class ResultInTransaction(JobsError, RuntimeError):
    """Raised when a result would be waited for on a connection that is in a transaction.

    The job may have been enqueued in it and so be visible to nobody, and what the transaction
    holds, it would hold for the whole wait. The result of a job that has ended is read there.
    """

    code = "JOB_RESULT_IN_TRANSACTION"
    fix = "Commit first, or wait on another connection."


class RunConnectionUnavailable(JobsError, RuntimeError):
    """Raised when run.connection() has no pool of the right flavour or gets a session in use."""

    code = "JOB_RUN_CONNECTION_UNAVAILABLE"
    fix = (
        "Give the worker a pool: Worker(..., pool=AsyncConnectionPool) or sync_pool=ConnectionPool."
    )


class RunFeatureUnavailable(JobsError, RuntimeError):
    """Raised when a job function uses what is not there where it runs, in a process for example."""

    code = "JOB_RUN_FEATURE_UNAVAILABLE"
    fix = "Declare the job with executor='thread', or do without it."


class ProcessDied(JobsError, RuntimeError):
    """Raised in an attempt whose process ended before its function did.

    Attributes:
        exit_code: Its exit status, or minus the number of the signal that ended it; None where the
            operating system has not told.
    """

    code = "JOB_PROCESS_DIED"
    fix = "See the kernel's log for a lack of memory, and the function for os._exit and crashes."

    def __init__(self, cause: str, *, exit_code: int | None) -> None:
        super().__init__(cause)
        self.exit_code = exit_code
