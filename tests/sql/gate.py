"""A gate inside a statement: after its snapshot was taken, before it looks at the first job.

What a statement does about rows that change between its snapshot and its lock (PostgreSQL then
re-checks the newest version) cannot be stepped from outside: our statements wait for nobody. So a
row security policy of this test database calls a function that waits for an advisory lock. Sessions
that were not sent through the gate, and superusers, never meet it.
"""

from __future__ import annotations

from typing import Any

from psycopg import Connection

from tests.support.stepped import Session

_INSTALL = """
create schema stepped;

create function stepped.gate() returns boolean language plpgsql volatile as $$
begin
    if current_setting('stepped.gate', true) = 'shut' then
        perform pg_advisory_lock_shared(4711);
        perform pg_advisory_unlock_shared(4711);
        perform set_config('stepped.gate', 'open', false);
    end if;
    return true;
end
$$;

do $$
begin
    create role sql_jobs_stepped;
exception when duplicate_object or unique_violation then
    null;
end
$$;

grant usage on schema jobs, stepped to sql_jobs_stepped;
grant all on all tables in schema jobs to sql_jobs_stepped;
alter table jobs.job enable row level security;
create policy gated on jobs.job using (stepped.gate()) with check (true);
"""


class Gate:
    """Holds the statements of chosen sessions between their snapshot and their first row."""

    def __init__(self, conn: Connection[Any], keeper: Session) -> None:
        conn.execute(_INSTALL)
        self.keeper = keeper

    def hold(self, session: Session) -> None:
        """Stop the session's next statement that reads jobs.job, until `release`."""
        self.keeper.run(lambda c: c.execute("select pg_advisory_lock(4711)"))
        session.run(lambda c: c.execute("set role sql_jobs_stepped"))
        session.run(lambda c: c.execute("set stepped.gate = 'shut'"))

    def reached(self, session: Session) -> None:
        """Prove that the session waits inside its statement."""
        assert session.blocked(by=self.keeper).lock == "advisory ShareLock"

    def release(self) -> None:
        """Let the statement go on."""
        self.keeper.run(lambda c: c.execute("select pg_advisory_unlock_all()"))
