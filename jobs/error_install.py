"""Errors of installing and checking the schema. Import them from `jobs.errors`."""

from __future__ import annotations

from jobs.error_base import JobsError


class MigrationError(JobsError):
    """Base of what can go wrong while installing or checking the schema."""

    code = "JOB_MIGRATION_FAILED"


class MigrationRightsMissing(MigrationError):
    """Raised before anything is changed when the role lacks a right that installing needs.

    Attributes:
        missing: What is missing, for example ``("create on schema jobs",)``.
        grants: The statements that give it, for the owner to review and run.
    """

    code = "JOB_MIGRATION_RIGHTS_MISSING"
    fix = "Grant the rights named in the message, or let the owner run `jobs migrate --print`."

    def __init__(
        self,
        cause: str,
        *,
        missing: tuple[str, ...] = (),
        grants: tuple[str, ...] = (),
        fix: str | None = None,
    ) -> None:
        super().__init__(cause, fix=fix)
        self.missing = missing
        self.grants = grants


class MigrationBusy(MigrationError):
    """Raised when other sessions kept a table, or the migration lock, for too long.

    Nothing was changed. Each try gave up after a short wait, so that nobody queued behind it.
    """

    code = "JOB_MIGRATION_BUSY"
    fix = "End the sessions named in the message or wait for them, then run `jobs migrate` again."


class MigrationInTransaction(MigrationError):
    """Raised when migrate() is given a connection that is already in a transaction.

    It needs its own, to give locks back while others wait and to try again.
    """

    code = "JOB_MIGRATION_IN_TRANSACTION"
    fix = "Pass a connection with no transaction open, or a connection string."


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
