"""Durable background jobs on PostgreSQL, where every statement is a reviewed .sql file."""

import typing as _typing

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
    SchemaOutdated,
    SchemaTooNew,
    TenantRequired,
    TransactionRequired,
    UnknownJob,
    UnknownState,
)
from jobs.ids import uuid7
from jobs.registry import Registry
from jobs.relay import Relay, RelayStats
from jobs.retry import Retry
from jobs.run import Run
from jobs.staging import Staged
from jobs.worker import Worker, WorkerStats

__all__ = [
    "NO_KEY",
    "NO_TENANT",
    "ClaimQueuesEmpty",
    "CompletionOutsideTransaction",
    "CompletionRolledBack",
    "ConfigError",
    "ConnectionUnsupported",
    "ControlInvalid",
    "DatabaseUnreachable",
    "DeclarationError",
    "DuplicateJob",
    "DuplicateName",
    "EnqueueContended",
    "EnqueueError",
    "Enqueued",
    "IdempotencyRequired",
    "InvalidInput",
    "IsolationUnsupported",
    "Item",
    "JobBusy",
    "JobHandle",
    "JobNotCancellable",
    "JobNotFound",
    "JobNotRequeueable",
    "JobTimeout",
    "JobsError",
    "LeaseLost",
    "LoadError",
    "MigrationBusy",
    "MigrationChanged",
    "MigrationError",
    "MigrationInTransaction",
    "MigrationRightsMissing",
    "ModuleShadowed",
    "PageInvalid",
    "PayloadUnreadable",
    "Registry",
    "Relay",
    "RelayStats",
    "Retry",
    "Run",
    "SchemaOutdated",
    "SchemaTooNew",
    "Staged",
    "TenantRequired",
    "TransactionRequired",
    "UnknownJob",
    "UnknownState",
    "Worker",
    "WorkerStats",
    "job",
    "uuid7",
]

if not _typing.TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        """Tell a missing name of this library from one of an application's own ``jobs.py``."""
        if not name.startswith("_"):
            from jobs.registry import find_shadowed

            shadowed = find_shadowed()
            if shadowed is not None:
                raise ModuleShadowed(
                    f"this library has no name {name!r}, and it hides {shadowed}, which is called "
                    "jobs as well"
                )
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
