"""Waiting for a job to end, and reading what it returned."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Iterator
from contextlib import nullcontext
from datetime import timedelta
from typing import Any, Final
from uuid import UUID

from psycopg import AsyncConnection, Connection
from psycopg.pq import TransactionStatus

from jobs.errors import InvalidInput, JobNotFound, UnknownState
from jobs.faults import (
    JobCancelled,
    JobDead,
    JobFailed,
    JobRefused,
    ResultInTransaction,
    ResultTimeout,
    ResultUnavailable,
)
from jobs.results import ResultCodec
from jobs_sql.result import ReadResultRow, read_result, read_result_async

# Seconds between two looks: doubled from the first to the longest, each a random part shorter.
_FIRST: Final = 0.02
_LONGEST: Final = 1.0
_JITTER: Final = 0.25

_FAILURES: Final[dict[str, type[ResultUnavailable]]] = {
    "dead": JobDead,
    "failed": JobFailed,
    "cancelled": JobCancelled,
}


class Wait:
    """One wait for the result of one job, whatever the flavour of the connection.

    Raises InvalidInput where the time or the id is none.
    """

    def __init__(self, name: str, codec: ResultCodec, id: UUID, timeout: timedelta | None) -> None:
        if not isinstance(id, UUID):
            raise InvalidInput(
                f"must be a UUID, and is a {type(id).__qualname__}",
                field="id",
                fix="Pass the id that the enqueue answered.",
            )
        if timeout is not None and (not isinstance(timeout, timedelta) or timeout < timedelta()):
            raise InvalidInput(
                f"must be a timedelta of 0 or more, or None, and is {timeout!r:.200}",
                field="timeout",
                fix="Pass for example timedelta(seconds=30); 0 looks once.",
            )
        self._name = name
        self._codec = codec
        self._id = id
        self._timeout = timeout
        self._seen: ReadResultRow | None = None

    def run(self, conn: Connection[Any]) -> Any:
        """Wait on a synchronous connection; blocks the thread."""
        outside = _outside(conn)
        for pause in self._pauses(outside):
            with conn.transaction() if outside and not conn.autocommit else nullcontext():
                row = read_result(conn, id=self._id)
            if self._ended(row):
                return self._answer(row)
            self._seen = row
            if pause is not None:
                time.sleep(pause)
        raise self._late(outside)

    async def run_async(self, conn: AsyncConnection[Any]) -> Any:
        """Wait on an asynchronous connection."""
        outside = _outside(conn)
        for pause in self._pauses(outside):
            if outside and not conn.autocommit:
                async with conn.transaction():  # not one that stays open between two looks
                    row = await read_result_async(conn, id=self._id)
            else:
                row = await read_result_async(conn, id=self._id)
            if self._ended(row):
                return self._answer(row)
            self._seen = row
            if pause is not None:
                await asyncio.sleep(pause)
        raise self._late(outside)

    def _pauses(self, outside: bool) -> Iterator[float | None]:
        """Seconds after each look; None after the last one."""
        if not outside:
            yield None
            return
        until = None if self._timeout is None else time.monotonic() + self._timeout.total_seconds()
        pause = _FIRST
        while True:
            wanted = pause * random.uniform(1 - _JITTER, 1)
            left = wanted if until is None else until - time.monotonic()
            if left <= 0:
                yield None
                return
            yield min(wanted, left)
            pause = min(pause * 2, _LONGEST)

    def _ended(self, row: ReadResultRow | None) -> bool:
        if row is None:
            raise JobNotFound(f"no job has the id {self._id}")
        if row.name != self._name:
            raise JobNotFound(
                f"job {self._id} is a {row.name!r} and not a {self._name!r}",
                fix="Ask the handle of the job that was enqueued.",
            )
        return row.settled

    def _answer(self, row: ReadResultRow | None) -> Any:
        assert row is not None
        if row.state == "completed":
            return self._codec.load(row.result)
        kind = JobRefused if row.stop_reason == "refused" else _FAILURES.get(row.state)
        if kind is None:
            raise UnknownState(f"job {self._id} is in the state {row.state!r}")
        why = f" ({row.stop_reason})" if row.stop_reason else ""
        last = f": {row.last_error:.500}" if row.last_error else ""
        raise kind(
            f"job {self._id} ({self._name}) ended as {row.state}{why}{last}",
            id=self._id,
            state=row.state,
            stop_reason=row.stop_reason,
            last_error=row.last_error,
        )

    def _late(self, outside: bool) -> ResultTimeout | ResultInTransaction:
        state = "unknown" if self._seen is None else self._seen.state
        about = f"job {self._id} ({self._name}) is {state}"
        if not outside:
            return ResultInTransaction(f"{about}, and the connection is in a transaction")
        return ResultTimeout(f"{about} after {self._timeout}", id=self._id, state=state)


def _outside(conn: Connection[Any] | AsyncConnection[Any]) -> bool:
    """Whether no transaction is open, so that each look sees what has been committed by then."""
    return conn.info.transaction_status == TransactionStatus.IDLE
