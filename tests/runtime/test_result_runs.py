"""What a function returns is on the row of the finished job, or the job ends with the reason."""

from __future__ import annotations

import asyncio
import logging
from datetime import datetime
from typing import Any

import psycopg
import pytest
from psycopg import AsyncConnection
from pydantic import BaseModel

import jobs
from jobs.inspect import get_job
from jobs.results import RESULT_LIMIT
from jobs.worker import settler
from tests.runtime.working import Input, Table, job, logged, make, serving, until


class Answer(BaseModel):
    doubled: int
    at: datetime | None = None


class Holder:
    def __repr__(self) -> str:
        return "<what the application holds>"


@pytest.fixture
def table(database: str) -> Table:
    return Table(database)


def stored(table: Table, id: Any) -> str | None:
    with psycopg.connect(table.database, autocommit=True) as conn:
        return get_job(conn, id).result


async def test_async_and_sync_functions_answer_through_the_handle(
    table: Table, aconn: AsyncConnection[Any]
) -> None:
    @job()
    async def doubled(input: Input) -> Answer:
        await asyncio.sleep(0)
        return Answer(doubled=2 * input.n)

    @job()
    def listed(input: Input) -> list[int]:
        return list(range(input.n))

    async with serving(table.database, doubled, listed):
        first = await doubled.enqueue(aconn, Input(n=21))
        second = await listed.enqueue(aconn, Input(n=3))
        assert await doubled.result(aconn, first.id) == Answer(doubled=42)
        assert await listed.result(aconn, second.id) == [0, 1, 2]


async def test_what_is_annotated_with_none_stores_nothing(table: Table) -> None:
    @job()
    async def quiet(input: Input) -> None:
        return input.n  # type: ignore[return-value]

    @job()
    def nothing(input: Input) -> int | None:
        return None if input.n == 0 else input.n

    ids = [*table.enqueue(quiet), *table.enqueue(nothing)]
    await make(table.database, quiet, nothing).run_until_idle()
    assert [stored(table, id) for id in ids] == [None, None]
    assert {table.settled(id).state for id in ids} == {"completed"}


