"""The one server of a run, its databases, and what it counts."""

from __future__ import annotations

import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql

from devkit import postgres
from devkit.rundir import run_dir

SETTINGS = {
    "shared_buffers": "1GB",
    "max_wal_size": "4GB",
    "max_connections": "200",
    # Statements as clients send them; what functions send inside is in their figures.
    "pg_stat_statements.track": "top",
    "timezone": "UTC",
}


@dataclass(frozen=True)
class Counts:
    """What pg_stat_statements has counted in a database since its reset."""

    statements: float
    without_begin_commit: float
    buffers: float
    wal_bytes: float


class Arena:
    """A durable server; every subject has a template with its schema, every turn a clone."""

    def __init__(self, server: postgres.Server) -> None:
        self.server = server
        self.admin = psycopg.connect(server.dsn(), autocommit=True)
        self.admin.execute("create extension pg_stat_statements")

    def dsn(self, database: str) -> str:
        """Over the loopback, which every driver takes."""
        return self.server.dsn(database, tcp=True)

    def create(self, name: str, template: str | None = None) -> str:
        """Make a database, in place of one of that name, and return its DSN."""
        self.drop(name)
        statement = "create database {}" + (" template {}" if template else "")
        names = [sql.Identifier(each) for each in (name, template) if each]
        self.admin.execute(sql.SQL(statement).format(*names))
        return self.dsn(name)

    def drop(self, name: str) -> None:
        """Drop a database, whoever is connected."""
        statement = sql.SQL("drop database if exists {} with (force)")
        self.admin.execute(statement.format(sql.Identifier(name)))

    @contextmanager
    def clone(self, template: str) -> Iterator[str]:
        """DSN of a copy for the length of the block."""
        name = f"{template}_turn"
        dsn = self.create(name, template)
        try:
            # The copy is in the log and in dirty buffers: nobody's drain shall write it out.
            self.admin.execute("checkpoint")
            yield dsn
        finally:
            self.drop(name)

    def settle(self, dsn: str) -> None:
        """Vacuum and checkpoint, so that no turn pays for what the one before it left."""
        with psycopg.connect(dsn, autocommit=True) as conn:
            conn.execute("vacuum (analyze)")
            conn.execute("checkpoint")

    def reset(self) -> None:
        """Forget what was counted."""
        self.admin.execute("select pg_stat_statements_reset()")

    def counts(self, database: str, pattern: str = "") -> Counts:
        """What was counted in a database, of the statements that match a regular expression."""
        row = self.admin.execute(
            """
            select coalesce(sum(s.calls), 0),
                coalesce(sum(s.calls) filter (
                    where s.query !~* '^\\s*(begin|commit|rollback|start transaction)'), 0),
                coalesce(sum(s.shared_blks_hit + s.shared_blks_read), 0),
                coalesce(sum(s.wal_bytes), 0)
            from pg_stat_statements as s
            inner join pg_database as d on d.oid = s.dbid
            where d.datname = %s and s.query ~ %s
            """,
            [database, pattern],
        ).fetchone()
        assert row is not None
        return Counts(*map(float, row))


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def arena(*, durable: bool = True) -> Iterator[Arena]:
    """A server for the length of the block: on disk, with fsync.

    durable: False keeps it in memory, for tests of the benchmark itself.
    """
    base = Path(tempfile.gettempdir()) if durable else None
    with (
        run_dir("sql-jobs-bench", base) as place,
        postgres.start(
            place / "pg", durable=durable, tcp_port=_free_port(), settings=SETTINGS
        ) as server,
    ):
        made = Arena(server)
        try:
            yield made
        finally:
            made.admin.close()


def database_of(dsn: str) -> str:
    """The name of the database in a DSN."""
    name: str = psycopg.conninfo.conninfo_to_dict(dsn)["dbname"]
    return name


def scalar(conn: psycopg.Connection[Any], statement: str, *values: Any) -> Any:
    """The one value of a query."""
    row = conn.execute(statement.encode(), values or None).fetchone()
    assert row is not None
    return row[0]
