"""Every error the library raises, each with a stable code, a one-line cause and a fix.

``docs/errors.md`` has a section for every code, and a test keeps the two complete.
"""

from __future__ import annotations

from datetime import timedelta
from uuid import UUID

from jobs import error_install
from jobs.error_base import JobsError as JobsError

MigrationBusy = error_install.MigrationBusy
MigrationChanged = error_install.MigrationChanged
MigrationError = error_install.MigrationError
MigrationInTransaction = error_install.MigrationInTransaction
MigrationRightsMissing = error_install.MigrationRightsMissing
SchemaOutdated = error_install.SchemaOutdated
SchemaTooNew = error_install.SchemaTooNew


class DeclarationError(JobsError, ValueError):
    """Raised when a job is declared with something that could only fail later."""

    code = "JOB_DECLARATION_INVALID"
    fix = "Correct the argument named in the message where the job is declared."


class IdempotencyRequired(DeclarationError):
    """Raised when a job declares no idempotency key, or the key function returns an empty one."""

    code = "JOB_IDEMPOTENCY_REQUIRED"
    fix = "Pass idempotency_key=lambda input: ... or say idempotency_key=jobs.NO_KEY."


class TenantRequired(DeclarationError):
    """Raised when a job declares no tenant, or the tenant function returns an empty one."""

    code = "JOB_TENANT_REQUIRED"
    fix = "Pass tenant=lambda input: ... or say tenant=jobs.NO_TENANT."


class DuplicateName(DeclarationError):
    """Raised when two jobs claim one name, or one job is exported under two names."""

    code = "JOB_NAME_DUPLICATE"
    fix = "Give each job its own name with name=..., and export each handle once."


class ScheduleInvalid(DeclarationError):
    """Raised when a task or a schedule could not be due, or not fire, as it is declared.

    Attributes:
        field: What is wrong: ``cron hour``, ``tz``, ``every``, ``catch_up``, ``entries[2]`` or so.
    """

    code = "JOB_SCHEDULE_INVALID"
    fix = "Correct the field named in the message."

    def __init__(self, cause: str, *, field: str, fix: str | None = None) -> None:
        super().__init__(f"{field}: {cause}", fix=fix)
        self.reason = cause
        self.field = field


class ModuleShadowed(JobsError, ImportError):
    """Raised when a module of the application is called ``jobs``, the name of this library."""

    code = "JOB_MODULE_SHADOWED"
    fix = "Rename the application's jobs.py, for example to background.py, and import that."


class ConfigError(JobsError, ValueError):
    """Raised when a worker or another service is given a setting it cannot keep."""

    code = "JOB_CONFIG_INVALID"
    fix = "Correct the setting named in the message."


class ClaimQueuesEmpty(ConfigError):
    """Raised when a worker is told to claim from no queue."""

    code = "JOB_CLAIM_QUEUES_EMPTY"
    fix = "Name at least one queue with at least one slot, for example queues={'default': 5}."


class EnqueueError(JobsError):
    """Base of what can go wrong while enqueueing. Nothing was written."""

    code = "JOB_ENQUEUE_FAILED"


class InvalidInput(EnqueueError, ValueError):
    """Raised when a payload, key, name or time is one that cannot be stored unchanged.

    Attributes:
        field: Path of the offending value, for example ``input.items[3].name`` or ``queue``.
        index: Position of the bad item in a bulk enqueue, else None.
    """

    code = "JOB_INPUT_INVALID"
    fix = "Correct the value at the path named in the message; nothing was enqueued."

    def __init__(self, cause: str, *, field: str, fix: str | None = None) -> None:
        super().__init__(f"{field}: {cause}", fix=fix)
        self.reason = cause
        self.field = field


class DuplicateJob(EnqueueError):
    """Raised for ``on_conflict="raise"`` when the idempotency key or the id is taken.

    Attributes:
        id: Id of the job that has it.
        run_id: Run id of that job.
    """

    code = "JOB_DUPLICATE"
    fix = "Use the default on_conflict='return' to receive the existing job instead."

    def __init__(self, cause: str, *, id: UUID, run_id: UUID) -> None:
        super().__init__(cause)
        self.id = id
        self.run_id = run_id


