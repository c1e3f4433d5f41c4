"""A job through COPY."""

from __future__ import annotations

from typing import Any

from psycopg import Connection

from jobs_sql.bulk import CopyJobsParams, copy_jobs
from tests.sql.calls import new_id


def copy_one(conn: Connection[Any]) -> None:
    """One job by CopyJobs."""
    rows = [
        CopyJobsParams(
            id=new_id(),
            run_id=new_id(),
            queue="q",
            name="n",
            tenant="",
            priority=0,
            max_attempts=1,
            dead_letter=True,
            concurrency_key=None,
            concurrency_limit=None,
            when_busy=None,
            traceparent=None,
            enqueued_by=None,
            input="{}",
        )
    ]
    assert copy_jobs(conn, [rows]) == 1
