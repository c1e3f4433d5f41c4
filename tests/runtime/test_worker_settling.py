"""Settles: in batches, each answered once, whatever one of them or its row does."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import psycopg
import pytest

import jobs
from jobs.worker.failing import storable
from jobs.worker.settler import MAX_BATCH
from tests.runtime.working import Input, Table, execute, job, make, serving, until

REFUSING = """
create function public.refuse() returns trigger language plpgsql as $$
begin
    if new.last_error like '%%poison%%' or new.input->>'n' = '7' then
        raise exception 'not this one';
    end if;
    return new;
end $$;
create trigger refuse before insert or update of state on {}
    for each row when (new.state <> 'running') execute function public.refuse();
"""


@job()
async def short(input: Input) -> None:
    """Does nothing."""
    await asyncio.sleep(0)
    del input


async def test_more_than_a_batch(database: str) -> None:
    count = 2 * MAX_BATCH + 100
    table = Table(database)
    table.enqueue(short, count)
    stats = await make(database, short, queues={"default": count}).run_until_idle()
    assert stats.completed == count
    assert table.counters() == {"completed": count}


async def test_an_outcome_that_is_refused_costs_its_job_only(database: str) -> None:
    """By a trigger of somebody's; the lease of that job ends, and then a claim meets it."""
    table = Table(database)
    execute(database, REFUSING.format("jobs.settled"))
    ids = table.enqueue(short, 20)
    async with serving(database, short, queues={"default": 20}, lease=timedelta(hours=1)) as worker:
        await until(lambda: table.count_live() == 1, "the others to end")
        await until(lambda: not worker.stats().in_flight, "the answers")
        assert worker.stats().completed == 19
        assert worker.stats().lost == 1
        again = table.enqueue(short, 3)
        await until(lambda: table.count_live() == 1, "the worker to go on")
    row = table.live(ids[7])
    assert (row.state, row.attempt) == ("running", 1)
    assert all(table.settled(one).state == "completed" for one in [*ids[:7], *ids[8:], *again])


async def test_an_error_text_that_is_refused_is_replaced(database: str) -> None:
    """The job is retried all the same, with a word about why there is no more to say."""

    @job()
    async def poisoned(_: Input, run: jobs.Run) -> None:
        if run.attempt == 1:
            raise ValueError("poison")

    table = Table(database)
    execute(database, REFUSING.format("jobs.job"))
    (one,) = table.enqueue(poisoned)
    async with serving(database, poisoned) as worker:
        await until(lambda: worker.stats().retried, "the retry")
    row = table.live(one)
    assert (row.state, row.attempt, row.last_error) == ("ready", 1, "SettleRefused: SQLSTATE P0001")
    (attempt,) = table.attempts(one)
    assert (attempt.error_type, attempt.error_message) == ("SettleRefused", "SQLSTATE P0001")


async def test_a_row_that_somebody_holds_is_waited_for_while_others_go_on(database: str) -> None:
    table = Table(database)
    gate = asyncio.Event()

    @job()
    async def waits(_: Input) -> None:
        await gate.wait()

    ids = table.enqueue(waits, 10)
    async with serving(database, waits, queues={"default": 10}, lease=timedelta(hours=1)) as worker:
        await until(lambda: worker.stats().claimed == 10, "the starts")
        with psycopg.connect(database) as conn:
            conn.execute("select id from jobs.job where id = %s for update", [ids[4]])
            gate.set()
            await until(lambda: worker.stats().completed == 9, "the others")
            await asyncio.sleep(0.2)
            assert worker.stats().in_flight == 1
            assert worker._settler.backlog == 1
        await until(lambda: worker.stats().completed == 10, "the one")
        assert worker.stats().lost == 0
    assert table.counters() == {"completed": 10}


async def test_each_is_answered_once_whatever_the_worker_makes_of_an_answer(
    database: str, caplog: pytest.LogCaptureFixture
) -> None:
    @job(retry=jobs.Retry(attempts=1))
    async def fails(_: Input) -> None:
        raise ValueError("on purpose")

    answered: list[int] = []
    table = Table(database)
    table.enqueue(fails, 30)
    async with serving(database, fails, queues={"default": 30}) as worker:
        note = worker._settler._answered

        def failing(held: Any, verdict: str, state: str | None) -> None:
            answered.append(held.id)
            note(held, verdict, state)
            if len(answered) == 3:
                raise MemoryError("of the worker's own")

        worker._settler._answered = failing
        await until(lambda: worker.stats().ended == 30, "the answers")
    assert len(answered) == len(set(answered)) == 30
    assert "taking note of the end of job" in caplog.text


async def test_an_error_of_the_workers_own_loses_no_outcome(database: str) -> None:
    """Not even one that no driver raises."""
    failures = [ZeroDivisionError("odd"), psycopg.InterfaceError("odd"), KeyError("odd")]
    table = Table(database)
    async with serving(database, short) as worker:
        settle = worker._settler._settle

        async def failing(batch: Any) -> Any:
            answer = await settle(batch)
            if failures:
                raise failures.pop()
            return answer

        worker._settler._settle = failing  # type: ignore[method-assign]
        for number in range(1, 6):
            table.enqueue(short, 4)
            await until(lambda n=number: worker.stats().completed == 4 * n, "the answers")
        assert worker._settler.backlog == 0
    assert failures == []
    assert table.counters() == {"completed": 20}


async def test_what_is_submitted_twice_is_answered_once(database: str) -> None:
    table = Table(database)
    table.enqueue(short, 10)
    async with serving(database, short, queues={"default": 10}) as worker:
        submit = worker._settler.submit

        def twice(held: Any) -> None:
            submit(held)
            submit(held)

        worker._settler.submit = twice  # type: ignore[method-assign]
        await until(lambda: not table.count_live(), "the end")
        await until(lambda: not worker._settler.backlog, "the answers")
    assert worker.stats().completed == 10
    assert table.counters() == {"completed": 10}


@pytest.mark.parametrize(
    ("text", "limit", "kept"),
    [
        ("short", 10, "short"),
        ("nul \x00", 10, "nul \ufffd"),
        ("lone \ud800\udc00", 10, "lone ??"),
        ("0123456789abc", 10, "0123456789 [3 characters cut]"),
        ("é" * 12, 10, "é" * 10 + " [2 characters cut]"),
        ("", 10, ""),
    ],
)
def test_texts_are_made_storable(text: str, limit: int, kept: str) -> None:
    assert storable(text, limit) == kept


def test_of_a_traceback_the_end_is_kept() -> None:
    assert storable("first and last", 4, keep_end=True) == "[10 characters cut]\nlast"
