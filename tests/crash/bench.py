"""What the tests of worker processes share: starting them, enqueueing, reading the evidence."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from uuid import UUID

import psycopg
from psycopg import Connection
from psycopg.rows import namedtuple_row

from tests.crash.app import EVENTS_DDL, Nap
from tests.support.waiting import until
from tests.support.workers import WorkerProcess


class Event(NamedTuple):
    """One thing that a job function did."""

    pid: int
    job: UUID
    claims: int
    attempt: int
    what: str


@dataclass
class Bench:
    """A database with the table of events, and worker processes on it."""

    dsn: str
    start_process: Callable[..., WorkerProcess]
    conn: Connection[Any] = field(init=False)

    def __post_init__(self) -> None:
        self.conn = psycopg.connect(self.dsn, autocommit=True)
        self.conn.execute(EVENTS_DDL)

    def worker(
        self,
        *options: str,
        dsn: str | None = None,
        lease: float = 1,
        wait: bool = True,
        prefix: tuple[str, ...] = (),
        env: dict[str, str] | None = None,
        target: str = "tests.crash.app",
        module: str = "jobs",
    ) -> WorkerProcess:
        """Start a worker, and wait until it serves unless told otherwise."""
        process = self.start_process(
            "worker",
            target,
            "--lease",
            str(lease),
            "--poll",
            "0.05",
            "--idle-poll",
            "0.2",
            *options,
            module=module,
            env={"JOBS_DSN": dsn or self.dsn, "EVENTS_DSN": self.dsn, **(env or {})},
            prefix=prefix,
        )
        if wait:
            process.wait_for_output(" serves ")
        return process

    @contextmanager
    def table_locked(self) -> Iterator[None]:
        """Nobody else can use the table of jobs during the block."""
        with psycopg.connect(self.dsn) as conn:
            conn.execute("lock table jobs.job in access exclusive mode")
            yield

    def enqueue(self, handle: Any, seconds: float = 0, count: int = 1) -> list[UUID]:
        """Enqueue jobs of a kind that take so long."""
        made = handle.enqueue_many(self.conn, [Nap(seconds=seconds) for _ in range(count)])
        return [one.id for one in made]

    def events(self, what: str | None = None, job: UUID | None = None) -> list[Event]:
        """What the jobs did, in order."""
        rows = self.conn.execute(
            "select pid, job, claims, attempt, what from public.event"
            " where (%(what)s::text is null or what = %(what)s)"
            " and (%(job)s::uuid is null or job = %(job)s) order by number",
            {"what": what, "job": job},
        )
        return [Event._make(row) for row in rows]

    def story(self, job: UUID) -> list[tuple[int, str]]:
        """What one job did: attempt and event."""
        return [(event.attempt, event.what) for event in self.events(job=job)]

    def wait_for(self, what: str, count: int = 1) -> list[Event]:
        """The events of a kind, once there are so many."""
        return until(
            lambda: found if len(found := self.events(what)) >= count else [],
            f"{count} events {what!r}; there are {self.events()}",
        )

    def rows(self, statement: str, *values: object) -> list[Any]:
        """Rows with names."""
        return self.conn.cursor(row_factory=namedtuple_row).execute(statement, values).fetchall()

    def live(self, job: UUID) -> Any:
        """The row of a live job, or None."""
        return next(iter(self.rows("select * from jobs.job where id = %s", job)), None)

    def settled(self, job: UUID) -> Any:
        """The row of a finished job, or None."""
        return next(iter(self.rows("select * from jobs.settled where id = %s", job)), None)

    def attempts(self, job: UUID) -> list[tuple[int, int, str]]:
        """Its failed attempts: token, number, error."""
        rows = self.rows(
            "select claims, attempt, error_type from jobs.attempt where job_id = %s"
            " order by claims",
            job,
        )
        return [tuple(row) for row in rows]

    def counters(self) -> dict[str, int]:
        """How often each outcome was counted."""
        rows = self.rows(
            "select outcome, sum(amount)::int as times from jobs.counter group by outcome"
        )
        return {row.outcome: row.times for row in rows}

    def all_settled(self) -> None:
        """Wait until no live job is left."""
        until(lambda: not self.rows("select 1 from jobs.job limit 1"), "all jobs to end")

    def sessions(self) -> list[Any]:
        """Sessions of workers on this database."""
        return self.rows(
            "select pid, state, query, application_name, xact_start from pg_stat_activity"
            " where datname = current_database() and application_name like 'jobs:%%'"
        )

    def no_sessions(self) -> None:
        """Wait until no session of a worker is left, nor a statement of one."""
        until(lambda: not self.sessions(), "the workers' sessions to end")
