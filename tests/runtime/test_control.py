"""jobs.control on both flavours of connection: answers, errors, what is refused before any SQL."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import psycopg
import pytest
from psycopg import AsyncConnection, Connection

import jobs
import jobs.control as control
from jobs.control import Cancellation, Requeueing
from tests.runtime.working import Input, Table, execute, job, make, rows

Operate = Callable[..., Any]


@job(idempotency_key=lambda i: f"key {i.n}")
async def keyed(_: Input) -> None:
    """Complete."""


@job(retry=jobs.Retry(attempts=1))
async def fails(_: Input) -> None:
    raise ValueError("no")


@pytest.fixture(params=["sync", "async"])
def operate(request: pytest.FixtureRequest, database: str) -> Operate:
    """Call a function of jobs.control on a connection of either flavour."""

    async def on_async(function: Any, *args: Any, **options: Any) -> Any:
        async with await AsyncConnection.connect(database, autocommit=True) as conn:
            answer = function(conn, *args, **options)
            assert isinstance(answer, Coroutine)
            return await answer

    async def on_sync(function: Any, *args: Any, **options: Any) -> Any:
        with Connection[Any].connect(database, autocommit=True) as conn:
            return function(conn, *args, **options)

    return on_async if request.param == "async" else on_sync


def run_for(database: str, id: UUID) -> None:
    """Let a job run in the hands of a worker that does not exist."""
    execute(
        database,
        "update jobs.job set state = 'running', worker = 'w', claims = claims + 1, attempt = 1,"
        " lease_expires_at = now() + interval '1 hour', rescue_at = now() + interval '1 hour'"
        " where id = %s",
        id,
    )


async def test_cancel_says_which_way_it_ends(operate: Operate, database: str) -> None:
    table = Table(database)
    waiting, running = table.enqueue(keyed, 2)
    run_for(database, running)
    assert await operate(control.cancel, waiting) == Cancellation(waiting, "cancelled", "cancelled")
    for _ in range(2):
        answer = await operate(control.cancel, running, reason="because")
        assert answer == Cancellation(running, "requested", "running")
    (row,) = rows(database, "select cancel_reason from jobs.job")
    assert row.cancel_reason == "because"


async def test_many_are_answered_in_their_order(operate: Operate, database: str) -> None:
    table = Table(database)
    first, second = table.enqueue(keyed, 2)
    unknown = jobs.uuid7()
    answers = await operate(control.cancel_many, [second, unknown, first, second])
    assert [(answer.id, answer.outcome) for answer in answers] == [
        (second, "cancelled"),
        (unknown, "unknown"),
        (first, "cancelled"),
        (second, "cancelled"),
    ]
    back = await operate(control.requeue_many, iter([first, unknown]))
    assert back == [
        Requeueing(first, "requeued", "ready", None),
        Requeueing(unknown, "unknown", None, None),
    ]
    assert await operate(control.cancel_many, []) == []
    assert await operate(control.requeue_many, []) == []


async def test_a_finished_job_cannot_be_cancelled(operate: Operate, database: str) -> None:
    (id,) = Table(database).enqueue(keyed)
    await make(database, keyed).run_until_idle()
    with pytest.raises(jobs.JobNotCancellable, match="has ended as completed") as refused:
        await operate(control.cancel, id)
    assert (refused.value.id, refused.value.state) == (id, "completed")


@pytest.mark.parametrize("verb", [control.cancel, control.requeue])
async def test_a_job_that_is_not_there(operate: Operate, verb: Any) -> None:
    with pytest.raises(jobs.JobNotFound):
        await operate(verb, jobs.uuid7())


async def test_a_dead_job_runs_again(operate: Operate, database: str) -> None:
    table = Table(database)
    (id,) = table.enqueue(fails)
    assert (await make(database, fails).run_until_idle()).ended == 1
    assert await operate(control.requeue, id) == Requeueing(id, "requeued", "ready", None)
    assert (await make(database, fails).run_until_idle()).ended == 1
    assert [attempt.claims for attempt in table.attempts(id)] == [1, 2]


async def test_it_waits_as_long_as_it_is_told(operate: Operate, database: str) -> None:
    table = Table(database)
    one, two = table.enqueue(fails, 2)
    await make(database, fails).run_until_idle()
    when = datetime.now(UTC) + timedelta(days=1)
    await operate(control.requeue, one, run_at=when)
    await operate(control.requeue, two, delay=timedelta(days=2))
    assert table.live(one).available_at == when
    assert table.live(two).available_at > when


async def test_what_cannot_be_requeued(operate: Operate, database: str) -> None:
    table = Table(database)
    (id,) = table.enqueue(keyed)
    with pytest.raises(jobs.JobNotRequeueable, match="is ready: it has not ended") as refused:
        await operate(control.requeue, id)
    assert (refused.value.id, refused.value.state, refused.value.holder) == (id, "ready", None)
    await make(database, keyed).run_until_idle()
    with pytest.raises(jobs.JobNotRequeueable, match="has completed") as refused:
        await operate(control.requeue, id)
    assert "--completed" in refused.value.fix
    (holder,) = table.enqueue(keyed)
    with pytest.raises(jobs.JobNotRequeueable, match=f"live job {holder}") as refused:
        await operate(control.requeue, id, completed=True)
    assert (refused.value.state, refused.value.holder) == ("completed", holder)
    await make(database, keyed).run_until_idle()
    assert (await operate(control.requeue, id, completed=True)).outcome == "requeued"


@pytest.mark.parametrize("verb", [control.cancel, control.requeue])
async def test_a_row_that_stays_locked(operate: Operate, database: str, verb: Any) -> None:
    table = Table(database)
    (id,) = table.enqueue(keyed)
    where = "job"
    if verb is control.requeue:
        await operate(control.cancel, id)
        where = "settled"
    with psycopg.connect(database) as other:
        other.execute(f"select from jobs.{where} where id = %s for update".encode(), [id])
        with pytest.raises(jobs.JobBusy) as refused:
            await operate(verb, id, patience=timedelta(milliseconds=50))
        assert refused.value.id == id
        many = control.cancel_many if verb is control.cancel else control.requeue_many
        (answer,) = await operate(many, [id], patience=timedelta(0))
        assert answer.outcome == "busy"


async def test_a_row_that_is_locked_for_a_moment_is_asked_for_again(
    operate: Operate, database: str
) -> None:
    (id,) = Table(database).enqueue(keyed)
    locked = threading.Event()

    def hold() -> None:
        with psycopg.connect(database) as other:
            other.execute("select from jobs.job where id = %s for update", [id])
            locked.set()
            time.sleep(0.2)

    thread = threading.Thread(target=hold)
    thread.start()
    locked.wait(30)
    answer = await operate(control.cancel, id, patience=timedelta(seconds=30))
    thread.join()
    assert answer.outcome == "cancelled"


async def test_pauses(operate: Operate) -> None:
    assert await operate(control.pause, "b", paused_by="me") is True
    assert await operate(control.pause, "b", paused_by="you") is False
    assert await operate(control.pause, "a") is True
    first, second = await operate(control.pauses)
    assert (first.kind, first.name, first.paused_by) == ("queue", "a", None)
    assert (second.kind, second.name, second.paused_by) == ("queue", "b", "me")
    assert second.paused_at.utcoffset() == timedelta(0)
    assert await operate(control.resume, "b") is True
    assert await operate(control.resume, "b") is False


async def test_a_paused_queue_runs_nothing(operate: Operate, database: str) -> None:
    table = Table(database)
    (id,) = table.enqueue(keyed)
    await operate(control.pause, "default")
    assert (await make(database, keyed).run_until_idle()).claimed == 0
    await operate(control.resume, "default")
    assert (await make(database, keyed).run_until_idle()).claimed == 1
    assert table.settled(id).state == "completed"


NAIVE = datetime(2026, 3, 8, 2, 30)
SOME = UUID("01920000-0000-7000-8000-000000000000")  # not made anew: it is in the names of tests


@pytest.mark.parametrize(
    ("verb", "given", "options", "says"),
    [
        (control.cancel, "x", {}, "the id of a job is a UUID"),
        (control.cancel, str(SOME), {}, "the id of a job is a UUID"),
        (control.cancel_many, str(SOME), {}, "ids must be several UUIDs"),
        (control.cancel_many, [SOME] * 10_001, {}, "at most 10,000 jobs at a time, not 10,001"),
        (control.cancel, SOME, {"reason": ""}, "reason: must not be empty"),
        (control.cancel, SOME, {"reason": "a\x00b"}, "reason: "),
        (control.cancel, SOME, {"reason": "\udc00"}, "reason: "),
        (control.cancel, SOME, {"reason": "x" * 1001}, "reason: is 1,001 bytes"),
        (control.cancel, SOME, {"patience": timedelta(-1)}, "patience must be"),
        (control.cancel, SOME, {"patience": 5}, "patience must be"),
        (control.requeue, SOME, {"run_at": NAIVE}, "run_at: is a datetime without a time zone"),
        (control.requeue, SOME, {"delay": timedelta(-1)}, "delay: must be from 0"),
        (control.requeue, SOME, {"completed": 1}, "completed must be a bool"),
        (control.requeue, None, {}, "the id of a job is a UUID"),
        (control.pause, "", {}, "queue: must not be empty"),
        (control.pause, "x" * 256, {}, "queue: is 256 bytes"),
        (control.pause, "q", {"paused_by": "\x00"}, "paused_by: "),
        (control.resume, 7, {}, "queue: must be a str"),
    ],
)
async def test_bad_input_is_refused_before_anything_is_sent(
    refusing_door: Any, verb: Any, given: Any, options: dict[str, Any], says: str
) -> None:
    with pytest.raises(jobs.ControlInvalid, match=says):
        verb(refusing_door.conn, given, **options)