class ConnectionUnsupported(EnqueueError, TypeError):
    """Raised when a connection cannot be enqueued on: it is no psycopg 3 connection, or its
    encoding lacks a character of the job."""

    code = "JOB_CONNECTION_UNSUPPORTED"
    fix = "Pass a psycopg.Connection or psycopg.AsyncConnection, for example one from a pool."


class IsolationUnsupported(EnqueueError):
    """Raised when a job with a supplied id is enqueued above the isolation level READ COMMITTED.

    Whether a job of that id has finished meanwhile can only be told by a second, fresh snapshot.
    """

    code = "JOB_ISOLATION_UNSUPPORTED"
    fix = "Enqueue in a READ COMMITTED transaction, or leave id= away."


class EnqueueContended(EnqueueError):
    """Raised when the database gave up waiting for another session that enqueues the same key.

    The psycopg error (lock timeout, deadlock, serialization failure) is the ``__cause__``; there is
    none where other sessions took and released the key again and again between two tries.
    The caller's transaction must be rolled back; trying it again is safe.
    """

    code = "JOB_ENQUEUE_CONTENDED"
    fix = "Roll back and run the transaction again."


class TransactionRequired(EnqueueError):
    """Raised when a job is to be enqueued or staged only in a transaction, and there is none."""

    code = "OUTBOX_NO_TX"
    fix = "Enqueue inside `with conn.transaction():`, or pass require_transaction=False."


class PayloadUnreadable(JobsError, ValueError):
    """Raised before a run when the stored payload is not JSON or does not fit the model."""

    code = "JOB_PAYLOAD_UNREADABLE"
    fix = "Deploy a model that accepts the stored payload, or cancel the job and enqueue it anew."


class JobNotFound(JobsError, LookupError):
    """Raised when no live or finished job has the id."""

    code = "JOB_NOT_FOUND"
    fix = "Check the id; finished jobs disappear when retention removes them."


class PageInvalid(JobsError, ValueError):
    """Raised when a page of a listing is asked for with a bad size, filter or cursor."""

    code = "JOB_PAGE_INVALID"
    fix = "Ask for a page within the bounds named in the message."


class ControlInvalid(JobsError, ValueError):
    """Raised when an operator's call is given something it cannot use. Nothing was changed."""

    code = "JOB_CONTROL_INVALID"
    fix = "Correct the argument named in the message."


class ScheduleNotFound(JobsError, LookupError):
    """Raised when there is no schedule of the name."""

    code = "JOB_SCHEDULE_NOT_FOUND"
    fix = "Check the name with `jobs tasks list`; a declared task is there once a scheduler ran."


class ScheduleExists(JobsError):
    """Raised when a schedule is made under a name that another has. Nothing was changed."""

    code = "JOB_SCHEDULE_EXISTS"
    fix = "Change that one with change_schedule, or choose another name."


class JobNotCancellable(JobsError):
    """Raised when a job that has ended is to be cancelled.

    Attributes:
        id: The job.
        state: The state it ended in.
    """

    code = "JOB_NOT_CANCELLABLE"
    fix = "Nothing is left to cancel; what a completed job has done stays done."

    def __init__(self, cause: str, *, id: UUID, state: str) -> None:
        super().__init__(cause)
        self.id = id
        self.state = state


class JobNotRequeueable(JobsError):
    """Raised when a job cannot be made live again. Nothing was changed.

    Attributes:
        id: The job.
        state: The state it is in.
        holder: The live job that has its idempotency key, where that is the reason and it is known.
    """

    code = "JOB_NOT_REQUEUEABLE"
    fix = "See the message for what is in the way."

    def __init__(
        self,
        cause: str,
        *,
        id: UUID,
        state: str,
        holder: UUID | None = None,
        fix: str | None = None,
    ) -> None:
        super().__init__(cause, fix=fix)
        self.id = id
        self.state = state
        self.holder = holder


class JobBusy(JobsError):
    """Raised when another session kept a job's row locked for as long as the call was to wait.

    Attributes:
        id: The job. Nothing was changed.
    """

    code = "JOB_BUSY"
    fix = "Try again; a run that completes in a transaction of its own keeps its row until it ends."

    def __init__(self, cause: str, *, id: UUID) -> None:
        super().__init__(cause)
        self.id = id


class UnknownState(JobsError):
    """Raised when a row is in a state that this version of the library does not know."""

    code = "JOB_STATE_UNKNOWN"
    fix = "Upgrade this process: a newer version of the library writes to the same database."


