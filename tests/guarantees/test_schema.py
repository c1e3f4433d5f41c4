"""What the tables themselves hold, whoever writes to them, and the room the hot one is given."""

from __future__ import annotations

from typing import Any, get_args

import pytest
from psycopg import Connection, errors, sql
from pydantic import BaseModel

import jobs
from jobs.inspect import JobState, list_jobs

pytestmark = pytest.mark.majors

Conn = Connection[Any]

LIVE = {"ready", "running", "suspended", "blocked"}
FINISHED = {"completed", "failed", "dead", "cancelled"}


class Input(BaseModel):
    """Nothing."""


@jobs.job(tenant=jobs.NO_TENANT, idempotency_key=jobs.NO_KEY)
def work(input: Input) -> None:
    """Does nothing."""


def allowed(conn: Conn, table: str, constraint: str) -> set[str]:
    """The states in a check constraint, as the server has it."""
    found = conn.execute(
        "select array(select match[1] from regexp_matches("
        "pg_get_constraintdef(oid), '''([a-z]+)''', 'g') as match) "
        "from pg_constraint where conrelid = %s::regclass and conname = %s",
        [table, constraint],
    ).fetchone()
    assert found is not None
    return set(found[0])


def test_states_are_texts_and_nothing_is_an_enum(conn: Conn) -> None:
    kinds = conn.execute(
        "select c.relname, format_type(a.atttypid, null) from pg_attribute as a "
        "join pg_class as c on c.oid = a.attrelid "
        "where c.relnamespace = 'jobs'::regnamespace and c.relkind = 'r' and a.attname = 'state'"
    ).fetchall()
    assert sorted(kinds) == [("job", "text"), ("settled", "text"), ("worker", "text")]
    own = "select count(*) from pg_type where typnamespace = 'jobs'::regnamespace and typtype = 'e'"
    assert conn.execute(own).fetchone() == (0,)


def test_live_and_finished_states_are_apart_and_are_all_there_are(conn: Conn) -> None:
    assert allowed(conn, "jobs.job", "job_state_check") == LIVE
    assert allowed(conn, "jobs.settled", "settled_state_check") == FINISHED
    # A delayed job is a ready one whose time has not come.
    assert set(get_args(JobState)) == LIVE | FINISHED | {"delayed"}


@pytest.mark.parametrize("state", sorted(FINISHED | {"", "READY", "done"}))
def test_a_live_job_cannot_be_in_another_state(conn: Conn, state: str) -> None:
    work.enqueue(conn, Input())
    with pytest.raises(errors.CheckViolation):
        conn.execute("update jobs.job set state = %s", [state])
    assert [job.state for job in list_jobs(conn).jobs] == ["ready"]


def test_a_running_job_has_a_holder_and_a_lease_and_no_other_has(conn: Conn) -> None:
    work.enqueue(conn, Input())
    held = (
        "update jobs.job set state = 'running', worker = 'w', "
        "lease_expires_at = now(), rescue_at = now()"
    )
    conn.execute(held)
    for column in ("worker", "lease_expires_at", "rescue_at"):
        with pytest.raises(errors.CheckViolation):
            conn.execute(sql.SQL("update jobs.job set {} = null").format(sql.Identifier(column)))
    with pytest.raises(errors.CheckViolation):
        conn.execute("update jobs.job set state = 'ready'")


def test_the_hot_table_has_room_for_updates_and_its_own_vacuum(conn: Conn) -> None:
    found = conn.execute(
        "select reloptions from pg_class where oid = 'jobs.job'::regclass"
    ).fetchone()
    assert found is not None
    options = dict(option.split("=") for option in found[0])
    assert int(options["fillfactor"]) <= 70
    # A queue turns over whole: a fifth of the largest it ever was, the default, is far too late.
    assert float(options["autovacuum_vacuum_scale_factor"]) < 0.2
    assert float(options["autovacuum_vacuum_cost_delay"]) == 0
    assert options["vacuum_truncate"] == "false"
