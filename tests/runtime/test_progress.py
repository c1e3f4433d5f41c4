"""What `run.progress()` takes, and when the worker writes it."""

from __future__ import annotations

import asyncio
import itertools
import math
import threading
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

import jobs
from jobs.control import cancel
from jobs.errors import InvalidInput
from jobs.progress import MESSAGE_LIMIT, checked
from jobs.worker import reporter
from jobs_sql.progress import WriteProgressRow
from tests.runtime.working import Input, Table, job, logged, make, rows, serving, until


@pytest.fixture
def table(database: str) -> Table:
    return Table(database)


def live(table: Table) -> list[tuple[float, str | None]]:
    found = rows(
        table.database,
        "select progress, progress_message from jobs.job where progress is not null",
    )
    return [(round(row.progress, 4), row.progress_message) for row in found]


def ended(table: Table) -> list[tuple[float | None, str | None]]:
    found = rows(table.database, "select progress, progress_message from jobs.settled")
    return [tuple(row) for row in found]


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[list[tuple[float, str | None]]]:
    """The points of each statement that was sent."""
    sent: list[list[tuple[float, str | None]]] = []
    send = reporter.write_progress_async

    async def counted(conn: Any, **arguments: Any) -> Any:
        sent.append(list(zip(arguments["fractions"], arguments["messages"], strict=True)))
        return await send(conn, **arguments)

    monkeypatch.setattr(reporter, "write_progress_async", counted)
    return sent


class TestChecks:
    @pytest.mark.parametrize("fraction", [0, 1, 0.5, 1e-300, 1 - 1e-12, True + 0.0], ids=repr)
    def test_a_number_from_nothing_to_everything(self, fraction: float) -> None:
        point = checked(fraction, None)
        assert point.fraction == round(float(fraction), 6)

    @pytest.mark.parametrize(
        "fraction", [-0.1, 1.01, math.nan, math.inf, -math.inf, True, "0.5", None, 2**70], ids=repr
    )
    def test_nothing_else(self, fraction: Any) -> None:
        with pytest.raises(InvalidInput, match=r"fraction: must be (a number|from 0 to 1)"):
            checked(fraction, None)

    def test_a_message_is_a_text_that_is_cut_and_made_fit(self) -> None:
        assert checked(0, "x" * MESSAGE_LIMIT).message == "x" * MESSAGE_LIMIT
        cut = checked(0, "x" * (MESSAGE_LIMIT + 1)).message
        assert cut is not None
        assert (len(cut), cut[-2:]) == (MESSAGE_LIMIT, "x\u2026")
        assert checked(0, "a\x00b\ud800").message == "a\ufffdb?"
        with pytest.raises(InvalidInput, match="message: must be a str, and is a int"):
            checked(0, 5)


@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_it_is_seen_while_the_job_runs_and_on_the_finished_job(
    table: Table, kind: str
) -> None:
    gate = threading.Event()

    async def work_async(input: Input, run: jobs.Run) -> None:  # noqa: ARG001
        run.progress(0.25, "a quarter")
        await until(gate.is_set, "the gate")
        run.progress(1, "done")

    def work(input: Input, run: jobs.Run) -> None:  # noqa: ARG001
        run.progress(0.25, "a quarter")
        gate.wait()
        run.progress(1, "done")

    handle = job()(work_async if kind == "async" else work)
    async with serving(table.database, handle):
        table.enqueue(handle)
        await until(lambda: live(table) == [(0.25, "a quarter")], "the progress")
        gate.set()
        await until(lambda: ended(table), "the end")
    assert ended(table) == [(1.0, "done")]


async def test_many_calls_are_few_statements_and_none_is_sent_for_others(
    table: Table, written: list[list[tuple[float, str | None]]]
) -> None:
    @job()
    async def busy(input: Input, run: jobs.Run) -> None:  # noqa: ARG001
        for step in range(10_000):
            run.progress(step / 10_000, f"step {step}")
            if step % 100 == 0:
                await asyncio.sleep(0)

    @job()
    async def silent(input: Input) -> None:
        pass

    table.enqueue(busy, 5)
    table.enqueue(silent, 20)
    stats = await make(table.database, busy, silent).run_until_idle()
    assert stats.completed == 25
    assert sorted(ended(table), key=repr)[:5] == [(pytest.approx(0.9999), "step 9999")] * 5
    # One soon after the first call, one a second at most, and one before each batch of settles.
    assert len(written) <= 8
    assert all(points for points in written)


