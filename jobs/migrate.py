"""Installs the files of schema/ into a database, and tells whether they are installed.

Everything pending is applied in one transaction, each file sent whole. Where nothing is pending,
nothing is locked: ``migrate`` may stand in front of every deployment.
"""

from __future__ import annotations

import random
import re
import time
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, overload

import psycopg
from psycopg import AsyncConnection, Connection, IsolationLevel, RawCursor
from psycopg.pq import PipelineStatus, TransactionStatus
from psycopg.sql import Literal

from jobs.connecting import session
from jobs.errors import (
    ConfigError,
    MigrationBusy,
    MigrationChanged,
    MigrationError,
    MigrationInTransaction,
    MigrationRightsMissing,
    SchemaOutdated,
    SchemaTooNew,
)
from jobs.flavour import Plan, call, drive
from jobs.shipped import Migration, shipped
from jobs_sql import migrate as sql

__all__ = [
    "LOCK_KEY",
    "LOCK_TIMEOUT",
    "PATIENCE",
    "Migration",
    "check",
    "migrate",
    "render",
    "shipped",
]

# Key of the advisory lock that lets one process migrate at a time: the bytes "sql-jobs".
LOCK_KEY = int.from_bytes(b"sql-jobs", "big")
LOCK_TIMEOUT = timedelta(seconds=1)
PATIENCE = timedelta(minutes=2)

_OLDEST_SERVER = 150000
_PLACEHOLDER = re.compile(r"\$(\d+)")
# Seconds between two tries of a migration that met a lock: doubled from the first to the last.
_FIRST_PAUSE = 0.1
_LAST_PAUSE = 5.0


@overload
def check(
    conn_or_dsn: Connection[Any] | str = "", *, allow_newer: bool = False
) -> list[Migration]: ...
@overload
def check(
    conn_or_dsn: AsyncConnection[Any], *, allow_newer: bool = False
) -> Coroutine[Any, Any, list[Migration]]: ...
def check(
    conn_or_dsn: Connection[Any] | AsyncConnection[Any] | str = "", *, allow_newer: bool = False
) -> list[Migration] | Coroutine[Any, Any, list[Migration]]:
    """Make sure that the database has the schema this version of the library needs.

    Takes no lock stronger than access share, on jobs.migration alone, and leaves no transaction
    open that it did not find open. Cheap enough for every start of a worker.

    Args:
        conn_or_dsn: A connection of either flavour (an asynchronous one gives an awaitable), or a
            connection string; "" leaves everything to libpq's own variables.
        allow_newer: Accept files that this version does not know, as a process of the release
            before must during a rolling deployment.

    Returns:
        The files that are installed, those allowed as newer left out.

    Raises:
        SchemaOutdated: Files are missing, or all of them.
        SchemaTooNew: The database has files that this version does not know.
        MigrationChanged: An installed file is not the one that ships.
        MigrationRightsMissing: The role may not read jobs.migration.
        DatabaseUnreachable: No session could be opened.
    """
    plan = _checked(shipped(), allow_newer)
    if isinstance(conn_or_dsn, AsyncConnection):
        return _check_async(conn_or_dsn, plan)
    with session(conn_or_dsn) as conn, conn.transaction():
        return drive(conn, plan)


async def _check_async(conn: AsyncConnection[Any], plan: Plan[list[Migration]]) -> list[Migration]:
    async with conn.transaction():
        return await drive(conn, plan)


def migrate(
    conn_or_dsn: Connection[Any] | str = "",
    *,
    lock_timeout: timedelta = LOCK_TIMEOUT,
    patience: timedelta = PATIENCE,
) -> list[Migration]:
    """Install what is pending, all of it in one transaction or nothing.

    Where nothing is pending this is `check`: no lock, not even against another migration. Where
    something is, processes that migrate at once take turns, and a change that has to wait for a
    table gives up after ``lock_timeout``, lets everybody behind it through, and tries again.

    Args:
        conn_or_dsn: A connection with no transaction open (autocommit or not), or a connection
            string; "" leaves everything to libpq's own variables. No pooler in statement mode.
        lock_timeout: How long one try waits for one lock, and so holds up others, at most.
        patience: How long to go on trying.

    Returns:
        The files applied by this call, in order; empty when there were none to apply.

    Raises:
        MigrationRightsMissing: The role lacks rights. Nothing was changed.
        MigrationBusy: A lock was not to be had in time. Nothing was changed.
        MigrationInTransaction: The connection is in a transaction or in pipeline mode.
        MigrationChanged, SchemaTooNew: What is installed is not a state this version can go on
            from. Nothing was changed.
        MigrationError: A file failed, or the server is older than 15 or read-only. Nothing was
            changed, and running it again is safe.
        DatabaseUnreachable: No session could be opened.
    """
    if isinstance(conn_or_dsn, AsyncConnection):
        raise MigrationError(
            "migrate() works on synchronous connections only",
            fix="Call it as `await asyncio.to_thread(migrate, dsn)`.",
        )
    milliseconds = _milliseconds("lock_timeout", lock_timeout)
    _milliseconds("patience", patience)
    files = shipped()
    with session(conn_or_dsn) as conn, _read_committed(conn):
        try:
            with conn.transaction():
                todo = drive(conn, _installable(files))
            if not todo:
                return []
            deadline = time.monotonic() + patience.total_seconds()
            return _apply_patiently(conn, files, milliseconds, deadline)
        except psycopg.Error as error:
            raise MigrationError(
                f"migrating failed: {_first_line(error)}",
                fix="Nothing was changed; correct the cause and run `jobs migrate` again.",
            ) from error


