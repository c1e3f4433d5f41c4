"""An upgraded database is like a fresh one, whatever it was upgraded from, with its rows (O-50)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import psycopg
import pytest
from psycopg import Connection
from psycopg.rows import dict_row

from jobs.errors import MigrationError
from jobs.inspect import list_jobs
from jobs.migrate import migrate
from jobs.shipped import Migration, shipped
from tests.schema.ship import Ship
from tests.sql.calls import new_id
from tests.support.catalog import dump

pytestmark = pytest.mark.majors

LIVE = ("ready", "running", "suspended", "blocked")
ENDED = ("completed", "failed", "dead", "cancelled")

# What later releases will do: a state, columns, an index, a table; states in use at once.
LATER = (
    """
    alter table jobs.job drop constraint job_state_check;
    alter table jobs.job add constraint job_state_check
        check (state in ('ready', 'running', 'suspended', 'blocked', 'parked')) not valid;
    alter table jobs.job validate constraint job_state_check;
    update jobs.job set state = 'parked' where state = 'blocked';
    alter table jobs.job alter column state set default 'parked';
    alter table jobs.job alter column state set default 'ready';
    """,
    """
    alter table jobs.job add column if not exists weight bigint not null default 1;
    comment on column jobs.job.weight is 'Share of a slot.';
    alter table jobs.settled add column if not exists weight bigint;
    create index job_parked_idx on jobs.job (queue, weight) where state = 'parked';
    """,
    """
    create table jobs.made_up (
        id bigint generated always as identity,
        constraint made_up_pkey primary key (id)
    );
    """,
)


def seed(conn: Connection[Any]) -> None:
    """A job in every state and a row in every table, as the first release can write them."""
    insert = (
        "insert into jobs.job (id, run_id, max_attempts, queue, name, input, state, worker, "
        "lease_expires_at, rescue_at) "
        "select %s, %s, 1, 'q', 'n', '{\"a\":1}', %s, case when busy then 'w' end, "
        "case when busy then now() end, case when busy then now() end "
        "from (select %s = 'running' as busy) as x"
    )
    for state in LIVE:
        conn.execute(insert, [new_id(), new_id(), state, state])
    for state in ENDED:
        conn.execute(
            "insert into jobs.settled (id, claims, revoked, attempt, state, run_id, created_at, "
            "max_attempts, priority, dead_letter, queue, name, tenant, idempotency_scope, input) "
            "values (%s, 1, 0, 1, %s, %s, now(), 1, 0, true, 'q', 'n', '', 'live', '{}')",
            [new_id(), state, new_id()],
        )
    conn.execute(
        "insert into jobs.attempt (job_id, claims, attempt, error_type, error_message) "
        "values (%s, 1, 1, 'E', 'm')",
        [new_id()],
    )
    conn.execute(
        "insert into jobs.counter (bucket, amount, name, outcome) values (now(), 1, 'n', 'o')"
    )
    conn.execute("insert into jobs.pause (kind, name) values ('queue', 'q')")
    conn.execute(
        "insert into jobs.slot (concurrency_key, slot, job_id) values ('k', 1, %s)", [new_id()]
    )


def rows(conn: Connection[Any]) -> dict[str, list[dict[str, Any]]]:
    """Every row of every table, but for the times at which files were applied."""
    tables = conn.execute(
        "select relname from pg_class where relnamespace = 'jobs'::regnamespace "
        "and relkind = 'r' and relname <> 'migration' order by 1"
    ).fetchall()
    with conn.cursor(row_factory=dict_row) as cursor:
        return {
            name: cursor.execute(f"table jobs.{name}".encode()).fetchall() for (name,) in tables
        }


def assert_kept(before: dict[str, list[dict[str, Any]]], after: dict[str, Any]) -> None:
    """No row is gone, and no old column changed, but for the state that LATER renames."""

    def known(table: str, row: dict[str, Any]) -> str:
        columns = before[table][0]
        values = {name: row[name] for name in columns}
        if values.get("state") == "parked":
            values["state"] = "blocked"
        return repr(values)

    for table, old in before.items():
        kept = {known(table, row) for row in after[table]}
        for row in old:
            assert known(table, row) in kept, f"{table} lost {row}"
        assert len(after[table]) == len(old)


def assert_upgrades(
    files: Sequence[Migration], ship: Ship, bare: Callable[[], str], *, stepwise: bool
) -> int:
    """Upgrade from every earlier state of these files; how many there were."""
    ship(*files)
    fresh = bare()
    migrate(fresh)
    with psycopg.connect(fresh) as conn:
        wanted = dump(conn)
    # The first two are the schema and the first tables: before them there is nothing to upgrade.
    starts = range(2, len(files))
    for start in starts:
        ship(*files[:start])
        dsn = bare()
        migrate(dsn)
        with psycopg.connect(dsn, autocommit=True) as conn:
            seed(conn)
            before = rows(conn)
            assert all(before.values()) or start > 2, "the first release has a row everywhere"
            for end in range(start + 1, len(files) + 1) if stepwise else [len(files)]:
                ship(*files[:end])
                assert migrate(conn) == list(files[start if not stepwise else end - 1 : end])
            assert dump(conn) == wanted
            assert_kept({k: v for k, v in before.items() if v}, rows(conn))
    return len(starts)


@pytest.mark.parametrize("stepwise", [False, True])
def test_from_every_version_that_ships(ship: Ship, bare: Callable[[], str], stepwise: bool) -> None:
    files = shipped()
    assert assert_upgrades(files, ship, bare, stepwise=stepwise) == len(files) - 2


@pytest.mark.parametrize("stepwise", [False, True])
def test_files_as_later_releases_will_add_them(
    ship: Ship, bare: Callable[[], str], stepwise: bool
) -> None:
    files = (*ship.real, *ship.later(*LATER))
    assert assert_upgrades(files, ship, bare, stepwise=stepwise) >= 3


def test_a_file_that_depends_on_where_it_starts_is_found_out(
    ship: Ship, bare: Callable[[], str]
) -> None:
    """The comparison itself: an index that only an upgraded database gets."""
    odd = """
    do $$ begin
        if exists (select from jobs.job) then
            create index job_odd_idx on jobs.job (name);
        end if;
    end $$;
    """
    with pytest.raises(AssertionError, match="job_odd_idx"):
        assert_upgrades((*ship.real, *ship.later(odd)), ship, bare, stepwise=False)


def test_a_file_that_loses_rows_is_found_out(ship: Ship, bare: Callable[[], str]) -> None:
    lossy = "delete from jobs.settled where state = 'cancelled';"
    with pytest.raises(AssertionError, match=r"settled lost .*cancelled"):
        assert_upgrades((*ship.real, *ship.later(lossy)), ship, bare, stepwise=False)


def test_an_enum_would_fail_only_for_those_who_skip_a_release(
    ship: Ship, bare: Callable[[], str]
) -> None:
    """Why states are text: this passes in two steps and fails in one."""
    files = (
        *ship.real,
        *ship.later(
            "create type jobs.mood as enum ('calm');",
            "alter type jobs.mood add value 'wild';",
            "alter table jobs.job add column if not exists mood jobs.mood not null default 'wild';",
        ),
    )
    stepwise = bare()
    for end in range(2, len(files) + 1):
        ship(*files[:end])
        migrate(stepwise)
    at_once = bare()
    ship(*files[:-2])
    migrate(at_once)
    ship(*files)
    with pytest.raises(MigrationError, match="unsafe use of new value"):
        migrate(at_once)


def test_no_type_of_ours_is_an_enum(owner: Connection[Any]) -> None:
    migrate(owner)
    query = "select typname from pg_type where typnamespace = %s::regnamespace and typtype = 'e'"
    assert owner.execute(query, ["jobs"]).fetchall() == []


def test_every_state_of_the_tables_is_known_to_the_library(owner: Connection[Any]) -> None:
    migrate(owner)
    seed(owner)
    assert sorted(job.state for job in list_jobs(owner).jobs) == sorted([*LIVE, *ENDED])
    for table, states in (("job", LIVE), ("settled", ENDED)):
        row = owner.execute(
            "select pg_get_constraintdef(oid) from pg_constraint where conname = %s",
            [f"{table}_state_check"],
        ).fetchone()
        assert row is not None
        assert {word for word in row[0].split("'") if word.isidentifier()} >= set(states)
        assert row[0].count("'::text") == len(states)
