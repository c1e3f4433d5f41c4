"""Words of SQL in sentences: select the jobs to run from the registry, insert into the queue.

    select id from jobs.job
"""

from __future__ import annotations

from jobs_sql import claim as sql


def messages(queue: str, seconds: float) -> list[str]:
    """Update the handle, delete from the queue, order by priority."""
    "A string of its own is a remark: select id from jobs.job"
    return [
        "Select the jobs to run from the registry.",
        "select a queue",
        "select jobs",
        "delete from the queue",
        "insert into the queue",
        "update the handle where the job is declared",
        "update jobs.worker to the next version",
        "fetch jobs",
        "close pool",
        "lock timeout",
        "show progress",
        "notify worker",
        "listen queue",
        "truncate it",
        "set queue to default",
        "set timeout=3 on the job",
        "commit",
        "commit work",
        "discard all",
        "execute jobs",
        "analyze jobs",
        "deallocate slots",
        "begin",
        "rollback",
        "table",
        "on conflict do what? return or raise",
        "values must be positive",
        "create a table first",
        "where the worker runs and order by priority decides",
        "a limit of 3 attempts",
        "end of line",
        "with a lease of 60 seconds",
        f"job {queue} retries in {seconds} seconds",
        f"and {queue} = {seconds}",
        f"queue {queue!r} is not declared, declare it or drop the message",
        "jobs.enqueue::JobHandle",
    ]


def calls(conn: object, options: dict[str, int]) -> object:
    """Generated functions send; copying a dict is no COPY."""
    options.copy()
    return sql.claim_jobs(conn)