async def test_a_second_passes_between_two_statements(
    table: Table, written: list[list[tuple[float, str | None]]]
) -> None:
    times: list[float] = []
    loop = asyncio.get_running_loop()

    @job()
    async def work(input: Input, run: jobs.Run) -> None:  # noqa: ARG001
        while len(written) < 3:
            if len(written) > len(times):
                times.append(loop.time())
            run.progress(0.5, str(loop.time()))
            await asyncio.sleep(0.01)
        times.append(loop.time())

    table.enqueue(work)
    await make(table.database, work).run_until_idle()
    assert min(b - a for a, b in itertools.pairwise(times)) > 0.9


ENDS = ["completed", "dead", "failed", "terminal", "retry", "snooze", "cancel", "handed back"]


@pytest.mark.parametrize("end", ENDS)
async def test_the_last_word_is_written_however_the_run_ends(
    table: Table, end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reporter.Reporter, "_elapse", lambda _: None)  # only before the settle
    started = asyncio.Event()
    retry = jobs.Retry(
        attempts=2 if end == "retry" else 1,
        delay=timedelta(hours=1),
        dead_letter=end != "failed",
    )

    async def work(input: Input, run: jobs.Run) -> None:  # noqa: ARG001
        run.progress(0.1)
        run.progress(0.9, "at the very last")
        started.set()
        if end == "completed":
            return
        if end == "snooze":
            run.snooze(timedelta(hours=1))
        if end in ("cancel", "handed back"):
            await asyncio.sleep(60)
        raise jobs.Terminal(end) if end == "terminal" else ValueError(end)

    handle = job(retry=retry)(work)
    drain = timedelta(0) if end == "handed back" else timedelta(seconds=5)
    async with serving(table.database, handle, drain=drain) as worker:
        (id,) = table.enqueue(handle)
        await started.wait()
        if end == "cancel":
            async with await psycopg.AsyncConnection.connect(table.database) as conn:
                await cancel(conn, id)
        if end == "handed back":
            worker.stop()
            await worker.wait()
        if end in ("retry", "snooze", "handed back"):
            await until(lambda: table.live(id).state == "ready", "it to be ready again")
            assert live(table) == [(pytest.approx(0.9, abs=1e-6), "at the very last")]
        else:
            await until(lambda: table.settled(id), "the end")
            assert ended(table) == [(pytest.approx(0.9), "at the very last")]


async def test_it_goes_along_with_a_completion_in_the_own_transaction(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reporter.Reporter, "_elapse", lambda _: None)  # nobody else writes it

    @job()
    def work(input: Input, run: jobs.Run) -> None:  # noqa: ARG001
        run.progress(0.95, "committing")
        with psycopg.connect(table.database) as conn:
            run.complete(conn)

    @job()
    async def work_async(input: Input, run: jobs.Run) -> None:  # noqa: ARG001
        run.progress(0.95, "committing")
        async with await psycopg.AsyncConnection.connect(table.database) as conn:
            await run.complete(conn)

    table.enqueue(work)
    table.enqueue(work_async)
    await make(table.database, work, work_async).run_until_idle()
    assert ended(table) == [(pytest.approx(0.95), "committing")] * 2


async def test_the_settle_never_overtakes_the_last_word(table: Table) -> None:
    """Not even where another session holds the row just then: both are sent again."""
    started, go = asyncio.Event(), asyncio.Event()

    @job()
    async def work(input: Input, run: jobs.Run) -> None:  # noqa: ARG001
        started.set()
        await go.wait()
        run.progress(0.9, "last")

    (id,) = table.enqueue(work)
    async with (
        serving(table.database, work, lease=timedelta(seconds=60)) as worker,
        await psycopg.AsyncConnection.connect(table.database) as keeper,
    ):
        await started.wait()
        await keeper.execute("select id from jobs.job where id = %s for update", (id,))
        go.set()
        await until(lambda: worker._settler._parked, "a settle that is sent again")
        assert table.settled(id) is None
        await keeper.rollback()
        await until(lambda: ended(table), "the end")
    assert ended(table) == [(pytest.approx(0.9), "last")]


