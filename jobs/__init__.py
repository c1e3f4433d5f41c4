"""Durable background jobs on PostgreSQL, where every statement is a reviewed .sql file."""

import typing as _typing

from jobs.classify import ErrorClass, ErrorRules
from jobs.concurrency import Concurrency
from jobs.declare import NO_KEY, NO_TENANT, Item, JobHandle, job
from jobs.enqueue import Enqueued
from jobs.errors import (
    ClaimQueuesEmpty,
    CompletionOutsideTransaction,
    CompletionRolledBack,
    ConfigError,
    ConnectionUnsupported,
    ControlInvalid,
    DatabaseUnreachable,
    DeclarationError,
    DelayInvalid,
    DuplicateJob,
    DuplicateName,
    EnqueueContended,
    EnqueueError,
    IdempotencyRequired,
    InvalidInput,
    IsolationUnsupported,
    JobBusy,
    JobNotCancellable,
    JobNotFound,
    JobNotRequeueable,
    JobsError,
    JobTimeout,
    LeaseLost,
    LoadError,
    MigrationBusy,
    MigrationChanged,
    MigrationError,
    MigrationInTransaction,
    MigrationRightsMissing,
    ModuleShadowed,
    PageInvalid,
    PayloadUnreadable,
    RetryAfter,
    ScheduleExists,
    ScheduleInvalid,
    ScheduleNotFound,
    SchemaOutdated,
    SchemaTooNew,
    TenantRequired,
    Terminal,
    TransactionRequired,
    UnknownJob,
    UnknownState,
)
from jobs.faults import (
    JobCancelled,
    JobDead,
    JobFailed,
    JobRefused,
    ProcessDied,
    ResultInTransaction,
    ResultInvalid,
    ResultTimeout,
    ResultUnavailable,
    ResultUnreadable,
    RunConnectionUnavailable,
    RunFeatureUnavailable,
)
from jobs.firing import Entry
from jobs.hooks import Settled
from jobs.ids import uuid7
from jobs.middleware import Middleware
from jobs.registry import Registry
from jobs.relay import Relay, RelayStats
from jobs.retry import Retry
from jobs.run import Run
from jobs.scheduler import Scheduler, SchedulerStats
from jobs.staging import Staged
from jobs.tasking import TaskHandle, task
from jobs.tenancy import current_tenant, tenant_scope
from jobs.worker import Limits, Worker, WorkerStats

__all__ = [
    "NO_KEY",
    "NO_TENANT",
    "ClaimQueuesEmpty",
    "CompletionOutsideTransaction",
    "CompletionRolledBack",
    "Concurrency",
    "ConfigError",
    "ConnectionUnsupported",
    "ControlInvalid",
    "DatabaseUnreachable",
    "DeclarationError",
    "DelayInvalid",
    "DuplicateJob",
    "DuplicateName",
    "EnqueueContended",
    "EnqueueError",
    "Enqueued",
    "Entry",
    "ErrorClass",
    "ErrorRules",
    "IdempotencyRequired",
    "InvalidInput",
    "IsolationUnsupported",
    "Item",
    "JobBusy",
    "JobCancelled",
    "JobDead",
    "JobFailed",
    "JobHandle",
    "JobNotCancellable",
    "JobNotFound",
    "JobNotRequeueable",
    "JobRefused",
    "JobTimeout",
    "JobsError",
    "LeaseLost",
    "Limits",
    "LoadError",
    "Middleware",
    "MigrationBusy",
    "MigrationChanged",
    "MigrationError",
    "MigrationInTransaction",
    "MigrationRightsMissing",
    "ModuleShadowed",
    "PageInvalid",
    "PayloadUnreadable",
    "ProcessDied",
    "Registry",
    "Relay",
    "RelayStats",
    "ResultInTransaction",
    "ResultInvalid",
    "ResultTimeout",
    "ResultUnavailable",
    "ResultUnreadable",
    "Retry",
    "RetryAfter",
    "Run",
    "RunConnectionUnavailable",
    "RunFeatureUnavailable",
    "ScheduleExists",
    "ScheduleInvalid",
    "ScheduleNotFound",
    "Scheduler",
    "SchedulerStats",
    "SchemaOutdated",
    "SchemaTooNew",
    "Settled",
    "Staged",
    "TaskHandle",
    "TenantRequired",
    "Terminal",
    "TransactionRequired",
    "UnknownJob",
    "UnknownState",
    "Worker",
    "WorkerStats",
    "current_tenant",
    "job",
    "task",
    "tenant_scope",
    "uuid7",
]

if not _typing.TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        """Tell a missing name of this library from one of an application's own ``jobs.py``."""
        from importlib.util import find_spec

        # Who imports a module of this package asks for it as an attribute first.
        if not name.startswith("_") and find_spec(f"{__name__}.{name}") is None:
            from jobs.registry import find_shadowed

            shadowed = find_shadowed()
            if shadowed is not None:
                raise ModuleShadowed(
                    f"this library has no name {name!r}, and it hides {shadowed}, which is called "
                    "jobs as well"
                )
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
