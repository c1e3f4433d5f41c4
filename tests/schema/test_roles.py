"""Roles with the rights of docs/install.md and no others; search paths full of traps (O-48)."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from psycopg import Connection, sql

from jobs import inspect
from jobs.control import cancel_many, pause, pauses, requeue_many, resume
from jobs.errors import MigrationRightsMissing
from jobs.inspect import get_job, list_attempts, list_jobs, outcome_counts, queue_stats
from jobs.migrate import check, migrate, render
from jobs.shipped import shipped
from jobs_sql.counter import fold_counters
from jobs_sql.slot import sweep_slots
from jobs_sql.wake import listen_wake, notify_probe, prune_wakes, unlisten_wake, wake_queue
from tests.schema.copying import copy_one
from tests.schema.ship import Ship
from tests.sql.calls import (
    Item,
    Settle,
    claim,
    dead,
    enqueue_many,
    find,
    made,
    new_id,
    renew,
    running,
    settle,
    undo,
)
from tests.sql.keys import keyed, promote, tokens
from tests.sql.keys import take as claim_keyed
from tests.sql.registering import live_and_leave
from tests.sql.staging import claim as claim_outbox
from tests.sql.staging import publish, stage, take
from tests.sql.tables import lapse
from tests.support.catalog import dump
from tests.support.server import ROOT

pytestmark = pytest.mark.majors

Sessions = Callable[..., Connection[Any]]
MakeRole = Callable[[str], str]
GRANTS = re.compile(r"```sql\n-- grants: ([^\n]+)\n(.*?)```", re.DOTALL)
HOUR = timedelta(hours=1)


def grants(title: str, role: str) -> str:
    """The statements of docs/install.md under ``-- grants: title``, for a role of ours."""
    found = dict(GRANTS.findall((ROOT / "docs" / "install.md").read_text()))
    text: str = found[title]
    name = f"jobs_{title.split()[0]}"
    assert name in text
    return text.replace(name, role)


@pytest.fixture
def app(owner: Connection[Any], role: MakeRole) -> str:
    """A role that may do nothing yet, on a database where nobody may."""
    name = role("app")
    owner.execute("revoke all on schema public from public")
    owner.execute(
        sql.SQL("revoke all on database {} from public").format(sql.Identifier(owner.info.dbname))
    )
    owner.execute(
        sql.SQL("grant connect on database {} to {}").format(
            sql.Identifier(owner.info.dbname), sql.Identifier(name)
        )
    )
    return name


class TestInstalling:
    def test_into_an_existing_schema_without_create_on_the_database(
        self, owner: Connection[Any], app: str, session_of: Sessions, ship: Ship
    ) -> None:
        owner.execute(grants("owner", app).encode())
        conn = session_of(user=app)
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            conn.execute("create schema if not exists jobs")
        assert migrate(conn) == [file for file in shipped() if file.version]
        later = ship.more("alter table jobs.job add column if not exists extra text;")
        assert migrate(conn) == list(later)
        assert check(conn)[-1:] == list(later)
        held = running(conn)
        assert settle(conn, Settle(held))

    def test_the_catalog_is_that_of_a_superuser(
        self, owner: Connection[Any], app: str, session_of: Sessions, bare: Callable[[], str]
    ) -> None:
        owner.execute(grants("owner", app).encode())
        migrate(session_of(user=app))
        other = bare()
        migrate(other)
        with psycopg.connect(other) as conn:
            tables = [line for line in dump(conn) if not line.startswith("schema ")]
        assert [line for line in dump(owner) if not line.startswith("schema ")] == tables

    def test_a_role_with_create_on_the_database_makes_the_schema(
        self, owner: Connection[Any], app: str, session_of: Sessions
    ) -> None:
        owner.execute(
            sql.SQL("grant create on database {} to {}").format(
                sql.Identifier(owner.info.dbname), sql.Identifier(app)
            )
        )
        assert migrate(session_of(user=app)) == list(shipped())


class TestMissingRights:
    """Listed by name, with grants that work, before anything is changed."""

    def refused(
        self, owner: Connection[Any], conn: Connection[Any], act: Callable[[Any], Any] = migrate
    ) -> MigrationRightsMissing:
        before = dump(owner)
        with pytest.raises(MigrationRightsMissing) as refused:
            act(conn)
        assert dump(owner) == before
        error = refused.value
        assert all(right in error.cause for right in error.missing)
        assert all(grant in error.fix for grant in error.grants)
        for grant in error.grants:
            owner.execute(grant.encode())
        return error

    def test_no_schema(self, owner: Connection[Any], app: str, session_of: Sessions) -> None:
        conn = session_of(user=app)
        error = self.refused(owner, conn)
        assert error.missing == (f"create on database {owner.info.dbname}",)
        assert error.cause.startswith(f"role {app} lacks: ")
        assert migrate(conn) == list(shipped())

    def test_a_schema_and_nothing_on_it(
        self, owner: Connection[Any], app: str, session_of: Sessions
    ) -> None:
        owner.execute("create schema jobs")
        conn = session_of(user=app)
        assert self.refused(owner, conn).missing == (
            "usage on schema jobs",
            "create on schema jobs",
        )
        assert len(migrate(conn)) == len(shipped()) - 1

    def test_usage_but_not_create(
        self, owner: Connection[Any], app: str, session_of: Sessions
    ) -> None:
        owner.execute(f"create schema jobs; grant usage on schema jobs to {app}".encode())
        conn = session_of(user=app)
        assert self.refused(owner, conn).missing == ("create on schema jobs",)
        assert len(migrate(conn)) == len(shipped()) - 1

    def test_tables_of_somebody_else(
        self,
        owner: Connection[Any],
        app: str,
        role: MakeRole,
        session_of: Sessions,
        ship: Ship,
    ) -> None:
        other = role("installer")
        owner.execute(f"grant connect on database {owner.info.dbname} to {other}".encode())
        owner.execute(f"create schema jobs; grant usage, create on schema jobs to {other}".encode())
        migrate(session_of(user=other))
        later = ship.more("alter table jobs.job add column if not exists extra text;")
        conn = session_of(user=app)
        error = self.refused(owner, conn)
        assert error.missing == (
            "usage on schema jobs",
            "create on schema jobs",
            "select on table jobs.migration",
            f"membership in {other}, which owns the tables",
        )
        assert migrate(conn) == list(later)

    @pytest.mark.parametrize("act", [check, migrate, render])
    def test_not_even_looking(
        self,
        owner: Connection[Any],
        app: str,
        session_of: Sessions,
        act: Callable[[Any], Any],
    ) -> None:
        migrate(owner)
        conn = session_of(user=app)
        error = self.refused(owner, conn, act)
        to_read = ("usage on schema jobs", "select on table jobs.migration")
        to_install = ("create on schema jobs", "membership in postgres, which owns the tables")
        assert set(error.missing) == {*to_read, *(to_install if act is migrate else ())}
        act(conn)

    def test_a_right_that_only_the_server_knows_of(
        self, owner: Connection[Any], app: str, session_of: Sessions, ship: Ship
    ) -> None:
        owner.execute(grants("owner", app).encode())
        (file,) = ship.more("create table public.outside (id bigint);")
        with pytest.raises(MigrationRightsMissing, match=f"{file.name}, line 1: permission denied"):
            migrate(session_of(user=app))
        assert [line for line in dump(owner) if not line.startswith("schema ")] == []

    def test_a_name_that_needs_quotes(
        self, owner: Connection[Any], role: MakeRole, session_of: Sessions
    ) -> None:
        conn = session_of(user=role('O\'Brien; "x" %s'))
        error = self.refused(owner, conn)
        assert '"O\'Brien; ""x"" %s_' in error.grants[0]
        assert migrate(conn) == list(shipped())


class TestWorking:
    @pytest.fixture
    def conn(self, owner: Connection[Any], app: str, session_of: Sessions) -> Connection[Any]:
        migrate(owner)
        return session_of(user=app)

    def test_an_enqueuer(self, owner: Connection[Any], app: str, conn: Connection[Any]) -> None:
        owner.execute(grants("enqueuer", app).encode())
        made(conn, idempotency_key="k")
        assert find(conn, "k", since=HOUR) is not None
        answers = enqueue_many(conn, [Item(key="k"), Item(key="l"), Item(key="l"), Item()])
        assert [answer.verdict for answer in answers].count("created") == 2
        copy_one(conn)
        wake_queue(conn, queue="q")
        for forbidden in (
            "select input from jobs.job",
            "select input from jobs.settled",
            "select error_message from jobs.attempt",
            "delete from jobs.job",
            "delete from jobs.wake",
            "update jobs.job set priority = 0",
            "insert into jobs.settled select * from jobs.settled",
        ):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                conn.execute(forbidden.encode())

    def test_an_enqueuer_with_ids_of_its_own(
        self, owner: Connection[Any], app: str, conn: Connection[Any]
    ) -> None:
        owner.execute(grants("enqueuer", app).encode())
        owner.execute(grants("enqueuer with ids of its own", app).encode())
        id, run_id = new_id(), new_id()
        made(conn, id=id, run_id=run_id)
        assert enqueue_many(conn, [Item(id=id)])[0].id == id
        assert undo(conn, id, run_id) == []
        held = running(owner, id=new_id())
        settle(owner, Settle(held))
        owner.execute("set session_replication_role = replica")
        run_id = new_id()
        owner.execute(
            "insert into jobs.job (id, run_id, max_attempts, queue, name, input) "
            "values (%s, %s, 1, 'q', 'n', '{}')",
            [held[0], run_id],
        )
        assert undo(conn, held[0], run_id) == [held[0]]

    def test_a_worker(self, owner: Connection[Any], app: str, conn: Connection[Any]) -> None:
        owner.execute(grants("worker", app).encode())
        check(conn)
        done, failed, lapsing = running(conn), running(conn, name="m"), running(conn, name="o")
        keyed(conn), keyed(conn)
        (one,) = tokens(claim_keyed(conn)["claimed"])
        settle(conn, Settle(one))
        assert promote(conn, "k", most=1, tidy=True) == []
        assert sweep_slots(conn, after=one[0], most=1) == []
        assert renew(conn, [done, failed, lapsing])
        listen_wake(conn)
        notify_probe(conn, nonce="n")
        assert prune_wakes(conn, most=1) == 0
        assert fold_counters(conn, most=1) == 0
        unlisten_wake(conn)
        assert live_and_leave(conn) == 3
        settle(conn, Settle(done), dead(failed))
        owner.execute(
            "update jobs.job set lease_expires_at = now() - interval '1 s', "
            "rescue_at = now() - interval '1 s', max_attempts = 1 where state = 'running'"
        )
        assert "buried" in {row.verdict for row in claim(conn, rescue=True)}
        for forbidden in (
            "delete from jobs.settled",
            "truncate jobs.job",
            "delete from jobs.pause",
        ):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                conn.execute(forbidden.encode())

    def test_an_operator(self, owner: Connection[Any], app: str, conn: Connection[Any]) -> None:
        owner.execute(grants("operator", app).encode())
        check(conn)
        held, lapsing, failed = (running(owner, idempotency_key=key) for key in "abc")
        lapse(owner, lapsing[0])
        settle(owner, dead(failed))
        waiting = keyed(owner)
        answers = cancel_many(conn, [held[0], lapsing[0], waiting, failed[0]])
        outcomes = [answer.outcome for answer in answers]
        assert outcomes == ["requested", "cancelled", "cancelled", "finished"]
        again = requeue_many(conn, [failed[0], waiting, held[0]])
        assert [answer.outcome for answer in again] == ["requeued", "requeued", "live"]
        assert inspect.list_workers(conn) == []
        assert pause(conn, "q")
        assert [one.name for one in pauses(conn)] == ["q"]
        assert resume(conn, "q")
        assert get_job(conn, held[0]).cancel_requested_at is not None
        for forbidden in (
            "update jobs.settled set state = 'completed'",
            "delete from jobs.attempt",
            "delete from jobs.counter",
            "truncate jobs.job",
        ):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                conn.execute(forbidden.encode())

    def test_an_observer(self, owner: Connection[Any], app: str, conn: Connection[Any]) -> None:
        owner.execute(grants("observer", app).encode())
        held = running(owner)
        check(conn)
        assert get_job(conn, held[0]).id == held[0]
        assert len(list_jobs(conn).jobs) == 1
        assert list_attempts(conn, held[0]) == []
        assert queue_stats(conn)[0].running == 1
        assert outcome_counts(conn, HOUR) == inspect.list_workers(conn) == []
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            conn.execute("delete from jobs.job")

    def test_an_observer_without_payloads(
        self, owner: Connection[Any], app: str, conn: Connection[Any]
    ) -> None:
        owner.execute(grants("observer", app).encode())
        for table in ("jobs.job", "jobs.settled"):
            owner.execute(f"revoke all on {table} from {app}".encode())
            columns = owner.execute(
                "select string_agg(quote_ident(attname), ', ') from pg_attribute "
                "where attrelid = %s::regclass and attnum > 0 and attname <> 'input'",
                [table],
            ).fetchone()
            assert columns is not None
            owner.execute(f"grant select ({columns[0]}) on {table} to {app}".encode())
        held = running(owner)
        assert len(list_jobs(conn).jobs) == 1
        assert queue_stats(conn)[0].running == 1
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            get_job(conn, held[0])


# Everything in it raises when touched.
TRAPS = """
create schema traps;
create function traps.sprung() returns boolean language plpgsql as $$
begin
    raise exception 'a trap was sprung';
