"""Hooks of jobs that have ended: for which ends, when, and what a stop does to them."""

from __future__ import annotations

import asyncio
import logging
import threading
from datetime import timedelta
from typing import Any

import psycopg
import pytest

import jobs
from jobs.worker import hooks
from jobs.worker import worker as worker_module
from jobs.worker.farewell import GRACE
from tests.runtime.working import (
    QUICK,
    Input,
    Table,
    execute,
    job,
    logged,
    make,
    rows,
    serving,
    until,
)

Told = jobs.Settled[Input]

HOUR = timedelta(hours=1)
ONCE = jobs.Retry(attempts=1)


class Ear:
    """A hook that listens."""

    def __init__(self) -> None:
        self.heard: list[Told] = []

    async def __call__(self, told: Told) -> None:
        self.heard.append(told)

    @property
    def outcomes(self) -> list[tuple[str, str | None]]:
        return [(told.outcome, told.stop_reason) for told in self.heard]


async def heard_of(database: str, handle: Any, **options: Any) -> Any:
    """Run one job by hand; its id."""
    (one,) = Table(database).enqueue(handle, **options)
    await make(database, handle).run_until_idle()
    return one


async def test_a_completed_job(database: str) -> None:
    ear = Ear()

    @job(on_settled=ear)
    async def works(_: Input) -> None: ...

    one = await heard_of(database, works, enqueued_by="somebody")
    (told,) = ear.heard
    assert (told.id, told.name, told.queue) == (one, "works", "default")
    assert (told.outcome, told.stop_reason, told.attempt) == ("completed", None, 1)
    assert (told.error_type, told.error_message) == (None, None)
    assert (told.input, told.payload) == (Input(n=0), '{"n":0}')
    assert (told.enqueued_by, told.max_attempts) == ("somebody", 3)


@pytest.mark.parametrize("dead_letter", [True, False], ids=["dead", "failed"])
async def test_an_exhausted_and_a_terminal_one_with_what_is_on_their_rows(
    database: str, dead_letter: bool
) -> None:
    ear = Ear()
    retry = jobs.Retry(attempts=2, delay=timedelta(0), dead_letter=dead_letter)

    @job(on_settled=ear, retry=retry)
    async def fails(_: Input) -> None:
        raise ValueError("no")

    @job(on_settled=ear, retry=retry)
    def ends(_: Input) -> None:
        raise jobs.Terminal("never")

    table = Table(database)
    for handle in (fails, ends):
        one = await heard_of(database, handle)
        row = table.settled(one)
        told = ear.heard[-1]
        assert (told.id, told.outcome, told.stop_reason) == (one, row.state, row.stop_reason)
        assert f"{told.error_type}: {told.error_message}" == row.last_error
        assert told.attempt == row.attempt
    state = "dead" if dead_letter else "failed"
    assert ear.outcomes == [(state, "exhausted"), (state, "terminal")], "and for no retry"


async def test_a_payload_that_does_not_fit(database: str) -> None:
    ear = Ear()

    @job(on_settled=ear)
    async def works(_: Input) -> None: ...

    Table(database).insert("works", '{"n": "x"}', max_attempts=1)
    await make(database, works).run_until_idle()
    (told,) = ear.heard
    assert (told.outcome, told.error_type) == ("dead", "PayloadUnreadable")
    assert told.payload == '{"n": "x"}'


async def test_never_for_retry_snooze_hand_back_or_cancel(database: str) -> None:
    ear = Ear()
    options: dict[str, Any] = {"on_settled": ear, "retry": jobs.Retry(delay=HOUR)}

    @job(**options)
    async def fails(_: Input) -> None:
        raise ValueError("no")

    @job(**options)
    async def snoozes(_: Input, run: jobs.Run) -> None:
        run.snooze(HOUR)

    @job(**options)
    async def asked(_: Input, run: jobs.Run) -> None:
        execute(database, "update jobs.job set cancel_requested_at = now() where id = %s", run.id)
        raise ValueError("after it was asked")

    @job(**options)
    async def long(_: Input) -> None:
        await asyncio.sleep(60)

    table = Table(database)
    for handle in (fails, snoozes, asked):
        await heard_of(database, handle)
    (one,) = table.enqueue(long)
    async with serving(database, long, drain=timedelta(0)) as worker:
        await until(lambda: worker.stats().claimed, "the start")
    assert table.live(one).state == "ready"
    assert table.counters() == {"retried": 1, "cancelled": 1}
    assert ear.heard == []