@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_a_result_that_cannot_be_stored_ends_the_job_with_type_and_path(
    table: Table, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    """O-23: never a row that stays, never a run that is repeated for it."""
    runs = 0

    def work(input: Input) -> Any:
        nonlocal runs
        runs += 1
        return {"parts": [1, Holder()], "n": input.n}

    async def work_async(input: Input) -> Any:
        return work(input)

    handle = job()(work_async if kind == "async" else work)
    (id,) = table.enqueue(handle)
    stats = await make(table.database, handle).run_until_idle()
    row = table.settled(id)
    assert (row.state, row.stop_reason, row.attempt, runs) == ("dead", "terminal", 1, 1)
    assert row.last_error.startswith("ResultInvalid: result.parts[1]: is a Holder without")
    (attempt,) = table.attempts(id)
    assert attempt.error_type == "ResultInvalid"
    assert "what the application holds" not in attempt.error_message
    assert stats.ended == 1
    assert logged(caplog, "jobs.run.attempt_failed")


async def test_one_that_wants_no_dead_letter_fails(table: Table) -> None:
    @job(retry=jobs.Retry(attempts=5, dead_letter=False))
    async def work(input: Input) -> int:
        return str(input.n)  # type: ignore[return-value]

    (id,) = table.enqueue(work)
    await make(table.database, work).run_until_idle()
    assert (table.settled(id).state, table.settled(id).attempt) == ("failed", 1)


async def test_a_completion_in_the_own_transaction_may_bring_a_result(
    table: Table, aconn: AsyncConnection[Any]
) -> None:
    @job()
    async def work(input: Input, run: jobs.Run) -> int:
        async with await AsyncConnection.connect(table.database) as conn:
            await run.complete(conn, result=input.n + 5)
        return 99

    (id,) = table.enqueue(work)
    await make(table.database, work).run_until_idle()
    assert await work.result(aconn, id) == 5


async def test_one_that_cannot_be_stored_leaves_nothing_of_the_transaction(table: Table) -> None:
    @job()
    def work(input: Input, run: jobs.Run) -> int:
        with psycopg.connect(table.database) as conn:
            conn.execute("create table trace (n int)")
            run.complete(conn, result=str(input.n))
        return 1

    @job()
    def silent(input: Input, run: jobs.Run) -> None:  # noqa: ARG001
        with psycopg.connect(table.database) as conn:
            run.complete(conn, result=1)

    ids = [*table.enqueue(work), *table.enqueue(silent)]
    await make(table.database, work, silent).run_until_idle()
    rows = [table.settled(id) for id in ids]
    assert [row.state for row in rows] == ["dead", "dead"]
    assert "returned a str" in rows[0].last_error
    assert "the function is annotated with None" in rows[1].last_error
    with psycopg.connect(table.database) as conn:
        assert conn.execute("select to_regclass('trace')").fetchone() == (None,)


async def test_a_completion_without_a_result_says_so_to_who_waits(
    table: Table, aconn: AsyncConnection[Any]
) -> None:
    @job()
    async def work(input: Input, run: jobs.Run) -> int:
        async with await AsyncConnection.connect(table.database) as conn:
            await run.complete(conn)
        return input.n

    (id,) = table.enqueue(work)
    await make(table.database, work).run_until_idle()
    with pytest.raises(jobs.ResultUnreadable, match="nothing is stored"):
        await work.result(aconn, id)


async def test_large_results_settle_in_several_statements(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[int] = []
    send = settler.Settler._send

    async def counted(self: settler.Settler, batch: list[Any]) -> Any:
        sent.append(sum(len(held.outcome.result or "") for held in batch))
        return await send(self, batch)

    monkeypatch.setattr(settler.Settler, "_send", counted)
    monkeypatch.setattr(settler, "MAX_CHARACTERS", 3 * RESULT_LIMIT // 2)

    @job()
    async def large(input: Input) -> str:
        return "x" * (RESULT_LIMIT - 100 - input.n)

    ids = table.enqueue(large, 6)
    await make(table.database, large, queues={"default": 10}).run_until_idle()
    assert {table.settled(id).state for id in ids} == {"completed"}
    assert max(sent) < 2 * RESULT_LIMIT
    assert sum(sent) > 5 * RESULT_LIMIT


async def test_a_middleware_sees_a_result_that_cannot_be_stored(table: Table) -> None:
    seen: list[str] = []

    class Watch:
        def __init__(self, run: jobs.Run) -> None:
            self.run = run

        def __enter__(self) -> None:
            seen.append("in")

        def __exit__(self, kind: Any, *rest: object) -> None:
            seen.append(kind.__name__ if kind else "out")

    @job()
    async def work(input: Input) -> int:
        return str(input.n)  # type: ignore[return-value]

    @job()
    def threaded(input: Input) -> int:
        return str(input.n)  # type: ignore[return-value]

    ids = [*table.enqueue(work), *table.enqueue(threaded)]
    await make(table.database, work, threaded, middleware=[Watch]).run_until_idle()
    assert sorted(seen) == ["ResultInvalid", "ResultInvalid", "in", "in"]
    assert {table.settled(id).state for id in ids} == {"dead"}


async def test_a_hook_is_told_the_result(table: Table) -> None:
    told: list[Any] = []

    @job(on_settled=lambda settled: told.append((settled.outcome, settled.result)))
    async def work(input: Input) -> dict[str, int]:
        return {"n": input.n}

    async with serving(table.database, work):
        table.enqueue(work)
        await until(lambda: told, "the hook")
    assert told == [("completed", '{"n":0}')]


async def test_nothing_is_logged_of_a_result(
    table: Table, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)

    @job()
    async def work(input: Input) -> str:
        return f"a secret {input.n}"

    table.enqueue(work)
    await make(table.database, work).run_until_idle()
    assert "a secret" not in caplog.text
