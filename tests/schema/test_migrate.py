"""Installing, checking and upgrading: what is applied, what is refused, what is left behind."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from psycopg import AsyncConnection, Connection, IsolationLevel
from psycopg.pq import TransactionStatus

from jobs.errors import (
    ConfigError,
    DatabaseUnreachable,
    MigrationChanged,
    MigrationError,
    MigrationInTransaction,
    SchemaOutdated,
    SchemaTooNew,
)
from jobs.migrate import LOCK_KEY, check, migrate
from jobs.shipped import Migration, shipped
from tests.schema.ship import Ship
from tests.support.catalog import dump
from tests.support.stepped import Session

pytestmark = pytest.mark.majors

Sessions = Callable[..., Connection[Any]]
TABLE = "create table jobs.{} (id bigint not null);"


def recorded(conn: Connection[Any]) -> list[tuple[Any, ...]]:
    return conn.execute(
        "select version, name, checksum from jobs.migration order by version"
    ).fetchall()


def names(files: Any) -> list[str]:
    return [file.name for file in files]


class TestInstall:
    def test_everything_is_applied_and_recorded_once(self, owner: Connection[Any]) -> None:
        applied = migrate(owner)
        assert applied == list(shipped())
        assert recorded(owner) == [(f.version, f.name, f.checksum) for f in shipped() if f.version]
        assert migrate(owner) == []
        assert check(owner) == [f for f in shipped() if f.version]

    def test_a_connection_string_does_as_well(self, empty: str, owner: Connection[Any]) -> None:
        assert migrate(empty) == list(shipped())
        assert check(empty) == [f for f in shipped() if f.version]
        assert dump(owner)

    def test_a_connection_without_autocommit_ends_idle(
        self, owner: Connection[Any], session_of: Sessions
    ) -> None:
        conn = session_of(autocommit=False)
        for applied in (list(shipped()), []):
            assert migrate(conn) == applied
            assert conn.info.transaction_status is TransactionStatus.IDLE
        check(conn)
        assert conn.info.transaction_status is TransactionStatus.IDLE
        assert len(recorded(owner)) == len(shipped()) - 1, "it was committed"

    def test_the_settings_of_the_session_are_as_before(self, session_of: Sessions) -> None:
        conn = session_of(options="-c lock_timeout=7777 -c search_path=elsewhere")
        conn.isolation_level = IsolationLevel.SERIALIZABLE
        migrate(conn)
        assert conn.isolation_level is IsolationLevel.SERIALIZABLE
        assert conn.execute("show lock_timeout").fetchone() == ("7777ms",)
        assert conn.execute("show search_path").fetchone() == ("elsewhere",)

    def test_a_role_that_writes_strings_with_backslashes(self, session_of: Sessions) -> None:
        conn = session_of(options="-c standard_conforming_strings=off -c escape_string_warning=off")
        migrate(conn)
        assert conn.execute("show standard_conforming_strings").fetchone() == ("off",)

    def test_later_files_only(self, owner: Connection[Any], ship: Ship) -> None:
        migrate(owner)
        later = ship.more(TABLE.format("one"), TABLE.format("two"))
        with pytest.raises(SchemaOutdated, match=", ".join(names(later))):
            check(owner)
        assert migrate(owner) == list(later)
        assert check(owner)[-2:] == list(later)


class TestConnection:
    def test_an_open_transaction_is_refused_and_left_alone(self, session_of: Sessions) -> None:
        conn = session_of(autocommit=False)
        conn.execute("create temporary table mine ()")
        with pytest.raises(MigrationInTransaction, match="INTRANS"):
            migrate(conn)
        conn.execute("table mine")
        conn.commit()
        assert migrate(conn) == list(shipped())

    def test_a_failed_transaction_is_refused(self, session_of: Sessions) -> None:
        conn = session_of(autocommit=False)
        with pytest.raises(psycopg.errors.DivisionByZero):
            conn.execute("select 1 / 0")
        with pytest.raises(MigrationInTransaction, match="INERROR"):
            migrate(conn)

    def test_a_pipeline_is_refused(self, owner: Connection[Any]) -> None:
        with owner.pipeline(), pytest.raises(MigrationInTransaction, match="pipeline"):
            migrate(owner)

    def test_a_check_joins_the_transaction_of_the_caller(
        self, session_of: Sessions, ship: Ship
    ) -> None:
        conn = session_of(autocommit=False)
        migrate(conn)
        conn.execute("create temporary table mine ()")
        check(conn)
        assert conn.info.transaction_status is TransactionStatus.INTRANS
        ship.more(TABLE.format("one"))
        with pytest.raises(SchemaOutdated):
            check(conn)
        conn.execute("table mine")

    async def test_an_asynchronous_connection(self, empty: str) -> None:
        async with await AsyncConnection.connect(empty) as conn:
            with pytest.raises(MigrationError, match="synchronous") as refused:
                migrate(conn)  # type: ignore[arg-type]
            assert "to_thread" in refused.value.fix
            with pytest.raises(SchemaOutdated):
                await check(conn)
            migrate(empty)
            assert await check(conn) == [f for f in shipped() if f.version]
            assert conn.info.transaction_status is TransactionStatus.IDLE
            await conn.execute("create temporary table mine ()")
            await check(conn)
            assert conn.info.transaction_status is TransactionStatus.INTRANS

    def test_no_server(self) -> None:
        with pytest.raises(DatabaseUnreachable, match="cannot connect"):
            check("host=/nowhere dbname=x")

    def test_a_malformed_string_does_not_show_its_password(self) -> None:
        with pytest.raises(DatabaseUnreachable) as refused:
            check("postgresqll://me:s3cret@host/db")
        assert "s3cret" not in str(refused.value)

    @pytest.mark.parametrize("name", ["lock_timeout", "patience"])
    @pytest.mark.parametrize("value", [timedelta(0), timedelta(-1), timedelta(days=30)])
    def test_times_that_mean_nothing(self, empty: str, name: str, value: timedelta) -> None:
        with pytest.raises(ConfigError, match=name):
            migrate(empty, **{name: value})


class TestState:
    def test_nothing_is_installed(self, owner: Connection[Any]) -> None:
        with pytest.raises(SchemaOutdated, match="has no sql-jobs schema"):
            check(owner)

    def test_a_schema_of_that_name_with_something_else_in_it(self, owner: Connection[Any]) -> None:
        owner.execute("create schema jobs")
        owner.execute("create table jobs.job (mine text)")
        before = dump(owner)
        with pytest.raises(SchemaOutdated, match="has no sql-jobs schema"):
            check(owner)
        with pytest.raises(MigrationError, match=r"0001_foundation: .*already exists"):
            migrate(owner)
        assert dump(owner) == before

    def test_a_changed_file(self, owner: Connection[Any], ship: Ship) -> None:
        (one,) = ship.more(TABLE.format("one"))
        migrate(owner)
        ship.more(TABLE.format("one") + "\n")
        for act in (check, migrate):
            with pytest.raises(MigrationChanged, match=one.name):
                act(owner)

    def test_a_file_that_no_longer_ships(self, owner: Connection[Any], ship: Ship) -> None:
        one, two = ship.more(TABLE.format("one"), TABLE.format("two"))
        migrate(owner)
        ship(*ship.real, two)
        with pytest.raises(MigrationChanged, match=f"{one.name}.*no such file"):
            check(owner)

    def test_a_hole(self, owner: Connection[Any], ship: Ship) -> None:
        one, _ = ship.more(TABLE.format("one"), TABLE.format("two"))
        migrate(owner)
        owner.execute("delete from jobs.migration where version = %s", [one.version])
        with pytest.raises(MigrationChanged, match=f"but not {one.name}"):
            migrate(owner)

    def test_a_newer_database(self, owner: Connection[Any], ship: Ship) -> None:
        one, two = ship.more(TABLE.format("one"), TABLE.format("two"))
        migrate(owner)
        ship(*ship.real)
        for act in (check, migrate):
            with pytest.raises(SchemaTooNew, match=f"{one.name}, {two.name}"):
                act(owner)
        assert check(owner, allow_newer=True) == [f for f in ship.real if f.version]

    def test_a_newer_database_is_no_excuse_for_an_older_gap(
        self, owner: Connection[Any], ship: Ship
    ) -> None:
        one, _ = ship.more(TABLE.format("one"), TABLE.format("two"))
        migrate(owner)
        ship(*ship.real, one)
        owner.execute("delete from jobs.migration where version = %s", [one.version])
        with pytest.raises(SchemaOutdated, match=one.name):
            check(owner, allow_newer=True)

    def test_a_read_only_session(self, session_of: Sessions) -> None:
        conn = session_of(options="-c default_transaction_read_only=on")
        with pytest.raises(MigrationError, match="the session is read-only") as refused:
            migrate(conn)
        assert "primary" in refused.value.fix

    def test_a_file_name_without_a_place(self) -> None:
        with pytest.raises(MigrationError, match="NNNN_what"):
            Migration.of("1_x.sql", b"")


class TestFailure:
    def test_a_broken_file_leaves_nothing_and_can_be_rerun(
        self, owner: Connection[Any], ship: Ship
    ) -> None:
        broken = TABLE.format("two") + "\n\nselect 1 / 0;"
        _, second, _ = ship.more(TABLE.format("one"), broken, TABLE.format("three"))
        with pytest.raises(MigrationError, match=f"{second.name}: division by zero"):
            migrate(owner)
        assert dump(owner) == []
        assert owner.info.transaction_status is TransactionStatus.IDLE
        ship.more(TABLE.format("one"), TABLE.format("two"), TABLE.format("three"))
        assert len(migrate(owner)) == len(ship.real) + 3

    def test_a_broken_upgrade_leaves_the_schema_as_it_was(
        self, owner: Connection[Any], ship: Ship
    ) -> None:
        migrate(owner)
        before, rows = dump(owner), recorded(owner)
        (upgrade,) = ship.more(
            "alter table jobs.job add column if not exists extra text;\n"
            "create index late on jobs.job (extra);\n"
            "create tabel jobs.broken ();"
        )
        with pytest.raises(MigrationError, match=f"{upgrade.name}, line 3: syntax error"):
            migrate(owner)
        assert dump(owner) == before
        assert recorded(owner) == rows

    def test_a_file_that_ends_the_transaction_is_told_off(
        self, owner: Connection[Any], ship: Ship
    ) -> None:
        migrate(owner)
        ship.more(TABLE.format("one") + "commit;")
        with pytest.raises(MigrationError, match="ended the transaction"):
            migrate(owner)
        assert owner.info.transaction_status is TransactionStatus.IDLE

    def test_a_lost_connection_is_typed(self, owner: Connection[Any], session_of: Sessions) -> None:
        conn = session_of()
        owner.execute("select pg_terminate_backend(%s)", [conn.info.backend_pid])
        with pytest.raises(MigrationError, match="terminating connection"):
            migrate(conn)


class TestTogether:
    @pytest.mark.parametrize("level", ["read committed", "serializable"])
    def test_the_second_one_sees_what_the_first_did(
        self, owner: Connection[Any], session_of: Sessions, level: str
    ) -> None:
        holder = Session(session_of(), owner, "holder")
        options = f"-c default_transaction_isolation={level.replace(' ', chr(92) + ' ')}"
        pair = [Session(session_of(options=options), owner, f"m{n}") for n in range(2)]
        holder.execute(f"select pg_advisory_lock({LOCK_KEY})").result()
        patient = {"lock_timeout": timedelta(seconds=30)}
        for one in pair:
            one.start(migrate, **patient)
        for one in pair:
            assert one.blocked(by=holder).lock == "advisory ExclusiveLock"
        holder.execute(f"select pg_advisory_unlock({LOCK_KEY})").result()
        applied = sorted((one.result() for one in pair), key=len)
        assert applied == [[], list(shipped())]
        for one in (holder, *pair):
            one.close()