async def test_never_for_a_settle_that_was_lost(database: str) -> None:
    ear = Ear()

    @job(on_settled=ear)
    async def robbed(_: Input, run: jobs.Run) -> None:
        execute(
            database,
            "update jobs.job set claims = claims + 1, revoked = claims, worker = 'another',"
            " lease_expires_at = now() + interval '1 hour', rescue_at = now() + interval '1 hour'"
            " where id = %s",
            run.id,
        )

    await heard_of(database, robbed)
    assert ear.heard == []


LAPSES = (
    "update jobs.job set state = 'running', worker = 'gone', claims = 1, attempt = %s,"
    " lease_expires_at = now() - interval '1 second', rescue_at = now() - interval '1 second'"
)


@pytest.mark.parametrize("dead_letter", [True, False], ids=["dead", "failed"])
async def test_one_that_a_claim_buries(database: str, dead_letter: bool) -> None:
    """Its own process is gone; this one knows its name."""
    ear = Ear()

    @job(on_settled=ear, retry=jobs.Retry(dead_letter=dead_letter))
    async def works(_: Input) -> None: ...

    table = Table(database)
    (one,) = table.enqueue(works)
    execute(database, LAPSES, 3)
    stats = await make(database, works).run_until_idle()
    (told,) = ear.heard
    row = table.settled(one)
    assert (told.id, told.outcome, told.stop_reason) == (one, row.state, row.stop_reason)
    assert (row.state, row.stop_reason) == ("dead" if dead_letter else "failed", "lease lapsed")
    assert (told.error_type, told.attempt, told.input) == ("LeaseLapsed", 3, Input(n=0))
    assert (stats.buried, stats.claimed) == (1, 0)


@pytest.mark.parametrize("attempt", [1, 3])
async def test_not_one_whose_lease_lapsed_after_a_cancel(
    database: str, attempt: int, caplog: pytest.LogCaptureFixture
) -> None:
    ear = Ear()

    @job(on_settled=ear)
    async def works(_: Input) -> None: ...

    table = Table(database)
    (one,) = table.enqueue(works)
    execute(database, LAPSES, attempt)
    execute(database, "update jobs.job set cancel_requested_at = now()")
    await make(database, works).run_until_idle()
    assert table.settled(one).state == "cancelled"
    assert (ear.heard, logged(caplog, "jobs.worker.buried")) == ([], [])


async def test_one_that_is_refused(database: str) -> None:
    """It meets its concurrency key in use, and was declared not to wait."""
    ear, gate, begun = Ear(), asyncio.Event(), asyncio.Event()
    alone = jobs.Concurrency(key=lambda _: "k", limit=1, when_busy="fail")

    @job(on_settled=ear, concurrency=alone)
    async def works(input: Input) -> None:
        if input.n == 0:
            begun.set()
            await gate.wait()

    table = Table(database)
    (first,) = table.enqueue(works)
    async with serving(database, works):
        await begun.wait()
        with psycopg.connect(database, autocommit=True) as conn:
            second = works.enqueue(conn, Input(n=1)).id
        (told,) = await until(lambda: ear.heard, "the refusal")
        row = table.settled(second)
        assert (told.id, told.outcome, told.stop_reason) == (second, "refused", row.stop_reason)
        assert (row.state, row.stop_reason) == ("failed", "refused")
        gate.set()
        await until(lambda: table.settled(first), "the other")


async def test_after_the_row_has_moved(database: str) -> None:
    states: list[str] = []

    def look(told: Told) -> None:
        found = rows(database, "select state from jobs.settled where id = %s", told.id)
        states.extend(row.state for row in found)

    @job(on_settled=look)
    async def works(_: Input) -> None: ...

    await heard_of(database, works)
    assert states == ["completed"]


async def test_a_completion_in_the_functions_own_transaction(database: str) -> None:
    """The hook is told the result that was stored, which is not what is returned afterwards."""
    ear = Ear()

    @job(on_settled=ear)
    def completes(_: Input, run: jobs.Run) -> int:
        with psycopg.connect(database) as conn:
            run.complete(conn, result=7)
        return 99

    @job(on_settled=ear)
    async def says_nothing(_: Input, run: jobs.Run) -> int:
        async with await psycopg.AsyncConnection.connect(database) as conn:
            await run.complete(conn)
        return 99

    await heard_of(database, completes)
    await heard_of(database, says_nothing)
    assert ear.outcomes == [("completed", None)] * 2
    assert [told.result for told in ear.heard] == ["7", None]


async def test_one_that_fails_changes_nothing(
    database: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hooks, "PAUSES", (0.0, 0.0))

    def broken(_: Told) -> None:
        raise ValueError("no")

    @job(on_settled=broken)
    async def works(_: Input) -> None: ...

    table = Table(database)
    (one,) = table.enqueue(works)
    stats = await make(database, works).run_until_idle()
    assert table.settled(one).state == "completed"
    assert (stats.completed, stats.hooks_failed) == (1, 1)
    assert len(logged(caplog, "jobs.hook.failed")) == 1


