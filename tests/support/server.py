"""The run's private server: one for all test processes, a template a process, a clone a test."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo

from devkit import postgres
from devkit.rundir import run_dir
from jobs.migrate import migrate

ROOT = Path(__file__).resolve().parents[2]
HOST_VARIABLE = "SQL_JOBS_TEST_HOST"
RUN_VARIABLE = "SQL_JOBS_TEST_RUN"

SETTINGS = {
    "max_connections": "200",
    "max_prepared_transactions": "10",
    # A deadlock of ours must show at once, as an error, in the test that made it.
    "deadlock_timeout": "100ms",
    "log_lock_waits": "off",
    "track_io_timing": "off",
    "timezone": "UTC",
    # In the data directory, so that a killed server leaves no segment behind in /dev/shm.
    "dynamic_shared_memory_type": "mmap",
}


def use_shared_server(config: pytest.Config) -> None:
    """Make pytest-postgresql talk to the run's server; start that when this is the first process.

    The processes of pytest-xdist inherit it through two environment variables. The server ends
    with the process that started it, even when that is killed.
    """
    if HOST_VARIABLE not in os.environ:
        stack = ExitStack()
        config.add_cleanup(stack.close)
        place = stack.enter_context(run_dir("sql-jobs-tests"))
        server = stack.enter_context(postgres.start(place / "pg", durable=False, settings=SETTINGS))
        for name, value in (
            (HOST_VARIABLE, str(server.socket_dir)),
            (RUN_VARIABLE, secrets.token_hex(3)),
        ):
            os.environ[name] = value
            stack.callback(os.environ.pop, name, None)
    config.option.postgresql_host = os.environ[HOST_VARIABLE]
    config.option.postgresql_port = "5432"
    config.option.postgresql_dbname = f"jobs_{os.environ[RUN_VARIABLE]}"


def install_schema(dsn: str) -> None:
    """Install our schema in the database of that DSN."""
    with psycopg.connect(dsn, autocommit=True) as conn:
        migrate(conn)


def load_template(*, dbname: str, host: str, port: str | int, user: str, **_: object) -> None:
    """Install our schema in the template (the load callable of pytest-postgresql)."""
    install_schema(make_conninfo(dbname=dbname, host=host, port=port, user=user))


@dataclass(frozen=True)
class Clones:
    """Makes databases from a template of the shared server, and drops them."""

    host: str
    template: str
    prefix: str

    def dsn(self, dbname: str) -> str:
        """Connection URI of a database of this server."""
        return f"postgresql://postgres@/{dbname}?host={self.host}&port=5432"

    def _admin(self) -> psycopg.Connection:
        return psycopg.connect(self.dsn("postgres"), autocommit=True)

    def create(self) -> str:
        """Name of a new database equal to the template."""
        name = f"{self.prefix}_{secrets.token_hex(4)}"
        # Copying files is twice as fast as logging them where fsync is off.
        statement = sql.SQL("create database {} template {} strategy file_copy")
        with self._admin() as conn:
            conn.execute(statement.format(sql.Identifier(name), sql.Identifier(self.template)))
        return name

    def drop(self, name: str) -> None:
        """Drop a database whoever is still connected to it, prepared transactions included."""
        with self._admin() as conn:
            prepared = conn.execute(
                "select gid from pg_catalog.pg_prepared_xacts where database = %s", [name]
            ).fetchall()
            if prepared:
                with psycopg.connect(self.dsn(name), autocommit=True) as inside:
                    for (gid,) in prepared:
                        inside.execute(sql.SQL("rollback prepared {}").format(sql.Literal(gid)))
            conn.execute(sql.SQL("drop database {} with (force)").format(sql.Identifier(name)))

    @contextmanager
    def clone(self) -> Iterator[str]:
        """DSN of a database for the length of the block."""
        name = self.create()
        try:
            yield self.dsn(name)
        finally:
            self.drop(name)