end
$$;
create function traps.now() returns timestamptz language plpgsql as $$
begin
    perform traps.sprung();
end
$$;
create function traps.clock_timestamp() returns timestamptz language sql as 'select traps.now()';
create function traps.set_config(text, text, boolean) returns text
    language sql as 'select traps.now()::text';
create function traps.pg_advisory_xact_lock(bigint) returns void
    language sql as 'select traps.now()::text';
create view traps.job as select traps.sprung();
create view traps.settled as select traps.sprung();
create view traps.attempt as select traps.sprung();
create view traps.counter as select traps.sprung();
create view traps.wake as select traps.sprung();
create view traps.outbox as select traps.sprung();
create view traps.relay as select traps.sprung();
create view traps.pause as select traps.sprung();
create view traps.migration as select traps.sprung();
create view traps.pg_namespace as select traps.sprung();
create view traps.pg_class as select traps.sprung();
grant usage on schema traps to public;
grant select on all tables in schema traps to public;
"""


class TestTraps:
    @pytest.mark.parametrize("path", ["", "traps", "traps, public", "traps, pg_temp"])
    def test_installing_and_working_never_touch_them(
        self, owner: Connection[Any], app: str, session_of: Sessions, path: str, ship: Ship
    ) -> None:
        owner.execute(TRAPS)
        owner.execute(grants("owner", app).encode())
        owner.execute(f"alter role {app} set search_path = {path or chr(39) * 2}".encode())
        conn = session_of(user=app)
        assert migrate(conn)
        ship.more("alter table jobs.job add column if not exists extra text;")
        assert migrate(conn)
        assert check(conn)
        done, failed = running(conn, idempotency_key="k"), running(conn, name="m")
        enqueue_many(conn, [Item(key="k"), Item()])
        find(conn, "k", since=HOUR)
        renew(conn, [done, failed])
        wake_queue(conn, queue="q")
        prune_wakes(conn, most=1)
        stage(conn)
        publish(conn, claim_outbox(conn, take(conn)))
        settle(conn, Settle(done), dead(failed))
        get_job(conn, done[0])
        assert list_jobs(conn).jobs
        list_attempts(conn, failed[0])
        queue_stats(conn)
        outcome_counts(conn, HOUR)
        relations = owner.execute(
            "select relnamespace::regnamespace::text from pg_class where relname = 'job'"
        ).fetchall()
        assert sorted(relations) == [("jobs",), ("traps",)]

    def test_the_traps_do_spring(self, owner: Connection[Any]) -> None:
        owner.execute(TRAPS)
        owner.execute("set search_path = traps")
        with pytest.raises(psycopg.errors.RaiseException, match="sprung"):
            owner.execute("select * from job")
        owner.execute("set search_path = traps, pg_catalog")
        with pytest.raises(psycopg.errors.RaiseException, match="sprung"):
            owner.execute("select now()")

    def test_installing_and_looking_survive_functions_in_front_of_the_catalog(
        self, owner: Connection[Any], app: str, session_of: Sessions
    ) -> None:
        owner.execute(TRAPS)
        owner.execute(grants("owner", app).encode())
        owner.execute(f"alter role {app} set search_path = traps, pg_catalog".encode())
        conn = session_of(user=app)
        assert migrate(conn)
        assert check(conn)
        assert list_jobs(conn).jobs == []
        queue_stats(conn)
        outcome_counts(conn, HOUR)
