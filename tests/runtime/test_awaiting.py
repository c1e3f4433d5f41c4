"""Waiting for a result, on both flavours of connection: what it answers, and what it never does."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from psycopg import Connection

import jobs
from jobs.errors import ConnectionUnsupported, InvalidInput, JobNotFound
from jobs.faults import (
    JobCancelled,
    JobDead,
    JobFailed,
    JobRefused,
    ResultInTransaction,
    ResultTimeout,
    ResultUnavailable,
    ResultUnreadable,
)
from tests.runtime.doors import Door, Payload, settled
from tests.sql.calls import Held, Settle, claim_one, dead, new_id, retry, running, settle

Conn = Connection[Any]

MOMENT = timedelta(seconds=0.2)
ONCE = timedelta(0)


@jobs.job(tenant=jobs.NO_TENANT, idempotency_key=jobs.NO_KEY)
def counted(input: Payload) -> dict[str, int]:
    return {"n": len(input.note)}


async def result(door: Door, id: object, wait: timedelta | None = ONCE) -> Any:
    return await settled(counted.result(door.conn, id, timeout=wait))  # type: ignore[call-overload]


def taken(conn: Conn, **over: Any) -> Held:
    return running(conn, name="counted", **over)


async def test_a_completed_job_answers_with_the_typed_value(door: Door, conn: Conn) -> None:
    held = taken(conn)
    settle(conn, Settle(held, result='{"n": 5}'))
    assert await result(door, held[0]) == {"n": 5}


async def test_a_job_that_completes_meanwhile_is_waited_for(door: Door, conn: Conn) -> None:
    held = taken(conn)
    end = threading.Timer(0.15, settle, (conn, Settle(held, result='{"n": 1}')))
    end.start()
    assert await result(door, held[0], timedelta(seconds=15)) == {"n": 1}
    end.join()


async def test_one_without_end_is_waited_for_too(door: Door, conn: Conn) -> None:
    held = taken(conn)
    end = threading.Timer(0.05, settle, (conn, Settle(held, result='{"n": 1}')))
    end.start()
    assert await result(door, held[0], None) == {"n": 1}
    end.join()


@pytest.mark.parametrize(
    ("end", "kind", "code", "state", "why"),
    [
        (lambda held: dead(held, "no way"), JobDead, "JOB_DEAD", "dead", "terminal"),
        (lambda held: retry(held), JobFailed, "JOB_FAILED", "failed", "exhausted"),
        (lambda held: Settle(held, "cancelled"), JobCancelled, "JOB_CANCELLED", "cancelled", None),
        (lambda held: Settle(held, "refused"), JobRefused, "JOB_REFUSED", "failed", "refused"),
    ],
    ids=["dead", "failed", "cancelled", "refused"],
)
async def test_a_job_that_ended_otherwise_is_a_typed_error(
    door: Door,
    conn: Conn,
    end: Callable[[Held], Settle],
    kind: type[ResultUnavailable],
    code: str,
    state: str,
    why: str | None,
) -> None:
    letter = kind is not JobFailed
    held = taken(conn, max_attempts=1, dead_letter=letter)
    settle(conn, end(held))
    with pytest.raises(ResultUnavailable) as caught:
        await result(door, held[0])
    error = caught.value
    assert (type(error), error.code, error.id, error.state) == (kind, code, held[0], state)
    assert error.stop_reason == (why or "cancel requested")
    assert isinstance(error, JobFailed) == (state in ("dead", "failed") and why != "refused")
    if state == "dead":
        assert error.last_error == "TypeError: no way"
        assert "no way" in str(error)


async def test_an_unknown_id_and_another_jobs_id_are_not_waited_for(door: Door, conn: Conn) -> None:
    with pytest.raises(JobNotFound, match="no job has the id"):
        await result(door, new_id(), None)
    other = running(conn, name="other")
    with pytest.raises(JobNotFound, match="is a 'other' and not a 'counted'"):
        await result(door, other[0], None)


async def test_a_wait_ends_in_time_and_leaves_the_job_alone(door: Door, conn: Conn) -> None:
    held = taken(conn)
    began = time.monotonic()
    with pytest.raises(ResultTimeout, match=r"is running after 0:00:00\.2") as caught:
        await result(door, held[0], MOMENT)
    assert time.monotonic() - began >= 0.19
    assert (caught.value.id, caught.value.state) == (held[0], "running")
    assert isinstance(caught.value, TimeoutError)
    assert settle(conn, held) == [("landed", "completed")]


async def test_looks_become_rarer(door: Door, conn: Conn, monkeypatch: pytest.MonkeyPatch) -> None:
    held = taken(conn)
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 9:
            settle(conn, Settle(held, result='{"n": 1}'))

    def sleep_sync(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 9:
            settle(conn, Settle(held, result='{"n": 1}'))

    monkeypatch.setattr("jobs.awaiting.asyncio.sleep", sleep)
    monkeypatch.setattr("jobs.awaiting.time.sleep", sleep_sync)
    assert await result(door, held[0], None) == {"n": 1}
    assert len(pauses) == 9
    assert 0.01 < pauses[0] <= 0.02
    assert 0.7 < pauses[-1] <= 1


async def test_it_leaves_no_transaction_open_and_commits_nothing_of_others(
    door: Door, conn: Conn
) -> None:
    held = taken(conn)
    await door.set_autocommit(False)
    end = threading.Timer(0.1, settle, (conn, Settle(held, result='{"n": 1}')))
    end.start()
    assert await result(door, held[0], timedelta(seconds=15)) == {"n": 1}
    end.join()
    assert door.conn.info.transaction_status.name == "IDLE"


async def test_in_a_transaction_it_looks_once(door: Door, conn: Conn) -> None:
    """The job may have been enqueued in it: nobody else sees that, so a wait would never end."""
    await door.set_autocommit(False)
    made = await door.enqueue(counted, Payload())
    with pytest.raises(ResultInTransaction, match="is ready, and the connection is in a trans"):
        await result(door, made.id, None)
    assert door.conn.info.transaction_status.name == "INTRANS"
    await door.commit()
    row = claim_one(conn, queues={"default": 1})
    settle(conn, Settle((row.id, row.claims), result='{"n": 2}'))
    await door.execute("select 1")
    assert await result(door, made.id, None) == {"n": 2}
    await door.rollback()


async def test_a_result_that_does_not_fit_any_more_is_a_typed_error(door: Door, conn: Conn) -> None:
    held = taken(conn)
    settle(conn, Settle(held, result='{"n": "x"}'))
    with pytest.raises(ResultUnreadable, match=r"result\.n"):
        await result(door, held[0])
    nothing = taken(conn)
    settle(conn, nothing)
    with pytest.raises(ResultUnreadable, match="nothing is stored"):
        await result(door, nothing[0])


@pytest.mark.parametrize("wait", [timedelta(-1), 5, "1s"], ids=repr)
async def test_a_bad_time_is_refused(door: Door, wait: Any) -> None:
    with pytest.raises(InvalidInput, match="timeout: must be a timedelta of 0 or more, or None"):
        await result(door, new_id(), wait)


async def test_so_are_a_bad_id_and_a_bad_connection(door: Door) -> None:
    with pytest.raises(InvalidInput, match="id: must be a UUID, and is a str"):
        await result(door, str(new_id()))
    with pytest.raises(ConnectionUnsupported, match="a str was given"):
        counted.result("postgresql://", new_id())  # type: ignore[call-overload]
