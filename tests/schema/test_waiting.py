"""Migrating beside the work: what waits for whom, and that nobody queues up (O-27)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest
from psycopg import Connection
from psycopg.errors import DeadlockDetected

from jobs.errors import MigrationBusy
from jobs.inspect import list_jobs, queue_stats
from jobs.migrate import LOCK_KEY, check, migrate
from tests.schema.ship import Ship
from tests.sql.calls import claim_ids, made
from tests.support.catalog import dump
from tests.support.stepped import Session
from tests.support.waiting import until

pytestmark = pytest.mark.majors

Sessions = Callable[..., Connection[Any]]
GROW = "alter table jobs.job add column if not exists extra text;"


@pytest.fixture
def stepped(owner: Connection[Any], session_of: Sessions) -> Iterator[Callable[[str], Session]]:
    """Factory of stepped sessions on `empty`, where our schema is installed."""
    migrate(owner)
    made: list[Session] = []

    def make(name: str) -> Session:
        made.append(Session(session_of(), owner, name))
        return made[-1]

    yield make
    for session in made:
        session.close()


@pytest.fixture
def dumping(stepped: Callable[[str], Session]) -> Session:
    """A session whose open transaction has read every table, as pg_dump does."""
    session = stepped("dumping")
    session.execute("begin transaction isolation level repeatable read").result()
    session.execute("select count(*) from jobs.job, jobs.settled, jobs.migration").result()
    return session


def waiting(conn: Connection[Any]) -> int:
    """Lock requests of this database that are not granted."""
    row = conn.execute(
        "select count(*) from pg_locks as l inner join pg_stat_activity as a using (pid) "
        "where not l.granted and a.datname = current_database()"
    ).fetchone()
    assert row is not None
    count: int = row[0]
    return count


class TestUpToDate:
    def test_beside_an_open_reader_everything_goes_on(
        self, owner: Connection[Any], dumping: Session, session_of: Sessions, empty: str
    ) -> None:
        # One millisecond: whoever had to wait for a lock at all would fail.
        worker = session_of(options="-c lock_timeout=1")
        for _ in range(10):
            assert check(empty)
            assert migrate(empty) == []
            assert migrate(worker) == []
            job = made(worker)
            assert claim_ids(worker) == {job}
            assert waiting(owner) == 0
        assert not dumping.execute("commit").result()

    @pytest.mark.parametrize("act", [check, migrate, queue_stats, list_jobs])
    def test_reading_takes_no_lock_stronger_than_access_share(
        self, stepped: Callable[[str], Session], act: Callable[[Connection[Any]], Any]
    ) -> None:
        # Exclusive conflicts with every lock but access share.
        holder, reader = stepped("holder"), stepped("reader")
        tables = ", ".join(
            f"jobs.{row[0]}"
            for row in holder.execute(
                "select relname from pg_class where relnamespace = 'jobs'::regnamespace "
                "and relkind = 'r'"
            ).result()
        )
        holder.execute(f"begin; lock table {tables} in exclusive mode").result()
        reader.run(act)
        holder.execute("rollback").result()

    def test_another_migration_is_not_waited_for(self, stepped: Callable[[str], Session]) -> None:
        holder, second = stepped("holder"), stepped("second")
        holder.execute(f"select pg_advisory_lock({LOCK_KEY})").result()
        assert second.run(migrate) == []
        assert second.run(check)

    def test_a_check_leaves_no_lock_behind(self, owner: Connection[Any]) -> None:
        migrate(owner)
        check(owner)
        rows = owner.execute(
            "select relation::regclass::text, mode from pg_locks where pid = pg_backend_pid() "
            "and locktype in ('relation', 'advisory') and relation <> 'pg_locks'::regclass"
        ).fetchall()
        assert rows == []


class TestPending:
    def test_a_waiting_change_lets_others_through_and_is_made_in_the_end(
        self,
        owner: Connection[Any],
        dumping: Session,
        stepped: Callable[[str], Session],
        ship: Ship,
    ) -> None:
        later = ship.more(GROW)
        migrating, worker = stepped("migrating"), stepped("worker")
        migrating.start(migrate, lock_timeout=timedelta(milliseconds=200))
        migrating.blocked(by=dumping)
        # These arrive behind the waiting change, and get through when it gives up.
        for _ in range(3):
            job = worker.run(made)
            assert worker.run(claim_ids) == {job}
        assert not migrating.done()
        dumping.execute("commit").result()
        assert migrating.result() == list(later)
        assert check(owner)[-1:] == list(later)

    def test_between_two_tries_no_lock_is_held(
        self,
        owner: Connection[Any],
        dumping: Session,
        stepped: Callable[[str], Session],
        ship: Ship,
    ) -> None:
        ship.more("create table jobs.first (id bigint);\n" + GROW)
        migrating = stepped("migrating")
        migrating.start(migrate, lock_timeout=timedelta(milliseconds=1))
        query = "select state from pg_stat_activity where pid = %s and state = 'idle'"
        for _ in range(3):
            until(lambda: owner.execute(query, [migrating.pid]).fetchone(), "the pause after a try")
        dumping.execute("commit").result()
        migrating.result()

    def test_patience_has_an_end_and_the_error_names_who_is_in_the_way(
        self, owner: Connection[Any], dumping: Session, ship: Ship
    ) -> None:
        before = dump(owner)
        ship.more(GROW)
        short = timedelta(milliseconds=20)
        with pytest.raises(MigrationBusy) as busy:
            migrate(owner, lock_timeout=short, patience=5 * short)
        assert f"pid {dumping.pid} (postgres; idle in transaction; transaction open for" in str(
            busy.value
        )
        assert dump(owner) == before
        assert waiting(owner) == 0

    def test_the_holder_of_the_migration_lock_is_named_too(
        self, owner: Connection[Any], stepped: Callable[[str], Session], ship: Ship
    ) -> None:
        ship.more(GROW)
        holder = stepped("holder")
        holder.execute(f"begin; select pg_advisory_xact_lock({LOCK_KEY})").result()
        short = timedelta(milliseconds=20)
        with pytest.raises(MigrationBusy, match=f"pid {holder.pid} "):
            migrate(owner, lock_timeout=short, patience=2 * short)

    def test_a_deadlock_with_the_work_is_tried_again(
        self, owner: Connection[Any], stepped: Callable[[str], Session], ship: Ship
    ) -> None:
        later = ship.more(GROW + "alter table jobs.settled add column if not exists extra text;")
        migrating, other = stepped("migrating"), stepped("other")
        other.execute("begin; lock table jobs.settled in share mode").result()
        # Long enough that the deadlock is found before the timeout ends the wait.
        migrating.start(migrate, lock_timeout=timedelta(seconds=10))
        migrating.blocked(by=other)
        other.execute("select count(*) from jobs.job")
        with suppress(DeadlockDetected):  # either side may be the victim
            other.result()
        other.execute("rollback").result()
        assert migrating.result() == list(later)
        assert check(owner)[-1:] == list(later)
