"""O-07, O-21: whatever one job is or does, its neighbours run, and it is explained on its row."""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from psycopg import sql
from pydantic import BaseModel

import jobs
from jobs.worker import loopwatch
from tests.runtime.working import (
    Input,
    Table,
    job,
    leaving_nothing,
    logged,
    make,
    serving,
    until,
)

CALLS: list[int] = []


class Narrow(BaseModel):
    """A model that has grown a field since some payloads were stored."""

    v: int
    inner: dict[str, int] = {}
    w: int


class UnspeakableError(Exception):
    """Its text raises, as SystemExit even."""

    def __str__(self) -> str:
        raise SystemExit("no text")


class Stop(StopIteration):
    """What no future takes, and without a text."""

    def __str__(self) -> str:
        raise ValueError("no text either")


@job()
async def fine(input: Input) -> None:
    """The neighbour."""
    CALLS.append(input.n)


@job()
async def narrow(input: Narrow) -> None:
    """Wants more than was stored."""
    CALLS.append(input.v)


@job()
def narrow_thread(input: Narrow) -> None:
    """The same in a thread."""
    CALLS.append(input.v)


class ByName(BaseModel):
    """What to raise."""

    kind: str


def made(kind: str) -> BaseException:
    """An error to raise."""
    big = "x" * 10_000_000
    errors: dict[str, Any] = {
        "exit": lambda: SystemExit(3),
        "interrupt": lambda: KeyboardInterrupt("no"),
        "base": lambda: BaseException("the base of all"),
        "generator exit": lambda: GeneratorExit("odd"),
        "cancelled": lambda: asyncio.CancelledError("by itself"),
        "stop": lambda: StopIteration("in a thread"),
        "stop async": lambda: StopAsyncIteration("anywhere"),
        "mute stop": lambda: Stop(),
        "unspeakable": lambda: UnspeakableError(),
        "odd text": lambda: ValueError("nul \x00 and \ud800 lone"),
        "huge": lambda: ValueError(big),
        "chain": lambda: ValueError("last in a long chain"),
        "group": lambda: ExceptionGroup("several", [ValueError("one"), SystemError("two")]),
        "recursion": lambda: RecursionError("deep"),
        "timeout": lambda: TimeoutError("not the worker's"),
    }
    error: BaseException = errors[kind]()
    if kind == "chain":
        inner = error
        for number in range(2_000):
            inner.__cause__ = ValueError(f"cause {number}")
            inner = inner.__cause__
    return error


ONCE: Any = {"retry": jobs.Retry(attempts=1)}


@job(**ONCE)
async def raises(input: ByName) -> None:
    """Raise it on the loop."""
    raise made(input.kind)


@job(**ONCE)
def raises_thread(input: ByName) -> None:
    """Raise it in a thread."""
    raise made(input.kind)


KINDS = {
    "exit": ("SystemExit", "3"),
    "interrupt": ("KeyboardInterrupt", "no"),
    "base": ("BaseException", "the base of all"),
    "generator exit": ("GeneratorExit", "odd"),
    "cancelled": ("RuntimeError", "the job function was cancelled from within"),
    "stop": ("RuntimeError", "StopIteration"),
    "stop async": ("StopAsyncIteration", "anywhere"),
    "mute stop": ("RuntimeError", "StopIteration"),
    "unspeakable": ("UnspeakableError", "<str() of the error raised SystemExit>"),
    "odd text": ("ValueError", "nul \ufffd and ? lone"),
    "huge": ("ValueError", "x" * 4_000 + " [9996000 characters cut]"),
    "chain": ("ValueError", "last in a long chain"),
    "group": ("ExceptionGroup", "several (2 sub-exceptions)"),
    "recursion": ("RecursionError", "deep"),
    "timeout": ("TimeoutError", "not the worker's"),
}


@pytest.fixture(autouse=True)
def _forget() -> None:
    CALLS.clear()


