"""The life of a worker in an application: its passes, its start, its end."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import psycopg
import pytest

import jobs
from jobs.service.link import Link
from jobs.service.pace import Pace
from jobs.worker import claimer
from tests.runtime.working import (
    Input,
    Table,
    job,
    leaving_nothing,
    make,
    serving,
    sessions,
    until,
)

HOUR = timedelta(hours=1)
RARELY: dict[str, Any] = {"poll": HOUR, "idle_poll": HOUR}

go = asyncio.Event()


@job(queue="a")
async def held(input: Input) -> None:  # noqa: ARG001
    """Runs until it is let go."""
    await go.wait()


@job(queue="a")
async def quick(input: Input) -> None:
    """Ends at once."""


@job(retry=jobs.Retry(attempts=2, delay=timedelta(), max_delay=timedelta()))
async def fails(input: Input) -> None:  # noqa: ARG001
    raise RuntimeError("on purpose")


@pytest.fixture(autouse=True)
def _held(monkeypatch: pytest.MonkeyPatch) -> None:
    """An event of this test's own event loop."""
    monkeypatch.setitem(globals(), "go", asyncio.Event())


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The queues that each claim asks for."""
    asked: list[list[str]] = []
    real: Callable[..., Awaitable[Any]] = claimer.claim_jobs_async

    async def noting(conn: Any, *, queues: Any, **rest: Any) -> Any:
        asked.append(list(queues))
        return await real(conn, queues=queues, **rest)

    monkeypatch.setattr(claimer, "claim_jobs_async", noting)
    return asked


def test_waits_double_to_the_ceiling_and_begin_anew_after_work(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 100.0
    monkeypatch.setattr("jobs.service.pace.time.monotonic", lambda: now)
    pace = Pace(0.25, 2.0)
    assert [pace.nothing() for _ in range(5)] == [0.25, 0.5, 1.0, 2.0, 2.0]
    assert pace.filled() == 0.25
    assert [pace.nothing() for _ in range(3)] == [0.25, 0.5, 1.0]
    assert pace.found() == 0.002
    assert pace.nothing() == 0.002, "more tends to follow"
    now += 0.05
    assert pace.nothing() == 0.01
    now += 1
    assert [pace.nothing() for _ in range(2)] == [0.25, 0.5]
    assert [pace.failed() for _ in range(3)] == [1.0, 2.0, 2.0], "as if it had found nothing"


async def test_an_idle_pass_is_one_claim_over_all_queues_with_a_free_slot(
    database: str, passes: list[list[str]]
) -> None:
    table = Table(database)
    async with serving(database, held, queues={"c": 1, "a": 1, "b": 2}):
        await until(lambda: len(passes) >= 3, "a few passes")
        assert passes == [["a", "b", "c"]] * len(passes)
        table.enqueue(held)
        await until(lambda: passes[-1] == ["b", "c"], "the one slot of a queue to be taken")
        go.set()
        await until(lambda: passes[-1] == ["a", "b", "c"], "it to be free again")


async def test_a_freed_slot_starts_a_pass_at_once(database: str) -> None:
    """The next look by the clock would be an hour away."""
    table = Table(database)
    table.enqueue(quick, 5)
    async with serving(database, quick, queues={"a": 1}, **RARELY) as worker:
        await until(lambda: worker.stats().completed == 5, "one after the other")


async def test_the_loop_goes_on_while_jobs_run(database: str) -> None:
    table = Table(database)
    table.enqueue(held)
    async with serving(database, held, quick, queues={"a": 2}) as worker:
        await until(lambda: worker.stats().in_flight == 1, "the long one")
        table.enqueue(quick, 10)
        await until(lambda: worker.stats().completed == 10, "the short ones")
        assert worker.stats().in_flight == 1
        go.set()


async def test_what_is_due_can_be_run_by_hand(database: str) -> None:
    table = Table(database)
    table.enqueue(quick, 7)
    (later,) = table.enqueue(quick, delay=HOUR)
    table.enqueue(fails)
    async with leaving_nothing(database):
        worker = make(database, quick, fails, queues=["a", "default"])
        stats = await worker.run_until_idle()
    assert (stats.claimed, stats.completed, stats.retried, stats.ended) == (9, 7, 1, 1)
    assert (stats.state, stats.in_flight) == ("stopped", 0)
    assert table.live(later).claims == 0


async def test_by_hand_ends_when_the_last_job_has_ended_and_left_nothing_due(
    database: str, passes: list[list[str]]
) -> None:
    @job(queue="a")
    async def plants(_: Input) -> None:
        before = len(passes)
        await until(lambda: len(passes) > before + 2, "passes that find nothing")
        table.enqueue(quick)

    table = Table(database)
    table.enqueue(plants)
    stats = await make(database, plants, quick, queues=["a"]).run_until_idle()
    assert stats.completed == 2


async def test_a_start_that_fails_half_way_closes_what_it_has_opened(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, opened = Link.open, 0

    async def only_one(self: Link) -> None:
        nonlocal opened
        if opened:
            raise psycopg.OperationalError("too many clients already")
        await real(self)
        opened += 1

    monkeypatch.setattr(Link, "open", only_one)
    async with leaving_nothing(database):
        with pytest.raises(jobs.DatabaseUnreachable, match="too many clients"):
            await make(database, quick).start()
        assert opened == 1


async def test_a_start_that_fails_leaves_nothing_open(database: str) -> None:
    with psycopg.connect(database, autocommit=True) as conn:
        conn.execute("drop schema jobs cascade")
    async with leaving_nothing(database):
        with pytest.raises(jobs.SchemaOutdated):
            await make(database, quick).start()
        unreachable = make("postgresql:///nowhere?host=/nowhere", quick)
        with pytest.raises(jobs.DatabaseUnreachable):
            await unreachable.start()
        assert unreachable.stats().state == "idle"
        await unreachable.wait()


async def test_later_stops_join_the_first_and_a_second_start_is_refused(database: str) -> None:
    table = Table(database)
    table.enqueue(held)
    async with leaving_nothing(database):
        worker = make(database, held, queues=["a"])
        await worker.start()
        with pytest.raises(jobs.ConfigError, match="running"):
            await worker.start()
        await until(lambda: worker.stats().in_flight == 1, "the job")
        worker.stop()
        ends = [asyncio.create_task(worker.wait()) for _ in range(3)]
        await until(lambda: worker.stats().state == "draining", "the drain")
        with pytest.raises(jobs.ConfigError, match="draining"):
            await worker.start()
        assert not any(end.done() for end in ends)
        go.set()
        await asyncio.gather(*ends)
        assert worker.stats().completed == 1
        with pytest.raises(jobs.ConfigError, match="stopped"):
            await worker.start()
        worker.stop()
        await worker.wait()


async def test_connections_that_are_gone_do_not_wedge_the_end(database: str) -> None:
    Table(database).enqueue(held)
    async with leaving_nothing(database):
        worker = make(database, held, queues=["a"])
        await worker.start()
        await until(lambda: worker.stats().in_flight == 1, "the job")
        with psycopg.connect(database, autocommit=True) as conn:
            conn.execute("drop table jobs.job cascade")
            for session in sessions(database):
                conn.execute("select pg_terminate_backend(%s)", [session.pid])
        worker.stop()
        worker.stop()
        await worker.wait()
    assert worker.stats().state == "stopped"


async def test_signal_handlers_are_given_back(database: str) -> None:
    def mine(_number: int, _frame: Any) -> None:
        """Whatever the application does."""

    caught = (signal.SIGTERM, signal.SIGINT)
    before = {number: signal.signal(number, mine) for number in caught}
    try:
        async with leaving_nothing(database):
            worker = make(database, quick, queues=["a"])
            serves = asyncio.create_task(worker.run())
            await until(lambda: worker.stats().state == "running", "the start")
            assert [signal.getsignal(number) for number in caught] != [mine, mine]
            signal.raise_signal(signal.SIGTERM)
            await serves
        assert worker.stats().state == "stopped"
        assert [signal.getsignal(number) for number in caught] == [mine, mine]
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


async def test_an_error_is_a_warning_when_retried_and_an_error_when_it_ends_the_job(
    database: str, caplog: pytest.LogCaptureFixture
) -> None:
    (id,) = Table(database).enqueue(fails)
    with caplog.at_level(logging.INFO, "jobs.worker"):
        await make(database, fails).run_until_idle()
    events = [
        (record.levelname, record.event)
        for record in caplog.records
        if getattr(record, "job", None) == str(id) and hasattr(record, "event")
    ]
    assert events == [
        ("WARNING", "jobs.run.attempt_failed"),
        ("WARNING", "jobs.run.attempt_failed"),
        ("ERROR", "jobs.worker.ended"),
    ]


async def test_a_buried_job_is_an_error_in_the_log(
    database: str, caplog: pytest.LogCaptureFixture
) -> None:
    (id,) = Table(database).enqueue(quick)
    with psycopg.connect(database, autocommit=True) as conn:
        conn.execute(
            "update jobs.job set state = 'running', worker = 'gone', claims = 1, attempt = 3,"
            " lease_expires_at = now(), rescue_at = now()"
        )
    with caplog.at_level(logging.INFO, "jobs.worker"):
        stats = await make(database, quick, queues=["a"]).run_until_idle()
    assert (stats.buried, stats.claimed) == (1, 0)
    (record,) = [r for r in caplog.records if getattr(r, "event", None) == "jobs.worker.buried"]
    assert record.levelname == "ERROR"
    assert str(id) in record.getMessage()
    assert "attempt 3 of 3" in record.getMessage()
