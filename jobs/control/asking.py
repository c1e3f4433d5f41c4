"""What operators' calls share: checked arguments, and asking again for rows that others hold."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Iterable
from datetime import timedelta
from typing import Any, Final, TypeAlias, TypeVar
from uuid import UUID

from psycopg import AsyncConnection, Connection
from psycopg.pq import TransactionStatus

from jobs.errors import ControlInvalid
from jobs.flavour import Plan, Step
from jobs.payload import text_problem
from jobs_sql import control as sql

MAX_JOBS: Final = 10_000
"""How many jobs one call takes."""

PATIENCE: Final = timedelta(seconds=5)
"""How long a call asks again for rows that other sessions hold."""

NAME_BYTES: Final = 255

_FIRST_PAUSE: Final = 0.02
_LONGEST_PAUSE: Final = 0.5

Conn: TypeAlias = Connection[Any] | AsyncConnection[Any]
T = TypeVar("T")
Row = TypeVar("Row", sql.CancelJobsRow, sql.RequeueJobsRow)


def patiently(
    ids: Collection[UUID],
    patience: timedelta,
    send: Callable[[list[UUID]], Plan[list[Row]]],
) -> Plan[dict[UUID, Row]]:
    """Send for all, then again for those that others hold, until none is left or time is up."""
    answers: dict[UUID, Row] = {}
    left = sorted(set(ids))
    deadline = time.monotonic() + patience.total_seconds()
    seconds = _FIRST_PAUSE
    while left:
        rows = yield from send(left)
        answers |= {row.id: row for row in rows}
        left = sorted(row.id for row in rows if row.verdict == "busy")
        if left and (remaining := deadline - time.monotonic()) <= 0:
            break
        if left:
            yield _sleep(min(seconds, remaining))
            seconds = min(seconds * 2, _LONGEST_PAUSE)
    return answers


def _sleep(seconds: float) -> Step:
    return Step(lambda _: time.sleep(seconds), lambda _: asyncio.sleep(seconds))


def alone(conn: Conn) -> bool:
    """Whether each statement on the connection is a transaction of its own."""
    return conn.autocommit and conn.info.transaction_status == TransactionStatus.IDLE


def in_order(ids: list[UUID], plan: Plan[dict[UUID, Row]], of: Callable[[Row], T]) -> Plan[list[T]]:
    answers = yield from plan
    return [of(answers[id]) for id in ids]


def checked_ids(ids: Iterable[UUID]) -> list[UUID]:
    if isinstance(ids, str | bytes):
        raise ControlInvalid(f"ids must be several UUIDs, not {ids!r}")
    asked = list(ids)
    for id in asked:
        if not isinstance(id, UUID):
            raise ControlInvalid(f"the id of a job is a UUID, not {id!r}")
    if len(asked) > MAX_JOBS:
        raise ControlInvalid(f"at most {MAX_JOBS:,} jobs at a time, not {len(asked):,}")
    return asked


def check_text(what: str, value: object, limit: int) -> None:
    problem = text_problem(value, limit)
    if problem is not None:
        raise ControlInvalid(f"{what}: {problem}")


def check_patience(patience: object) -> None:
    if not isinstance(patience, timedelta) or patience < timedelta(0):
        raise ControlInvalid(f"patience must be a timedelta of at least 0, not {patience!r}")