def render(conn_or_dsn: Connection[Any] | str | None = None) -> str:
    """What ``migrate`` would do, as a script for psql that does the same.

    Args:
        conn_or_dsn: Where to look for what is pending (read only, needs no right to install);
            None for all files, without a connection.

    Returns:
        One transaction with the pending files and the statements that record them. A comment
        alone when nothing is pending.

    Raises:
        As `check`, without SchemaOutdated.
    """
    files: Sequence[Migration] = shipped()
    if conn_or_dsn is not None:
        with session(conn_or_dsn) as conn, conn.transaction():
            state = drive(conn, _read(files))
        files = state.pending
    if not files:
        return "-- sql-jobs: nothing is pending\n"
    parts = [
        "-- sql-jobs: for psql, which stops at the first error and then keeps nothing of it",
        "\\set ON_ERROR_STOP on",
        _literal(sql.BEGIN_MIGRATION),
        _literal(sql.PREPARE_MIGRATION, f"{LOCK_TIMEOUT // timedelta(milliseconds=1)}ms"),
        _literal(sql.LOCK_MIGRATIONS, LOCK_KEY),
    ]
    for file in files:
        parts.append(f"-- file schema/{file.name}.sql, sha256 {file.checksum}")
        parts.append(file.text.decode())
        if file.version:
            record = _literal(sql.RECORD_MIGRATION, file.version, file.name, file.checksum)
            parts.append(record)
    parts.append(_literal(sql.COMMIT_MIGRATION))
    return "\n\n".join(parts) + "\n"


@dataclass(frozen=True, slots=True)
class _State:
    """What a database has and lacks."""

    status: sql.ReadSchemaStatusRow
    installed: list[Migration]
    pending: list[Migration]
    missing: list[sql.ListMissingRightsRow]


def _read(
    files: Sequence[Migration], *, allow_newer: bool = False, installing: bool = False
) -> Plan[_State]:
    """Compare the database with the files. Raises where it is not a prefix of them.

    Where it may not even be read, all rights are named that ``installing`` needs.
    """
    status = yield from call(sql.read_schema_status, sql.read_schema_status_async)
    assert status is not None, "a select without from returns one row"
    missing = yield from call(sql.list_missing_rights, sql.list_missing_rights_async)
    applied: list[sql.ListMigrationsRow] = []
    if status.migration_exists:
        if any(right.to_read for right in missing):
            _refuse_missing(status, [r for r in missing if r.to_read or installing])
        applied = yield from call(sql.list_migrations, sql.list_migrations_async)
    known = {file.version: file for file in files}
    newest = max(known, default=0)
    newer = [row.name for row in applied if row.version > newest]
    if newer and not allow_newer:
        raise SchemaTooNew(
            f"database {status.database_name} has schema files that this version of sql-jobs does "
            f"not know: {', '.join(newer)}"
        )
    versions = {row.version for row in applied if row.version <= newest}
    for row in applied:
        file = known.get(row.version)
        if row.version <= newest and (file is None or file.checksum != row.checksum):
            raise MigrationChanged(
                f"schema file {row.name} was applied on {row.applied_at:%Y-%m-%d} with checksum "
                f"{row.checksum[:12]}, but this version of sql-jobs ships "
                f"{'no such file' if file is None else file.checksum[:12]}"
            )
    pending = [
        file
        for file in files
        if (file.version not in versions if file.version else not status.schema_exists)
    ]
    holes = [file.name for file in pending if any(v > file.version for v in versions)]
    if holes:
        raise MigrationChanged(f"later schema files are applied, but not {', '.join(holes)}")
    return _State(status, [known[v] for v in sorted(versions)], pending, missing)


def _checked(files: Sequence[Migration], allow_newer: bool) -> Plan[list[Migration]]:
    state = yield from _read(files, allow_newer=allow_newer)
    if state.pending:
        what = "has no sql-jobs schema"
        if state.installed:
            what = f"lacks schema files: {', '.join(file.name for file in state.pending)}"
        raise SchemaOutdated(f"database {state.status.database_name} {what}")
    return state.installed


def _installable(files: Sequence[Migration]) -> Plan[list[Migration]]:
    """What is pending, once it is certain that this role may install it on this server."""
    state = yield from _read(files, installing=True)
    if not state.pending:
        return []
    if state.status.server_version < _OLDEST_SERVER:
        raise MigrationError(
            f"the server is PostgreSQL {state.status.server_version // 10000}, too old",
            fix="Use PostgreSQL 15 or newer.",
        )
    if not state.status.writable:
        raise MigrationError(
            "the session is read-only: a standby, or default_transaction_read_only is set",
            fix="Connect to the primary, as a role that may write.",
        )
    _refuse_missing(state.status, state.missing)
    return state.pending


