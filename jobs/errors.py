"""Every error the library raises, each with a stable code, a one-line cause and a fix.

``docs/errors.md`` has a section for every code, and a test keeps the two complete.
"""

from __future__ import annotations

from typing import ClassVar


class JobsError(Exception):
    """Base of all errors of the library.

    Attributes:
        code: Stable identifier, also the anchor in ``docs/errors.md``.
        fix: What to do about it, in one sentence.
    """

    code: ClassVar[str] = "JOBS_ERROR"
    fix: str = "See docs/errors.md."

    def __init__(self, cause: str, *, fix: str | None = None) -> None:
        super().__init__(cause)
        self.cause = cause
        if fix is not None:
            self.fix = fix

    def __str__(self) -> str:
        return f"{self.cause} [{self.code}] Fix: {self.fix}"


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

    def __init__(
        self, cause: str, *, field: str, index: int | None = None, fix: str | None = None
    ) -> None:
        where = field if index is None else f"item {index}: {field}"
        super().__init__(f"{where}: {cause}", fix=fix)
        self.reason = cause
        self.field = field
        self.index = index


class DuplicateJob(EnqueueError):
    """Raised for ``on_conflict="raise"`` when the idempotency key or the id is taken."""

    code = "JOB_DUPLICATE"
    fix = "Use the default on_conflict='return' to receive the existing job instead."


class EnqueueContended(EnqueueError):
    """Raised when the database gave up waiting for another session that enqueues the same key.

    The psycopg error (lock timeout, deadlock, serialization failure) is the ``__cause__``.
    The caller's transaction must be rolled back; trying it again is safe.
    """

    code = "JOB_ENQUEUE_CONTENDED"
    fix = "Roll back and run the transaction again."


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


class CompletionRolledBack(JobsError):
    """Recorded when a run called complete() but the transaction around it did not commit."""

    code = "JOB_COMPLETION_ROLLED_BACK"
    fix = "Let the exception that rolled the transaction back leave the job function."


class UnknownJob(JobsError):
    """Logged when a claimed job has a name that this process has not registered."""

    code = "JOB_NAME_UNKNOWN"
    fix = "Register the module that declares it; meanwhile the job waits for a process that knows it."


class MigrationError(JobsError):
    """Base of what can go wrong while installing or checking the schema."""

    code = "JOB_MIGRATION_FAILED"


class MigrationRightsMissing(MigrationError):
    """Raised before anything is changed when the role lacks a right that installing needs."""

    code = "JOB_MIGRATION_RIGHTS_MISSING"
    fix = "Grant the rights named in the message, or let the owner run `jobs migrate --print`."


class MigrationChanged(MigrationError):
    """Raised when an applied schema file differs from the one that ships with this version."""

    code = "JOB_MIGRATION_CHANGED"
    fix = "Install the version of sql-jobs that applied it, then upgrade to a released version."


class SchemaOutdated(MigrationError):
    """Raised when the installed schema is older than this version of the library needs."""

    code = "JOB_SCHEMA_OUTDATED"
    fix = "Run `jobs migrate`."


class SchemaTooNew(MigrationError):
    """Raised when the database has schema files that this version of the library does not know."""

    code = "JOB_SCHEMA_TOO_NEW"
    fix = "Upgrade sql-jobs in this process."