async def test_neighbours_of_every_kind_of_error(
    database: str, caplog: pytest.LogCaptureFixture
) -> None:
    table = Table(database)
    (first,) = table.enqueue(fine)
    bad = {
        (handle.name, kind): table.insert(handle.name, f'{{"kind": "{kind}"}}', max_attempts=1)
        for kind in KINDS
        for handle in (raises, raises_thread)
    }
    table.enqueue(fine, 10)
    async with serving(database, fine, raises, raises_thread, queues={"default": 50}) as worker:
        await until(lambda: not table.count_live(), "all to end")
        await until(lambda: worker.stats().in_flight == 0, "answers")
        assert worker.stats().state == "running"
    assert len(CALLS) == 11
    assert table.settled(first).state == "completed"
    for (name, kind), made_id in bad.items():
        row = table.settled(made_id)
        (attempt,) = table.attempts(made_id)
        kind_of_error, message = KINDS[kind]
        # Python itself turns this one into another where a coroutine raises it.
        if name == "raises" and kind in ("stop", "mute stop"):
            message = "coroutine raised StopIteration"
        assert (row.state, row.stop_reason) == ("dead", "exhausted"), (name, kind)
        assert attempt.error_type == kind_of_error, (name, kind)
        assert message in attempt.error_message, (name, kind)
        assert len(attempt.error_message) < 4_100
        assert len(attempt.traceback) < 32_100
        assert attempt.traceback.rstrip() != "", (name, kind)
        assert row.last_error.startswith(f"{kind_of_error}: ")
        assert len(row.last_error) < 1_100
    assert table.counters() == {"completed": 11, "dead": len(bad)}
    inside = [r for r in caplog.records if "failed inside the worker" in r.getMessage()]
    assert inside == [], "a function's error is not taken for one of the worker"


async def test_payloads_that_cannot_be_read_cost_one_job_each(database: str) -> None:
    table = Table(database)
    bad = {
        table.insert(name, payload): field
        for name in ("narrow", "narrow_thread")
        for payload, field in (
            ('{"v": 1}', "input.w: Field required"),
            ('{"v": 1, "w": "\\ud800"}', "input"),
            ('{"v": "\\u0000", "w": 1}', "input.v: "),
            ('{"v": 1, "w": 2, "inner": {"a b": "x"}}', "input.inner['a b']: "),
            ("[1]", "input: "),
            ("null", "input: "),
            ("[" * 3_000 + "]" * 3_000, "input: "),
            ('{"v": 1e999, "w": 1}', "input.v: "),
        )
    }
    table.enqueue(fine, 5)
    async with serving(database, fine, narrow, narrow_thread, queues={"default": 50}):
        await until(lambda: not table.count_live(), "all to end")
    assert sorted(CALLS) == [0, 1, 2, 3, 4], "no code of the others has run"
    for made_id, field in bad.items():
        row = table.settled(made_id)
        assert (row.state, row.attempt) == ("dead", 3), "retries as declared, then dead"
        attempts = table.attempts(made_id)
        assert [attempt.attempt for attempt in attempts] == [1, 2, 3]
        for attempt in attempts:
            assert attempt.error_type == "PayloadUnreadable"
            assert field in attempt.error_message
            assert "[JOB_PAYLOAD_UNREADABLE]" in attempt.error_message


@pytest.mark.parametrize("column", ["available_at", "created_at"])
@pytest.mark.parametrize("value", ["-infinity", "infinity", "4713-01-02 BC", "294276-01-01"])
def test_no_row_has_a_time_that_would_fail_the_claim_of_all(
    database: str, column: str, value: str
) -> None:
    """Other programs insert too, and "as early as possible" is a thought that occurs."""
    (odd,) = Table(database).enqueue(fine)
    change = sql.SQL("update jobs.job set {} = %s where id = %s").format(sql.Identifier(column))
    with (
        psycopg.connect(database, autocommit=True) as conn,
        pytest.raises(psycopg.errors.CheckViolation),
    ):
        conn.execute(change, [value, odd])