def _refuse_missing(
    status: sql.ReadSchemaStatusRow, missing: list[sql.ListMissingRightsRow]
) -> None:
    if not missing:
        return
    rights = tuple(right.right_name for right in missing)
    grants = tuple(right.remedy for right in missing)
    raise MigrationRightsMissing(
        f"role {status.role_name} lacks: {', '.join(rights)}",
        missing=rights,
        grants=grants,
        fix=f"As the owner, run `{'; '.join(grants)};`, or run what `jobs migrate --print` prints.",
    )


def _apply_patiently(
    conn: Connection[Any], files: Sequence[Migration], milliseconds: int, deadline: float
) -> list[Migration]:
    pause = _FIRST_PAUSE
    while True:
        try:
            return _apply(conn, files, milliseconds)
        except (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected) as error:
            # Rolled back by now: those who queued behind us are through before the next try.
            pause = min(pause * 2, _LAST_PAUSE)
            wait = pause * random.uniform(0.5, 1.0)
            if time.monotonic() + wait > deadline:
                raise MigrationBusy(_who_is_in_the_way(conn, error)) from error
        time.sleep(wait)


def _apply(conn: Connection[Any], files: Sequence[Migration], milliseconds: int) -> list[Migration]:
    with conn.transaction():
        sql.prepare_migration(conn, lock_timeout=f"{milliseconds}ms")
        sql.lock_migrations(conn, lock_key=LOCK_KEY)
        # Another process may have been faster.
        todo = drive(conn, _installable(files))
        for file in todo:
            _send(conn, file)
            if file.version:
                sql.record_migration(
                    conn, version=file.version, name=file.name, checksum=file.checksum
                )
    return todo


def _send(conn: Connection[Any], file: Migration) -> None:
    """Send a file whole: bytes without parameters go by the simple protocol, as psql sends them."""
    try:
        with RawCursor(conn) as cursor:
            cursor.execute(file.text, prepare=False)
    except (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected):
        raise
    except psycopg.errors.InsufficientPrivilege as error:
        raise MigrationRightsMissing(
            f"schema file {file.name}{_line(file, error)}: {_first_line(error)}"
        ) from error
    except psycopg.Error as error:
        raise MigrationError(
            f"schema file {file.name}{_line(file, error)}: {_first_line(error)}",
            fix="Nothing was changed; correct the cause and run `jobs migrate` again.",
        ) from error
    if conn.info.transaction_status is not TransactionStatus.INTRANS:
        raise MigrationError(
            f"schema file {file.name} ended the transaction it was sent in",
            fix="Reinstall sql-jobs: its schema files are not as shipped.",
        )


def _line(file: Migration, error: psycopg.Error) -> str:
    position = error.diag.statement_position
    if not position:
        return ""
    before = file.text.decode(errors="replace")[: int(position) - 1]
    return f", line {before.count(chr(10)) + 1}"


def _first_line(error: psycopg.Error) -> str:
    return error.diag.message_primary or str(error).partition("\n")[0] or type(error).__name__


def _who_is_in_the_way(conn: Connection[Any], error: psycopg.Error) -> str:
    with conn.transaction():
        rows = sql.list_lock_holders(conn, lock_key=LOCK_KEY)
    holders = [
        f"pid {row.pid} ({', '.join(part for part in (row.role_name, row.application) if part)}; "
        f"{row.state or 'state not visible'}"
        + (f"; transaction open for {row.open_for.total_seconds():.0f} s)" if row.open_for else ")")
        for row in rows
    ]
    seen = f"; locks are held by {', '.join(holders)}" if holders else ""
    return f"gave up waiting for a lock ({_first_line(error)}){seen}"


def _literal(statement: str, *values: int | str) -> str:
    """A generated statement with its placeholders replaced by quoted literals."""

    def quoted(match: re.Match[str]) -> str:
        return Literal(values[int(match[1]) - 1]).as_string()

    return _PLACEHOLDER.sub(quoted, statement) + ";"


def _milliseconds(name: str, value: timedelta) -> int:
    milliseconds = value // timedelta(milliseconds=1)
    # The server reads 0 as no limit at all, and keeps a 32-bit number.
    if not 1 <= milliseconds < 2**31:
        raise ConfigError(f"{name} must be between 1 millisecond and 24 days, not {value}")
    return milliseconds


@contextmanager
def _read_committed(conn: Connection[Any]) -> Iterator[None]:
    """Whoever waited for another migration must see what it did, whatever the role's default."""
    status = conn.info.transaction_status
    if status is not TransactionStatus.IDLE:
        raise MigrationInTransaction(
            f"the connection is not idle (its transaction status is {status.name})"
        )
    if conn.info.pipeline_status is not PipelineStatus.OFF:
        raise MigrationInTransaction("the connection is in pipeline mode")
    before = conn.isolation_level
    conn.isolation_level = IsolationLevel.READ_COMMITTED
    try:
        yield
    finally:
        if not conn.closed:
            conn.isolation_level = before