async def test_by_hand_what_a_hook_enqueues_runs_too(database: str) -> None:
    @job()
    async def follows(input: Input) -> None:
        seen.append(input.n)

    seen: list[int] = []

    async def enqueue(_: Told) -> None:
        await asyncio.sleep(0.2)
        async with await psycopg.AsyncConnection.connect(database) as conn:
            await follows.enqueue(conn, Input(n=7))

    @job(on_settled=enqueue)
    async def works(_: Input) -> None: ...

    Table(database).enqueue(works)
    await make(database, works, follows).run_until_idle()
    assert seen == [7]


@pytest.mark.parametrize("in_time", [True, False])
async def test_a_stop_waits_for_them_within_its_budget(
    database: str,
    in_time: bool,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(worker_module, "GRACE", GRACE._replace(hook=0.1))
    begun, ended, gate = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def slow(_: Told) -> None:
        begun.set()
        await gate.wait()
        ended.set()

    @job(on_settled=slow)
    async def works(_: Input) -> None: ...

    Table(database).enqueue(works)
    drain = timedelta(seconds=20 if in_time else 0)
    async with serving(database, works, drain=drain) as worker:
        await begun.wait()
        if in_time:
            asyncio.get_running_loop().call_later(0.3, gate.set)
    assert ended.is_set() == in_time
    assert worker.stats().hooks_failed == (not in_time)
    assert len(logged(caplog, "jobs.hook.abandoned")) == (not in_time)


async def test_a_worker_that_is_behind_with_them_claims_nothing(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_module, "BACKLOG", 3)
    gate = asyncio.Event()
    begun: list[int] = []

    async def slow(told: Told) -> None:
        begun.append(told.input.n)
        await gate.wait()

    @job(on_settled=slow)
    async def works(_: Input) -> None:
        await asyncio.sleep(0.02)  # so that settles are answered meanwhile

    table = Table(database)
    table.enqueue(works, 60)
    async with serving(database, works, queues={"default": 1}) as worker:
        await until(lambda: len(begun) >= 3, "as many as may be behind")
        await asyncio.sleep(0.4)  # what was claimed before it was behind has ended by now
        behind = worker.stats().claimed
        assert behind < 60
        await asyncio.sleep(0.6)
        assert worker.stats().claimed == behind, "enough for thirty more"
        gate.set()
        await until(lambda: worker.stats().completed == 60, "the rest")


@pytest.mark.parametrize("end", ["completed", "dead", "retry"])
async def test_a_lost_reply_is_asked_for_again_and_the_hook_called_once(
    database: str, end: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The settle lands and the worker does not hear of it: its repeat says so."""
    from jobs.worker import settler

    real = settler.settle_jobs_async
    lost: list[int] = []

    async def losing(conn: Any, **asked: Any) -> Any:
        answer = await real(conn, **asked)
        if len(lost) < 2:
            lost.append(len(asked["ids"]))
            raise psycopg.OperationalError("the connection is gone")
        return answer

    monkeypatch.setattr(settler, "settle_jobs_async", losing)
    ear = Ear()

    @job(on_settled=ear, retry=jobs.Retry(delay=HOUR))
    async def works(_: Input) -> None:
        if end == "dead":
            raise jobs.Terminal("never")
        if end == "retry":
            raise ValueError("later")

    with caplog.at_level(logging.WARNING, "jobs.worker"):
        await heard_of(database, works)
    assert lost == [1, 1]
    assert (
        ear.outcomes
        == {
            "completed": [("completed", None)],
            "dead": [("dead", "terminal")],
            "retry": [],
        }[end]
    )


async def test_in_a_thread_it_does_not_hold_up_the_loop(database: str) -> None:
    gate = threading.Event()
    done = asyncio.Event()

    def blocks(_: Told) -> None:
        gate.wait(30)

    @job(on_settled=blocks)
    async def works(_: Input) -> None: ...

    @job()
    async def other(_: Input) -> None:
        done.set()

    table = Table(database)
    table.enqueue(works)
    async with serving(database, works, other) as worker:
        await until(lambda: worker.stats().completed, "the end of the first")
        table.enqueue(other)
        await done.wait()
        gate.set()


async def test_a_worker_without_hooks_has_none(database: str) -> None:
    @job()
    async def plain(_: Input) -> None: ...

    async with make(database, plain, **QUICK) as worker:
        assert worker._hooks is None