async def test_the_settle_waits_where_the_last_word_met_a_lock(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A renewal held the row for that one moment, and would not hold the settle up."""
    send = reporter.write_progress_async
    asked: list[int] = []

    async def busy_once(conn: Any, **arguments: Any) -> Any:
        asked.append(len(arguments["ids"]))
        if len(asked) > 1:
            return await send(conn, **arguments)
        pairs = zip(arguments["ids"], arguments["claims"], strict=True)
        return [WriteProgressRow(id, claims, "busy") for id, claims in pairs]

    monkeypatch.setattr(reporter, "write_progress_async", busy_once)
    monkeypatch.setattr(reporter.Reporter, "_elapse", lambda _: None)  # only before the settle

    @job()
    async def work(input: Input, run: jobs.Run) -> None:  # noqa: ARG001
        run.progress(0.9, "last")

    table.enqueue(work)
    await make(table.database, work).run_until_idle()
    assert asked == [1, 1]
    assert ended(table) == [(pytest.approx(0.9), "last")]


async def test_a_refused_progress_costs_nothing_but_itself(
    table: Table, caplog: pytest.LogCaptureFixture
) -> None:
    with psycopg.connect(table.database, autocommit=True) as conn:
        conn.execute(
            "create function public.no() returns trigger language plpgsql as"
            " $$ begin raise exception 'no progress'; end $$"
        )
        conn.execute(
            "create trigger no before update of progress on jobs.job for each row"
            " when (new.progress is not null) execute function public.no()"
        )

    @job()
    async def work(input: Input, run: jobs.Run) -> None:  # noqa: ARG001
        run.progress(0.5)

    (id,) = table.enqueue(work)
    await make(table.database, work).run_until_idle()
    assert table.settled(id).state == "completed"
    assert logged(caplog, "jobs.worker.progress_refused")


async def test_nor_does_one_that_cannot_be_sent_at_all(
    table: Table, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever that raises: outcomes are settled by the same loop."""
    sent = asyncio.Event()

    async def odd(*_: object, **__: object) -> None:
        sent.set()
        raise LookupError("an error of our own")

    monkeypatch.setattr(reporter, "write_progress_async", odd)

    @job()
    async def work(input: Input, run: jobs.Run) -> None:
        run.progress(0.5)
        await sent.wait()
        run.progress(input.n)

    (id,) = table.enqueue(work)
    async with serving(table.database, work):
        await until(lambda: table.settled(id), "the end")
    assert table.settled(id).state == "completed"
    assert len(logged(caplog, "jobs.worker.progress_refused")) == 2


async def test_the_deadline_is_there_for_the_body(table: Table) -> None:
    seen: list[Any] = []

    def look(run: jobs.Run) -> None:
        seen.append((run.deadline, run.remaining))

    @job(timeout=timedelta(seconds=60))
    async def limited(input: Input, run: jobs.Run) -> None:  # noqa: ARG001
        look(run)
        await asyncio.sleep(0.05)
        look(run)

    @job(timeout=timedelta(seconds=60))
    def threaded(input: Input, run: jobs.Run) -> None:  # noqa: ARG001
        look(run)

    @job()
    async def endless(input: Input, run: jobs.Run) -> None:  # noqa: ARG001
        look(run)

    began = datetime.now(UTC)
    for handle in (limited, threaded, endless):
        table.enqueue(handle)
        await make(table.database, handle).run_until_idle()
    first, second, third, fourth = seen
    assert first[0] == second[0]
    assert 0.04 < first[1] - second[1] < 30
    for deadline, remaining in (first, third):
        assert began + timedelta(seconds=59) < deadline < datetime.now(UTC) + timedelta(seconds=60)
        assert 30 < remaining <= 60
    assert fourth == (None, None)


async def test_time_that_is_up_is_none_left(table: Table) -> None:
    seen: list[float | None] = []

    @job(timeout=timedelta(seconds=0.1), retry=jobs.Retry(attempts=1))
    def slow(input: Input, run: jobs.Run) -> None:  # noqa: ARG001
        run.wait_cancelled(15)
        seen.append(run.remaining)
        time.sleep(0.1)  # its own time is counted from a moment later

    (id,) = table.enqueue(slow)
    await make(table.database, slow).run_until_idle()
    assert seen == [0.0]
    assert table.settled(id).last_error.startswith("JobTimeout")