class LeaseLost(JobsError):
    """Raised inside a run that no longer holds its job, so its effects must not be recorded."""

    code = "JOB_LEASE_LOST"
    fix = "Let the run end; the job has been given to another worker or was ended."


class CompletionOutsideTransaction(JobsError, RuntimeError):
    """Raised when run.complete() is called on a connection that has no transaction to join."""

    code = "JOB_COMPLETION_OUTSIDE_TRANSACTION"
    fix = "Call run.complete(conn) inside `with conn.transaction():`, after the job's own writes."


class JobTimeout(JobsError, TimeoutError):
    """Raised when an attempt runs longer than the timeout of its declaration."""

    code = "JOB_TIMEOUT"
    fix = "Raise timeout=..., or make the job shorter."


class DelayInvalid(JobsError, ValueError):
    """Raised inside a run that snoozes, or asks for a later try, for what is no time."""

    code = "JOB_DELAY_INVALID"
    fix = "Pass a timedelta, or seconds from 0 up."


class Terminal(JobsError):
    """Raise it, or a class derived from it, where no further try of a job can help.

    The job ends at once, as dead (or failed), with the stop reason ``terminal``, however many
    attempts are left. ``raise jobs.Terminal("the account is closed") from error`` keeps the error
    that told you in the traceback.
    """

    code = "JOB_TERMINAL"
    fix = "Remove the cause, then requeue the job with `jobs requeue`."
    # for a derived class whose __init__ does not call this one
    cause: str = "the job cannot succeed"

    def __init__(self, cause: str = "the job cannot succeed", *, fix: str | None = None) -> None:
        super().__init__(cause, fix=fix)


class RetryAfter(JobsError):
    """Raise it where a job failed for now and it is known when another try is worth making.

    The attempt has failed and counts. The next one, if any is left, comes after ``delay`` instead
    of the delay of the curve, and not later than the ``max_delay`` of the job's `Retry`.

    Attributes:
        delay: How long to wait, from 0 up.
    """

    code = "JOB_RETRY_AFTER"
    fix = "None is needed while attempts are left: the job is tried again after the delay."
    cause: str = "the job asks to be tried again later"

    def __init__(
        self,
        delay: timedelta | float,
        cause: str = "the job asks to be tried again later",
        *,
        fix: str | None = None,
    ) -> None:
        """
        Args:
            delay: A timedelta, or seconds. Comes from outside more often than not, so a negative
                one counts as 0 and an endless one as the longest there is.
            cause: What went wrong, in one line.
            fix: What to do about it.

        Raises DelayInvalid for what is no time.
        """
        super().__init__(cause, fix=fix)
        self.delay = bounded_delay(delay)


LONGEST_DELAY = timedelta(days=3_653)
"""The longest delay, timeout or ceiling that is accepted anywhere: ten years."""


def bounded_delay(delay: object) -> timedelta:
    """Return a time to wait, from 0 to `LONGEST_DELAY`. Raises DelayInvalid for what is no time."""
    if isinstance(delay, timedelta):
        return min(max(delay, timedelta()), LONGEST_DELAY)
    if isinstance(delay, bool) or not isinstance(delay, (int, float)) or delay != delay:
        raise DelayInvalid(f"the delay is {delay!r:.200}, which is neither timedelta nor seconds")
    longest = LONGEST_DELAY.total_seconds()
    return LONGEST_DELAY if delay >= longest else timedelta(seconds=max(delay, 0))


class CompletionRolledBack(JobsError):
    """Recorded when a run called complete() but the transaction around it did not commit."""

    code = "JOB_COMPLETION_ROLLED_BACK"
    fix = "Let the exception that rolled the transaction back leave the job function."


class UnknownJob(JobsError):
    """Logged when a claimed job has a name that this process has not registered."""

    code = "JOB_NAME_UNKNOWN"
    fix = (
        "Register the module that declares it; meanwhile the job waits for a process that knows it."
    )


class DatabaseUnreachable(JobsError, ConnectionError):
    """Raised when no session can be opened. The psycopg error is the ``__cause__``."""

    code = "JOB_DATABASE_UNREACHABLE"
    fix = "Check the connection string and that the server is up and accepts this role."


class LoadError(JobsError):
    """Raised when importing a module named on a command line raised: the ``__cause__``."""

    code = "JOB_LOAD_FAILED"
    fix = "Correct the module; importing it with python -c shows the whole traceback."
