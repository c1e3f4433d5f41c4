"""What becomes of a job by what its function raised: on the row, in the log, in the figures."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from datetime import timedelta
from typing import Any

import httpx
import pytest

import jobs
import jobs.adapters.httpx
from jobs.classify import Snoozed
from tests.runtime.working import (
    QUICK,
    Input,
    Table,
    execute,
    job,
    logged,
    make,
    registry,
    serving,
    until,
)

HOUR = timedelta(hours=1)
LONG = jobs.Retry(attempts=3, backoff="fixed", delay=HOUR, max_delay=4 * HOUR, jitter=False)


class GoneError(jobs.Terminal):
    """An error of an application."""


def raising(error: BaseException, kind: str = "async", **options: Any) -> Any:
    """A job that raises this, on the loop or in a thread."""
    if kind == "async":

        @job(**options)
        async def raises(_: Input) -> None:
            raise error

        return raises

    @job(**options)
    def raises_in_thread(_: Input) -> None:
        raise error

    return raises_in_thread


def delay_of(row: Any) -> float:
    """Seconds from the creation of a job to its next due time: an hour or more in these tests."""
    return float((row.available_at - row.created_at).total_seconds())


@pytest.mark.parametrize("kind", ["async", "thread"])
@pytest.mark.parametrize("dead_letter", [True, False], ids=["dead", "failed"])
async def test_a_terminal_error_ends_the_job_at_once(
    database: str, kind: str, dead_letter: bool, caplog: pytest.LogCaptureFixture
) -> None:
    retry = jobs.Retry(attempts=5, dead_letter=dead_letter)
    handle = raising(GoneError("the account is closed"), kind, retry=retry)
    table = Table(database)
    (one,) = table.enqueue(handle)
    with caplog.at_level(logging.WARNING, "jobs.worker"):
        stats = await make(database, handle).run_until_idle()
    state = "dead" if dead_letter else "failed"
    row = table.settled(one)
    assert (row.state, row.stop_reason, row.attempt) == (state, "terminal", 1)
    assert row.last_error.startswith("GoneError: the account is closed [JOB_TERMINAL]")
    assert row.last_error.endswith("(terminal: raised as GoneError)")
    (attempt,) = table.attempts(one)
    assert f"GoneError: {attempt.error_message}" == row.last_error
    assert "in raises" in attempt.traceback
    assert (stats.ended, stats.terminal, stats.retried) == (1, 1, 0)
    assert table.counters() == {state: 1}
    (warned,) = logged(caplog, "jobs.run.attempt_failed")
    assert "failed in attempt 1 of 5, no further attempt can help: GoneError: the acc" in warned
    (record,) = [r for r in caplog.records if getattr(r, "event", "") == "jobs.worker.ended"]
    assert record.levelno == logging.ERROR
    assert record.stop_reason == "terminal"  # type: ignore[attr-defined]
    assert f"ended as {state} (terminal) in attempt 1 of 5" in record.getMessage()


async def test_an_exhausted_one_says_so_everywhere(
    database: str, caplog: pytest.LogCaptureFixture
) -> None:
    handle = raising(ValueError("no"), retry=jobs.Retry(attempts=2, delay=timedelta()))
    table = Table(database)
    (one,) = table.enqueue(handle)
    with caplog.at_level(logging.WARNING, "jobs.worker"):
        stats = await make(database, handle).run_until_idle()
    row = table.settled(one)
    assert (row.state, row.stop_reason, row.last_error) == ("dead", "exhausted", "ValueError: no")
    assert (stats.ended, stats.terminal, stats.retried) == (1, 0, 1)
    first, last = logged(caplog, "jobs.run.attempt_failed")
    assert "failed in attempt 1 of 2, the next attempt is due in 0:00:00: ValueError" in first
    assert "failed in attempt 2 of 2, that was the last attempt: ValueError" in last
    (ended,) = logged(caplog, "jobs.worker.ended")
    assert "ended as dead (exhausted) in attempt 2 of 2" in ended


@pytest.mark.parametrize(
    ("asked", "hours"),
    [(timedelta(hours=2), 2), (timedelta(0), 0), (timedelta(days=9), 4)],
    ids=["named", "now", "clamped"],
)
async def test_a_delay_that_the_error_names_takes_the_place_of_the_curve(
    database: str, asked: timedelta, hours: int
) -> None:
    handle = raising(jobs.RetryAfter(asked, "throttled"), retry=LONG)
    table = Table(database)
    (one,) = table.enqueue(handle)
    async with serving(database, handle) as worker:
        await until(lambda: worker.stats().retried, "the first attempt")
    if hours:
        row = table.live(one)
        assert 3600 * hours <= delay_of(row) < 3600 * hours + 60
        assert (row.attempt, worker.stats().retried) == (1, 1), "it counts as an attempt"
        assert row.last_error.startswith("RetryAfter: throttled [JOB_RETRY_AFTER]")
    else:
        assert len(table.attempts(one)) >= 1


async def test_the_attempt_limit_outranks_it(database: str) -> None:
    handle = raising(jobs.RetryAfter(HOUR), retry=jobs.Retry(attempts=1))
    table = Table(database)
    (one,) = table.enqueue(handle)
    await make(database, handle).run_until_idle()
    row = table.settled(one)
    assert (row.state, row.stop_reason) == ("dead", "exhausted")


async def test_rules_of_the_job_and_of_the_registry(database: str) -> None:
    @job(errors={KeyError: "retry"}, retry=LONG)
    async def own(input: Input) -> None:
        raise KeyError(input.n)

    @job(retry=LONG)
    def common(input: Input) -> None:
        raise KeyError(input.n)

    known = jobs.Registry.of(
        *[module_of(own, common)], errors={LookupError: "terminal", jobs.PayloadUnreadable: HOUR}
    )
    table = Table(database)
    (mine,), (theirs,) = table.enqueue(own), table.enqueue(common)
    broken = table.insert("common", '{"n": "x"}')
    async with jobs.Worker(database, known, **QUICK) as worker:
        await until(lambda: worker.stats().retried + worker.stats().ended == 3, "all of them")
    assert delay_of(table.live(mine)) >= 3600
    row = table.settled(theirs)
    assert (row.state, row.stop_reason) == ("dead", "terminal")
    assert row.last_error == "KeyError: 0 (terminal: the rule of the registry for LookupError)"
    assert delay_of(table.live(broken)) >= 3600, "the library's own errors can have rules too"


def module_of(*handles: Any) -> Any:
    """A module that exports them."""
    from types import ModuleType

    made = ModuleType("made_for_a_test")
    for handle in handles:
        setattr(made, handle.name, handle)
    return made


async def test_a_group_of_a_task_group_is_read(database: str) -> None:
    async def fails(error: Exception) -> None:
        raise error

    @job(retry=LONG)
    async def parent(_: Input) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(fails(ValueError("one")))
            group.create_task(fails(jobs.Terminal("two")))

    table = Table(database)
    (one,) = table.enqueue(parent)
    await make(database, parent).run_until_idle()
    assert table.settled(one).stop_reason == "terminal"


@pytest.mark.parametrize("what", [TypeError, SystemExit, KeyboardInterrupt])
async def test_a_rule_that_fails_costs_nothing_but_a_line(
    database: str, caplog: pytest.LogCaptureFixture, what: type[BaseException]
) -> None:
    def broken(error: ValueError) -> Any:
        raise what(error)

    handle = raising(ValueError("no"), errors={ValueError: broken}, retry=LONG)
    table = Table(database)
    (one,) = table.enqueue(handle)
    async with serving(database, handle) as worker:
        await until(lambda: worker.stats().retried, "the attempt")
    assert delay_of(table.live(one)) >= 3600
    assert len(logged(caplog, "jobs.retry.rule_failed")) == 1


async def test_what_a_server_says_is_obeyed(database: str) -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        return httpx.Response(429, headers={"Retry-After": "7200"}, request=request)

    @job(retry=LONG)
    async def calls(_: Input) -> None:
        async with httpx.AsyncClient(transport=httpx.MockTransport(answer)) as client:
            (await client.get("http://a.test/")).raise_for_status()

    known = jobs.Registry.of(module_of(calls), errors=jobs.adapters.httpx.rules())
    table = Table(database)
    (one,) = table.enqueue(calls)
    async with jobs.Worker(database, known, **QUICK) as worker:
        await until(lambda: worker.stats().retried, "the attempt")
    assert 7200 <= delay_of(table.live(one)) < 7260


async def test_a_traceback_and_a_message_are_bounded_and_the_reason_is_kept(database: str) -> None:
    handle = raising(ValueError("x" * 100_000), errors={ValueError: "terminal"})
    table = Table(database)
    (one,) = table.enqueue(handle)
    await make(database, handle).run_until_idle()
    (attempt,) = table.attempts(one)
    assert 4_000 < len(attempt.error_message) < 4_600
    assert attempt.error_message.endswith("(terminal: the rule of the job for ValueError)")
    assert len(attempt.traceback) < 33_000


# --- snooze


@pytest.mark.parametrize("kind", ["async", "thread", "group"])
async def test_a_snooze_is_no_attempt_and_no_error(
    database: str, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def child(run: jobs.Run) -> None:
        run.snooze(2 * HOUR)

    @job()
    async def later(_: Input, run: jobs.Run) -> None:
        try:
            if kind == "group":
                async with asyncio.TaskGroup() as group:
                    group.create_task(child(run))
            run.snooze(2 * HOUR)
        except Exception:
            raise AssertionError("no function that looks for errors gets in its way") from None

    @job()
    def later_in_thread(_: Input, run: jobs.Run) -> None:
        run.snooze(2 * HOUR)

    handle = later_in_thread if kind == "thread" else later
    table = Table(database)
    (one,) = table.enqueue(handle)
    with caplog.at_level(logging.INFO, "jobs.worker"):
        stats = await make(database, handle).run_until_idle()
    row = table.live(one)
    assert (row.state, row.attempt, row.claims, row.last_error) == ("ready", 0, 1, None)
    assert 7200 <= delay_of(row) < 7260
    assert (table.attempts(one), table.counters()) == ([], {})
    assert (stats.snoozed, stats.retried, stats.released, stats.ended) == (1, 0, 0, 0)
    assert f"job {one} ({handle.name}) snoozes for 2:00:00" in logged(caplog, "jobs.run.snoozed")
    assert [r for r in caplog.records if r.levelno >= logging.WARNING] == []


async def test_o19_after_snoozes_the_first_failure_waits_the_first_delay(database: str) -> None:
    runs: list[int] = []

    @job(retry=jobs.Retry(delay=HOUR, max_delay=9 * HOUR, jitter=False))
    async def later(_: Input, run: jobs.Run) -> None:
        runs.append(run.attempt)
        if len(runs) <= 50:
            run.snooze(timedelta(0))
        raise ValueError("the first one")

    table = Table(database)
    (one,) = table.enqueue(later)
    async with serving(database, later) as worker:
        await until(lambda: worker.stats().retried, "the failure")
    assert (runs, worker.stats().snoozed) == ([1] * 51, 50)
    row = table.live(one)
    assert (row.attempt, row.claims) == (1, 51)
    assert 3600 <= delay_of(row) < 3660


async def test_one_in_the_last_attempt_is_not_the_end(database: str) -> None:
    runs: list[bool] = []

    @job(retry=jobs.Retry(attempts=1))
    async def later(_: Input, run: jobs.Run) -> None:
        runs.append(run.final)
        if len(runs) == 1:
            run.snooze(timedelta(0))

    table = Table(database)
    (one,) = table.enqueue(later)
    async with serving(database, later):
        await until(lambda: table.settled(one), "the end")
    assert (runs, table.settled(one).state) == ([True, True], "completed")


async def test_a_snooze_that_is_no_time_is_a_failed_attempt(database: str) -> None:
    @job(retry=LONG)
    async def later(_: Input, run: jobs.Run) -> None:
        run.snooze(300)  # type: ignore[arg-type]

    table = Table(database)
    (one,) = table.enqueue(later)
    async with serving(database, later) as worker:
        await until(lambda: worker.stats().retried, "the failure")
    assert "[JOB_DELAY_INVALID]" in table.live(one).last_error


async def test_a_cancel_wins_over_a_snooze(database: str) -> None:
    @job()
    async def later(_: Input, run: jobs.Run) -> None:
        execute(database, "update jobs.job set cancel_requested_at = now()")
        run.snooze(HOUR)

    table = Table(database)
    (one,) = table.enqueue(later)
    await make(database, later).run_until_idle()
    assert table.settled(one).state == "cancelled"


async def test_a_drain_keeps_the_delay_of_a_snooze(database: str) -> None:
    @job()
    def later(_: Input, run: jobs.Run) -> None:
        while not run.cancelled:
            time.sleep(0.01)
        run.snooze(2 * HOUR)

    table = Table(database)
    (one,) = table.enqueue(later)
    async with serving(database, later, drain=timedelta(0)) as worker:
        await until(lambda: worker.stats().claimed, "the start")
    row = table.live(one)
    assert (row.state, row.attempt) == ("ready", 0)
    assert delay_of(row) >= 7200


@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_the_deadline_wins_over_a_snooze(database: str, kind: str) -> None:
    soon = timedelta(milliseconds=100)

    @job(timeout=soon, retry=LONG)
    async def late(_: Input, run: jobs.Run) -> None:
        try:
            await asyncio.sleep(60)
        finally:
            run.snooze(timedelta(0))

    @job(timeout=soon, retry=LONG)
    def late_in_thread(_: Input, run: jobs.Run) -> None:
        threading.Event().wait(0.3)
        run.snooze(timedelta(0))

    handle = late if kind == "async" else late_in_thread
    table = Table(database)
    (one,) = table.enqueue(handle)
    async with serving(database, handle) as worker:
        await until(lambda: worker.stats().retried, "the failure")
    assert table.live(one).last_error.startswith("JobTimeout: ")


async def test_a_completion_that_was_committed_wins_over_a_snooze(database: str) -> None:
    @job()
    def both(_: Input, run: jobs.Run) -> None:
        import psycopg

        with psycopg.connect(database) as conn:
            run.complete(conn)
        run.snooze(HOUR)

    table = Table(database)
    (one,) = table.enqueue(both)
    stats = await make(database, both).run_until_idle()
    assert table.settled(one).state == "completed"
    assert (stats.completed, stats.snoozed) == (1, 0)


async def test_holding_a_snooze_up_is_returning(database: str) -> None:
    @job()
    async def holds(_: Input, run: jobs.Run) -> None:
        with contextlib.suppress(Snoozed):
            run.snooze(HOUR)

    table = Table(database)
    (one,) = table.enqueue(holds)
    await make(database, holds).run_until_idle()
    assert table.settled(one).state == "completed"


# --- deadlines


async def test_a_deadline_is_on_the_curve_unless_a_rule_says_otherwise(database: str) -> None:
    options: dict[str, Any] = {"timeout": timedelta(milliseconds=50), "retry": LONG}

    @job(**options)
    async def curve(_: Input) -> None:
        await asyncio.sleep(60)

    @job(errors={jobs.JobTimeout: "terminal"}, **options)
    async def ends(_: Input) -> None:
        await asyncio.sleep(60)

    table = Table(database)
    (tried,), (ended,) = table.enqueue(curve), table.enqueue(ends)
    async with jobs.Worker(database, registry(curve, ends), **QUICK) as worker:
        await until(lambda: worker.stats().retried + worker.stats().ended == 2, "both")
    assert delay_of(table.live(tried)) >= 3600
    assert table.settled(ended).stop_reason == "terminal"
