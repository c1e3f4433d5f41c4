"""The operator's statements as the tests call them, every row checked strictly."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from typing import Any
from uuid import UUID

from psycopg import Connection

from jobs_sql import control as sql
from tests.sql.calls import NOTHING, strict

Conn = Connection[Any]


def cancel(conn: Conn, *ids: UUID, reason: str | None = "told to") -> list[tuple[str, str | None]]:
    """`CancelJobs`; (verdict, state) in the order asked."""
    rows = strict(sql.CancelJobsRow, sql.cancel_jobs(conn, ids=ids, reason=reason))
    answers = {row.id: (row.verdict, row.state) for row in rows}
    assert len(answers) == len(rows) == len(set(ids)), "one answer for each id"
    return [answers[id] for id in ids]


def requeue(
    conn: Conn,
    *ids: UUID,
    completed: bool = False,
    delay: dt.timedelta = NOTHING,
    run_at: dt.datetime | None = None,
) -> list[tuple[str, str | None, UUID | None]]:
    """`RequeueJobs`; (verdict, state, holder) in the order asked."""
    rows = strict(
        sql.RequeueJobsRow,
        sql.requeue_jobs(conn, ids=ids, run_at=run_at, delay=delay, completed=completed),
    )
    answers = {row.id: (row.verdict, row.state, row.holder) for row in rows}
    assert len(answers) == len(rows) == len(set(ids)), "one answer for each id"
    return [answers[id] for id in ids]


def cancel_until(conn: Conn, id: UUID, tries: int = 1000) -> tuple[str, str | None]:
    """`cancel` of one job, sent again while its row is held."""
    for _ in range(tries):
        (answer,) = cancel(conn, id)
        if answer[0] != "busy":
            return answer
    raise AssertionError(f"{id} stayed busy")


def verdicts(answers: Sequence[tuple[Any, ...]]) -> list[str]:
    """The first of each answer."""
    return [answer[0] for answer in answers]
