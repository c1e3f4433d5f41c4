"""`jobs migrate` as a process: what it prints, how it ends, and two of them at once."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from psycopg import Connection, sql

from jobs.migrate import LOCK_KEY, check
from jobs.shipped import shipped
from tests.cli.command import environment, jobs
from tests.support.catalog import dump
from tests.support.server import Clones
from tests.support.waiting import until


@pytest.fixture
def empty(clones: Clones) -> Iterator[str]:
    """DSN of a database without our schema."""
    with clones.clone() as dsn:
        with psycopg.connect(dsn, autocommit=True) as conn:
            conn.execute("drop schema jobs cascade")
        yield dsn


def test_it_installs_then_has_nothing_to_do(empty: str) -> None:
    first = jobs("migrate", "--dsn", empty)
    assert first.stdout.splitlines() == [f"applied {file.name}" for file in shipped()]
    second = jobs("migrate", "--dsn", empty)
    assert second.stdout == "up to date, nothing to apply\n"
    for done in (first, second):
        assert (done.returncode, done.stderr) == (0, "")


def test_check_says_so_by_its_exit_status(empty: str, database: str) -> None:
    before = jobs("migrate", "--check", "--dsn", empty)
    assert before.returncode == 1
    assert before.stdout == ""
    cause, fix = before.stderr.splitlines()
    assert cause.startswith("error: database ")
    assert cause.endswith(" has no sql-jobs schema [JOB_SCHEMA_OUTDATED]")
    assert fix == "fix: Run `jobs migrate`."
    after = jobs("migrate", "--check", "--dsn", database)
    assert (after.returncode, after.stderr) == (0, "")
    assert after.stdout == f"up to date: {shipped()[-1].name}\n"


def test_check_changes_nothing(empty: str) -> None:
    jobs("migrate", "--check", "--dsn", empty)
    with psycopg.connect(empty) as conn:
        assert dump(conn) == []


class TestDsn:
    @pytest.mark.parametrize("variable", ["JOBS_DSN", "DATABASE_URL"])
    def test_from_the_environment(self, database: str, variable: str) -> None:
        done = jobs("migrate", "--check", **{variable: database})
        assert done.returncode == 0, done.stderr

    def test_from_the_variables_of_libpq(self, database: str) -> None:
        given = psycopg.conninfo.conninfo_to_dict(database)
        names = {"host": "PGHOST", "port": "PGPORT", "user": "PGUSER", "dbname": "PGDATABASE"}
        done = jobs("migrate", "--check", **{names[k]: str(v) for k, v in given.items()})
        assert done.returncode == 0, done.stderr

    def test_the_option_comes_first_then_ours(self, database: str) -> None:
        wrong = "host=/nowhere dbname=x"
        for done in (
            jobs("migrate", "--check", "--dsn", database, JOBS_DSN=wrong, DATABASE_URL=wrong),
            jobs("migrate", "--check", JOBS_DSN=database, DATABASE_URL=wrong, PGHOST="/nowhere"),
            jobs("migrate", "--check", JOBS_DSN="", DATABASE_URL=database),
        ):
            assert done.returncode == 0, done.stderr

    def test_a_url_with_a_driver_in_it(self, database: str) -> None:
        url = database.replace("postgresql://", "postgresql+asyncpg://")
        assert url != database
        done = jobs("migrate", "--check", DATABASE_URL=url)
        assert done.returncode == 0, done.stderr

    def test_a_url_of_something_else(self) -> None:
        done = jobs("migrate", DATABASE_URL="mysql://me:s3cret@host/db")
        assert done.returncode == 2
        assert "DATABASE_URL is a URL of 'mysql'" in done.stderr
        assert "s3cret" not in done.stderr

    def test_no_server_there(self) -> None:
        done = jobs("migrate", PGHOST="/nowhere")
        assert done.returncode == 1
        assert done.stderr.startswith("error: cannot connect: ")
        assert "[JOB_DATABASE_UNREACHABLE]\nfix: " in done.stderr
        assert "Traceback" not in done.stderr


class TestPrint:
    def test_what_is_pending(self, empty: str) -> None:
        done = jobs("migrate", "--print", "--dsn", empty)
        assert done.returncode == 0, done.stderr
        for file in shipped():
            assert file.text.decode() in done.stdout
        with psycopg.connect(empty) as conn:
            assert dump(conn) == []

    def test_nothing_is_pending(self, database: str) -> None:
        done = jobs("migrate", "--print", "--dsn", database)
        assert done.stdout == "-- sql-jobs: nothing is pending\n"

    def test_everything_without_a_server(self, empty: str) -> None:
        done = jobs("migrate", "--print", "--all", PGHOST="/nowhere")
        assert done.returncode == 0, done.stderr
        assert done.stdout == jobs("migrate", "--print", "--dsn", empty).stdout

    def test_a_reader_that_had_enough(self) -> None:
        reading, writing = os.pipe()
        os.close(reading)
        with os.fdopen(writing, "wb") as pipe:
            done = subprocess.run(
                [sys.executable, "-m", "jobs", "migrate", "--print", "--all"],
                env=environment(),
                stdout=pipe,
                stderr=subprocess.PIPE,
                check=False,
            )
        assert (done.returncode, done.stderr) == (1, b"")


class TestUsage:
    @pytest.mark.parametrize(
        ("arguments", "says"),
        [
            (["migrate", "--all"], "--all goes with --print only [JOB_CONFIG_INVALID]"),
            (["migrate", "--check", "--print"], "not allowed with argument"),
            (["migrate", "--lock-timeout", "soon"], "invalid seconds value: 'soon'"),
            (["migrate", "--lock-timeout", "nan"], "invalid seconds value: 'nan'"),
            (["migrate", "--patience", "1e300"], "invalid seconds value: '1e300'"),
            (["migrate", "--lock-timeout", "0"], "lock_timeout must be between"),
            (["migrate", "--chec"], "unrecognized arguments: --chec"),
            (["nonsense"], "invalid choice: 'nonsense'"),
            ([], "required: COMMAND"),
        ],
    )
    def test_a_wrong_call_ends_with_two(self, arguments: list[str], says: str) -> None:
        done = jobs(*arguments, PGHOST="/nowhere")
        assert done.returncode == 2, done.stderr
        assert says in done.stderr
        assert "Traceback" not in done.stderr
        assert done.stdout == ""

    def test_help_names_every_command(self) -> None:
        done = jobs("--help")
        assert done.returncode == 0
        for command in ("migrate", "version"):
            assert f"\n    {command} " in done.stdout

    def test_version_names_the_parts(self) -> None:
        done = jobs("version")
        assert done.returncode == 0, done.stderr
        assert f"\nschema {shipped()[-1].name}\n" in done.stdout
        assert f"\npsycopg {psycopg.__version__} (" in done.stdout


def test_two_processes_at_once(empty: str, clones: Clones, connect: Callable[..., Any]) -> None:
    """Both wait for the same lock; one installs, the other finds nothing left to do."""
    del connect
    with psycopg.connect(empty, autocommit=True) as holder:
        holder.execute(sql.SQL("select pg_advisory_lock({})").format(LOCK_KEY))
        pair = [
            subprocess.Popen(
                [
                    *(sys.executable, "-m", "jobs", "migrate"),
                    *("--dsn", empty, "--lock-timeout", "30"),
                ],
                env=environment(),
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for _ in range(2)
        ]
        until(lambda: waiting(holder) == 2, "both to wait for the migration lock")
        holder.execute(sql.SQL("select pg_advisory_unlock({})").format(LOCK_KEY))
    ends = [process.communicate(timeout=50) for process in pair]
    assert [process.returncode for process in pair] == [0, 0], ends
    everything = "".join(f"applied {file.name}\n" for file in shipped())
    assert sorted(out for out, _ in ends) == sorted([everything, "up to date, nothing to apply\n"])
    check(empty)
    with psycopg.connect(empty) as conn, psycopg.connect(clones.dsn(clones.template)) as other:
        assert dump(conn) == dump(other)


def waiting(conn: Connection[Any]) -> int:
    """Sessions of this database that wait for an advisory lock."""
    row = conn.execute(
        "select count(*) from pg_locks where locktype = 'advisory' and not granted "
        "and database = (select oid from pg_database where datname = current_database())"
    ).fetchone()
    assert row is not None
    count: int = row[0]
    return count
