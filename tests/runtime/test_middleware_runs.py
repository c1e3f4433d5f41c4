"""Middleware in a worker: around functions of every kind, and part of the attempt."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import threading
import time
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from types import ModuleType
from typing import Any

import psycopg
import pytest

import jobs
from jobs.run import Run
from tests.runtime import crunching
from tests.runtime.working import (
    QUICK,
    Input,
    Table,
    execute,
    job,
    leaving_nothing,
    logged,
    rows,
    until,
)

HOUR = timedelta(hours=1)
LATER = jobs.Retry(attempts=3, backoff="fixed", delay=HOUR, jitter=False)
SOON = timedelta(milliseconds=150)

session: contextvars.ContextVar[str] = contextvars.ContextVar("session", default="none")


def known(*handles: Any, **options: Any) -> jobs.Registry:
    """A registry of these, with middleware."""
    module = ModuleType("made_for_a_test")
    for handle in handles:
        setattr(module, handle.name, handle)
    return jobs.Registry.of(module, **options)


async def run(
    database: str, registry: jobs.Registry, handle: Any, **options: Any
) -> tuple[Any, Any]:
    """Run one job once; its row, live or finished, and the figures."""
    table = Table(database)
    with psycopg.connect(database, autocommit=True) as conn:
        one = handle.enqueue(conn, {"n": 0}).id
    async with (
        leaving_nothing(database),
        jobs.Worker(database, registry, **(QUICK | options)) as worker,
    ):
        await until(
            lambda: table.settled(one) or (worker.stats().retried + worker.stats().snoozed),
            "the attempt",
        )
    return table.settled(one) or table.live(one), worker.stats()


class Notes:
    """Middleware that notes what it sees."""

    def __init__(self) -> None:
        self.events: list[str] = []

    def one(self, name: str) -> Any:
        @contextlib.asynccontextmanager
        async def middleware(run: Run) -> AsyncIterator[None]:
            self.events.append(f"in {name}")
            token = session.set(f"{name} of {run.name} {run.attempt}")
            try:
                yield
            except BaseException as error:
                self.events.append(f"{name} saw {type(error).__name__}")
                raise
            finally:
                session.reset(token)
                self.events.append(f"out {name}")

        return middleware

    def job(self, kind: str, **options: Any) -> Any:
        """A job that notes the session it sees."""

        @job(**options)
        async def on_the_loop(input: Input, run: Run) -> None:
            await asyncio.sleep(0)
            self.events.append(f"body {session.get()} {input.n} {run.queue}")

        @job(**options)
        async def without_run(input: Input) -> None:
            self.events.append(f"body {session.get()} {input.n} default")

        @job(**options)
        def in_a_thread(input: Input, run: Run) -> None:
            assert threading.current_thread() is not threading.main_thread()
            self.events.append(f"body {session.get()} {input.n} {run.queue}")

        return {"loop": on_the_loop, "no run": without_run, "thread": in_a_thread}[kind]


KINDS = pytest.mark.parametrize("kind", ["loop", "no run", "thread"])
TIMED = pytest.mark.parametrize("most", [None, HOUR], ids=["untimed", "timed"])


@KINDS
@TIMED
async def test_worker_then_registry_in_the_order_of_their_lists(
    database: str, kind: str, most: timedelta | None
) -> None:
    notes = Notes()
    handle = notes.job(kind, timeout=most)
    registry = known(handle, middleware=[notes.one("c"), notes.one("d")])
    row, _ = await run(database, registry, handle, middleware=[notes.one("a"), notes.one("b")])
    assert row.state == "completed"
    assert notes.events == [
        *["in a", "in b", "in c", "in d"],
        f"body d of {handle.name} 1 0 default",
        *["out d", "out c", "out b", "out a"],
    ]
    assert session.get() == "none"


async def test_around_a_function_in_another_process(database: str) -> None:
    seen: list[object] = []

    @contextlib.asynccontextmanager
    async def middleware(run: Run) -> AsyncIterator[None]:
        seen.append(jobs.current_tenant())
        yield
        seen.append(f"out {run.attempt}")

    @contextlib.asynccontextmanager
    async def broken(_: Run) -> AsyncIterator[None]:
        yield
        raise jobs.Terminal("no commit")

    row, _ = await run(database, known(crunching.crunch, middleware=[middleware]), crunching.crunch)
    assert (row.state, seen) == ("completed", ["t0", "out 1"])
    row, _ = await run(database, known(crunching.crunch, middleware=[broken]), crunching.crunch)
    assert (row.state, row.stop_reason) == ("dead", "terminal")


@KINDS
async def test_what_it_raises_on_the_way_in_is_the_jobs_failure(database: str, kind: str) -> None:
    notes = Notes()

    @contextlib.asynccontextmanager
    async def broken(_: Run) -> AsyncIterator[None]:
        raise OSError("no session")
        yield

    handle = notes.job(kind, retry=LATER)
    row, stats = await run(database, known(handle, middleware=[notes.one("a"), broken]), handle)
    assert (row.state, row.attempt, row.last_error) == ("ready", 1, "OSError: no session")
    assert notes.events == ["in a", "a saw OSError", "out a"], "the function was not called"
    assert stats.retried == 1


@KINDS
async def test_so_is_what_it_raises_on_the_way_out(database: str, kind: str) -> None:
    notes = Notes()

    @contextlib.asynccontextmanager
    async def broken(_: Run) -> AsyncIterator[None]:
        yield
        raise jobs.Terminal("no commit")

    handle = notes.job(kind, retry=LATER)
    row, _ = await run(database, known(handle, middleware=[broken]), handle)
    assert (row.state, row.stop_reason) == ("dead", "terminal")
    assert len(notes.events) == 1


@pytest.mark.parametrize("thread", [False, True], ids=["loop", "thread"])
async def test_it_sees_the_error_of_the_function_and_may_replace_it(
    database: str, thread: bool
) -> None:
    notes = Notes()

    @contextlib.contextmanager
    def translates(_: Run) -> Iterator[None]:
        try:
            yield
        except KeyError as error:
            raise jobs.Terminal("as the middleware says") from error

    @job(retry=LATER)
    async def fails(_: Input) -> None:
        raise KeyError("x")

    @job(retry=LATER)
    def fails_in_thread(_: Input) -> None:
        raise KeyError("x")

    handle = fails_in_thread if thread else fails
    row, _ = await run(
        database, known(handle, middleware=[notes.one("a"), translates, notes.one("b")]), handle
    )
    assert row.last_error.startswith("Terminal: as the middleware says")
    assert notes.events == ["in a", "in b", "b saw KeyError", "out b", "a saw Terminal", "out a"]


@KINDS
async def test_it_may_snooze(database: str, kind: str) -> None:
    notes = Notes()

    @contextlib.asynccontextmanager
    async def closed(run: Run) -> AsyncIterator[None]:
        run.snooze(HOUR)
        yield

    handle = notes.job(kind)
    row, stats = await run(database, known(handle, middleware=[closed]), handle)
    assert (row.state, row.attempt, stats.snoozed) == ("ready", 0, 1)
    assert notes.events == []


async def test_one_that_swallows_an_error_completes_the_job(database: str) -> None:
    @job()
    async def fails(_: Input) -> None:
        raise KeyError("x")

    registry = known(fails, middleware=[lambda _: contextlib.suppress(KeyError)])
    row, _ = await run(database, registry, fails)
    assert row.state == "completed"


async def test_unknown_names_and_unreadable_payloads_enter_none(database: str) -> None:
    notes = Notes()
    handle = notes.job("loop", retry=jobs.Retry(attempts=1))
    table = Table(database)
    unreadable = table.insert(handle.name, '{"n": "x"}', max_attempts=1)
    unknown = table.insert("somebody_elses", "{}")
    registry = known(handle, middleware=[notes.one("a")])
    await jobs.Worker(database, registry, **QUICK).run_until_idle()
    assert table.settled(unreadable).state == "dead"
    assert table.live(unknown).attempt == 0
    assert notes.events == []


@pytest.mark.parametrize("where", ["in", "body", "out"])
@pytest.mark.parametrize("thread", [False, True], ids=["loop", "thread"])
async def test_the_deadline_covers_both(database: str, where: str, thread: bool) -> None:
    seen: list[str] = []

    @contextlib.asynccontextmanager
    async def slow(_: Run) -> AsyncIterator[None]:
        if where == "in":
            await asyncio.sleep(60)
        try:
            yield
        finally:
            seen.append("out")
        if where == "out":
            await asyncio.sleep(60)

    @job(timeout=SOON, retry=LATER)
    async def works(_: Input) -> None:
        seen.append("body")
        if where == "body":
            await asyncio.sleep(60)

    @job(timeout=SOON, retry=LATER)
    def works_in_thread(_: Input, run: Run) -> None:
        seen.append("body")
        if where == "body":
            while not run.cancelled:
                time.sleep(0.01)

    handle = works_in_thread if thread else works
    row, _ = await run(database, known(handle, middleware=[slow]), handle)
    assert row.last_error.startswith("JobTimeout: ")
    assert row.attempt == 1
    assert seen == ([] if where == "in" else ["body", "out"])


async def test_a_thread_in_it_is_timed_by_its_own_clock(database: str) -> None:
    """It was done in time, and a blocked event loop heard of it late."""
    notes = Notes()
    begun = threading.Event()

    @job(timeout=timedelta(milliseconds=400), retry=LATER)
    def short(_: Input) -> None:
        begun.set()
        time.sleep(0.05)

    table = Table(database)
    (one,) = table.enqueue(short)
    async with jobs.Worker(database, known(short, middleware=[notes.one("a")]), **QUICK):
        await until(begun.is_set, "the start")
        time.sleep(0.8)  # noqa: ASYNC251  (on purpose)
    assert table.settled(one).state == "completed"
    assert notes.events == ["in a", "out a"]


async def test_a_stop_goes_through_it(database: str) -> None:
    notes = Notes()

    @job()
    async def long(_: Input) -> None:
        notes.events.append("body")
        await asyncio.sleep(60)

    table = Table(database)
    (one,) = table.enqueue(long)
    registry = known(long, middleware=[notes.one("a")])
    options = QUICK | {"drain": timedelta(0)}
    async with jobs.Worker(database, registry, **options):
        await until(lambda: "body" in notes.events, "the start")
    assert (table.live(one).state, table.live(one).attempt) == ("ready", 0)
    assert notes.events == ["in a", "body", "a saw CancelledError", "out a"]


@pytest.mark.parametrize("ends", ["returns", "raises", "completes"])
async def test_a_session_for_each_run_as_the_page_shows_it(database: str, ends: str) -> None:
    """What the function writes commits when it returns, or with the end of the job."""
    execute(database, "create table public.note (attempt integer)")
    connection: contextvars.ContextVar[psycopg.AsyncConnection[Any]] = contextvars.ContextVar("c")

    @contextlib.asynccontextmanager
    async def in_session(_: Run) -> AsyncIterator[None]:
        async with (
            await psycopg.AsyncConnection.connect(database) as conn,
            conn.transaction(),
        ):
            token = connection.set(conn)
            try:
                yield
            finally:
                connection.reset(token)

    @job(retry=LATER)
    async def writes(_: Input, run: Run) -> None:
        await connection.get().execute("insert into public.note values (%s)", (run.attempt,))
        if ends == "raises":
            raise ValueError("no")
        if ends == "completes":
            await run.complete(connection.get())

    row, stats = await run(database, known(writes, middleware=[in_session]), writes)
    written = [note.attempt for note in rows(database, "select attempt from public.note")]
    if ends == "raises":
        assert (row.state, row.last_error, written) == ("ready", "ValueError: no", [])
    else:
        assert (row.state, written, stats.lost) == ("completed", [1], 0)


async def test_what_is_no_context_manager_fails_the_job_and_says_so(
    database: str, caplog: pytest.LogCaptureFixture
) -> None:
    def nothing(_: Run) -> Any:
        return None

    notes = Notes()
    handle = notes.job("loop", retry=LATER)
    row, _ = await run(database, known(handle, middleware=[nothing]), handle)
    assert "returned a NoneType and no context manager [JOB_CONFIG_INVALID]" in row.last_error
    assert len(logged(caplog, "jobs.run.attempt_failed")) == 1


@pytest.mark.parametrize("given", ["x", [5]], ids=repr)
def test_a_bad_list_is_refused_by_the_worker(given: Any) -> None:
    with pytest.raises(jobs.ConfigError, match="middleware"):
        jobs.Worker("dbname=x", known(), middleware=given)