async def test_unknown_names_burn_no_attempt(database: str) -> None:
    """O-21: a worker that does not know the job leaves it to one that does."""
    table = Table(database)
    new = table.insert("not_yet_deployed", "{}")
    table.enqueue(fine, 5)
    stats = await make(database, fine).run_until_idle()
    assert (stats.completed, stats.released) == (5, 1)
    row = table.live(new)
    assert (row.state, row.attempt, row.claims) == ("ready", 0, 1)
    assert row.available_at - row.created_at > timedelta(seconds=25)
    assert table.attempts(new) == []
    assert table.counters() == {"completed": 5}


async def test_unknown_names_are_said_in_the_log(
    database: str, caplog: pytest.LogCaptureFixture
) -> None:
    Table(database).insert("not_yet_deployed", "{}")
    with caplog.at_level(logging.WARNING, "jobs.worker"):
        await make(database, fine).run_until_idle()
    (record,) = caplog.records
    assert "'not_yet_deployed'" in record.getMessage()
    assert "[JOB_NAME_UNKNOWN]" in record.getMessage()


async def test_a_rolling_deploy(database: str) -> None:
    """O-21: an old and a new worker side by side; the delay is what it costs."""
    table = Table(database)
    CALLS.clear()

    @job()
    async def renamed(input: Input) -> None:
        CALLS.append(input.n)

    ids = table.enqueue(renamed, 30)
    old = make(database, fine, name="old")
    object.__setattr__(old.config, "unknown_delay", timedelta(milliseconds=300))
    async with leaving_nothing(database), old:
        await until(lambda: old.stats().released > 30, "the old one to meet some twice")
        async with make(database, renamed, name="new"):
            await until(lambda: not table.count_live(), "all to end")
    assert sorted(CALLS) == list(range(30))
    assert all(table.settled(one).attempt == 1 for one in ids)
    assert table.counters() == {"completed": 30}


async def test_a_function_that_only_returns_a_coroutine_has_not_run(database: str) -> None:
    table = Table(database)

    async def later(_input: Input) -> None:
        CALLS.append(1)

    @job(name="wrapped", **ONCE)
    def wrapped(input: Input) -> object:
        return later(input)

    (one,) = table.enqueue(wrapped)
    await make(database, wrapped).run_until_idle()
    assert table.settled(one).state == "dead"
    assert "returned a coroutine" in table.settled(one).last_error
    assert CALLS == []


async def test_an_error_in_the_workers_own_code_costs_one_job(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The batch is started to its end whatever the start of one job raises."""
    table = Table(database)
    ids = table.enqueue(fine, 10)
    worker = make(database, fine, queues={"default": 20})
    async with worker:
        begin = worker._crew.begin

        def failing(held: Any) -> None:
            if held.id == ids[3]:
                raise MemoryError("no room for one more")
            begin(held)

        monkeypatch.setattr(worker._crew, "begin", failing)
        monkeypatch.setattr(sys.modules["jobs.worker.worker"].logger, "exception", lambda *_: None)
        await until(lambda: table.count_live() == 1, "the others to end")
        await until(lambda: worker.stats().released == 1, "the one to be handed back")
    row = table.live(ids[3])
    assert (row.state, row.attempt) == ("ready", 0)
    assert len(CALLS) == 9


async def test_one_that_blocks_the_loop_where_its_source_cannot_be_shown(
    database: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loader of a module may raise anything. Renewals come from the thread that looks."""

    def unreadable(*_: object) -> list[str]:
        raise LookupError("no such source")

    monkeypatch.setattr(loopwatch.traceback, "format_stack", unreadable)

    @job()
    async def blocks(_: Input) -> None:
        time.sleep(1.7)  # noqa: ASYNC251 (that is what it does)

    table = Table(database)
    table.enqueue(blocks)
    async with serving(database, blocks) as worker:
        await until(lambda: worker.stats().completed, "the end")
        assert len(logged(caplog, "jobs.worker.loop_blocked")) == 1
        assert worker._renewer._thread.is_alive()
