"""Keyed concurrency from the declaration to the end of the jobs, with workers in this process."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from psycopg import Connection
from psycopg_pool import AsyncConnectionPool

import jobs
from jobs.control import cancel
from jobs.errors import DeclarationError, InvalidInput
from tests.runtime.working import (
    Input,
    Table,
    execute,
    job,
    leaving_nothing,
    make,
    rows,
    serving,
    until,
)


def states(database: str) -> dict[str, int]:
    """How many live jobs are in which state."""
    found = rows(database, "select state, count(*)::int as jobs from jobs.job group by state")
    return {row.state: row.jobs for row in found}


def slots(database: str) -> list[str]:
    """The keys of the slots that are held."""
    return [row.concurrency_key for row in rows(database, "select * from jobs.slot")]


class Counted:
    """Counts how many run at the same time, by their number modulo `keys`."""

    def __init__(self, keys: int = 1) -> None:
        self.keys = keys
        self.now: Counter[int] = Counter()
        self.most: Counter[int] = Counter()

    async def run(self, n: int) -> None:
        key = n % self.keys
        self.now[key] += 1
        self.most[key] = max(self.most[key], self.now[key])
        await asyncio.sleep(0.01)
        self.now[key] -= 1


class TestDeclared:
    def test_a_number_is_a_limit_over_all_jobs_of_the_name(self) -> None:
        @job(name="limited", concurrency=3)
        async def limited(_: Input) -> None: ...

        assert limited.concurrency == jobs.Concurrency(limit=3)
        assert limited.derive_concurrency_key(Input()) == "job:limited"

    def test_keys_of_names_are_apart_whatever_is_in_them(self) -> None:
        keys = set()
        for name, key in (("a", "b:c"), ("a:b", "c"), ("a%3Ab", "c"), ("a", "b"), ("ab", "")):
            by = jobs.Concurrency(key=lambda _: "", limit=1)
            keys.add(by.full_key(name, key))
        keys.add(jobs.Concurrency(limit=1).full_key("a:b:c", None))
        keys.add(jobs.Concurrency(key=str, limit=1, shared=True).full_key("a", "a:b:c"))
        assert len(keys) == 7

    def test_a_shared_key_is_the_same_for_all_names(self) -> None:
        shared = jobs.Concurrency(key=str, limit=1, shared=True)
        assert shared.full_key("a", "k") == shared.full_key("b", "k")

    @pytest.mark.parametrize(
        ("given", "said"),
        [
            (0, "whole number from 1"),
            (10_001, "whole number from 1"),
            (-1, "whole number from 1"),
            (True, "is a bool"),
            (1.5, "is a float"),
            ("2", "is a str"),
        ],
    )
    def test_what_cannot_be_a_limit_is_refused(self, given: Any, said: str) -> None:
        with pytest.raises(DeclarationError, match=said):
            job(concurrency=given)

    @pytest.mark.parametrize(
        ("given", "said"),
        [
            ({"limit": 1.0}, "whole number"),
            ({"limit": True}, "whole number"),
            ({"limit": 1, "key": "account"}, "must be a function"),
            ({"limit": 1, "key": lambda: "x"}, "one argument"),
            ({"limit": 1, "when_busy": "skip"}, "'wait' or 'fail'"),
            ({"limit": 1, "key": str, "shared": 1}, "True or False"),
            ({"limit": 1, "shared": True}, "without a key"),
        ],
    )
    def test_a_bad_concurrency_is_refused(self, given: dict[str, Any], said: str) -> None:
        with pytest.raises(DeclarationError, match=said):
            jobs.Concurrency(**given)

    def test_an_asynchronous_key_is_refused(self) -> None:
        async def key(_: Input) -> str:
            return "k"

        with pytest.raises(DeclarationError, match="plain function"):
            jobs.Concurrency(key=key, limit=1)  # type: ignore[arg-type]

    def test_it_is_described(self) -> None:
        @job(concurrency=jobs.Concurrency(key=lambda i: str(i.n), limit=2, when_busy="fail"))
        async def described(_: Input) -> None: ...

        assert described.describe()["concurrency"] == {
            "limit": 2,
            "keyed": True,
            "when_busy": "fail",
            "shared": False,
        }


class TestEnqueued:
    @pytest.mark.parametrize("way", ["enqueue", "enqueue_many", "copy_many", "stage"])
    def test_every_way_in_carries_key_limit_and_manner(
        self, conn: Connection[Any], way: str
    ) -> None:
        @job(name="way", concurrency=jobs.Concurrency(key=lambda i: f"k{i.n}", limit=2))
        async def way_in(_: Input) -> None: ...

        if way in ("enqueue", "stage"):
            getattr(way_in, way)(conn, Input(n=1))
        else:
            getattr(way_in, way)(conn, [Input(n=1)])
        found = conn.execute(
            "select concurrency_key, concurrency_limit, when_busy from jobs.job union all "
            "select concurrency_key, concurrency_limit, when_busy from jobs.outbox"
        ).fetchall()
        assert found == [("key:way:k1", 2, "wait")]

    @pytest.mark.parametrize("returned", ["", None, 7, "\x00", "x" * 1025])
    def test_a_key_that_cannot_be_one_is_a_typed_error(
        self, conn: Connection[Any], returned: Any
    ) -> None:
        @job(concurrency=jobs.Concurrency(key=lambda _: returned, limit=1))
        async def odd(_: Input) -> None: ...

        with pytest.raises(InvalidInput) as caught:
            odd.enqueue(conn, Input())
        assert caught.value.field == "concurrency.key"
        with pytest.raises(InvalidInput) as caught:
            odd.enqueue_many(conn, [Input()])
        assert caught.value.index == 0
        assert conn.execute("select count(*) from jobs.job").fetchone() == (0,)

    def test_a_key_function_that_raises_is_one_too(self, conn: Connection[Any]) -> None:
        @job(concurrency=jobs.Concurrency(key=lambda i: str(1 // i.n), limit=1))
        async def odd(_: Input) -> None: ...

        with pytest.raises(InvalidInput, match="ZeroDivisionError"):
            odd.enqueue(conn, Input(n=0))

    def test_the_longest_key_and_name_fit_into_the_indexes(self, conn: Connection[Any]) -> None:
        from random import Random

        chance = Random(1)
        key = "".join(chr(chance.randrange(0x4E00, 0x9000)) for _ in range(341))
        name = ":" * 255

        @job(name=name, queue="q" * 255, concurrency=jobs.Concurrency(key=lambda _: key, limit=1))
        async def long(_: Input) -> None: ...

        long.enqueue_many(conn, [Input(), Input()])
        conn.execute("update jobs.job set state = 'blocked'")
        assert conn.execute(
            "select max(octet_length(concurrency_key)) from jobs.job"
        ).fetchone() == (4 + 3 * 255 + 1 + 3 * 341,)


@pytest.mark.parametrize("limit", [1, 3])
async def test_two_workers_keep_one_limit(database: str, limit: int) -> None:
    counted = Counted()

    @job(name="limited", concurrency=limit)
    async def limited(input: Input) -> None:
        await counted.run(input.n)

    table = Table(database)
    table.enqueue(limited, 40)
    async with (
        leaving_nothing(database),
        make(database, limited, name="one"),
        make(database, limited, name="two"),
    ):
        await until(lambda: table.count_live() == 0, "all to end")
        await until(lambda: slots(database) == [], "the slots to be let go")
    assert counted.most == {0: limit}
    assert table.counters() == {"completed": 40}


async def test_keys_do_not_wait_for_each_other(database: str) -> None:
    counted = Counted(keys=4)

    @job(concurrency=jobs.Concurrency(key=lambda i: str(i.n % 4), limit=1))
    async def keyed(input: Input) -> None:
        await counted.run(input.n)

    table = Table(database)
    table.enqueue(keyed, 40)
    stats = await make(database, keyed, queues={"default": 20}).run_until_idle()
    assert stats.completed == 40
    assert counted.most == {0: 1, 1: 1, 2: 1, 3: 1}
    assert slots(database) == []


async def test_a_shared_key_limits_jobs_of_two_names_in_two_queues(database: str) -> None:
    counted = Counted()
    shared = jobs.Concurrency(key=lambda _: "account", limit=2, shared=True)

    @job(name="one", queue="q", concurrency=shared)
    async def one(input: Input) -> None:
        await counted.run(input.n)

    @job(name="two", queue="r", concurrency=shared)
    async def two(input: Input) -> None:
        await counted.run(input.n)

    table = Table(database)
    table.enqueue(one, 15)
    table.enqueue(two, 15)
    async with (
        leaving_nothing(database),
        make(database, one, name="one", queues=["q"]),
        make(database, two, name="two", queues=["r"]),
    ):
        await until(lambda: table.count_live() == 0, "all to end")
    assert counted.most[0] == 2


async def test_fail_refuses_while_another_runs_and_tells_the_hook(database: str) -> None:
    told: list[jobs.Settled[Any]] = []
    go = asyncio.Event()

    @job(
        name="exclusive",
        on_settled=told.append,
        concurrency=jobs.Concurrency(limit=1, when_busy="fail"),
    )
    async def exclusive(_: Input) -> None:
        begun.append(1)
        await go.wait()

    begun: list[int] = []
    table = Table(database)
    (first,) = table.enqueue(exclusive)
    async with serving(database, exclusive) as worker:
        await until(lambda: begun, "the first to start")
        (second,) = table.enqueue(exclusive)
        await until(lambda: table.settled(second), "the second to be refused")
        await until(lambda: told, "the hook")
        end = table.settled(second)
        assert (end.state, end.stop_reason, end.attempt) == ("failed", "refused", 0)
        assert worker.stats().refused == 1
        go.set()
        await until(lambda: table.settled(first), "the first to end")
        (third,) = table.enqueue(exclusive)
        await until(lambda: table.settled(third), "the third to end")
        assert table.settled(third).state == "completed"
    assert len(begun) == 2, "the body of the refused one never ran"
    refused = [one for one in told if one.outcome == "refused"]
    assert [(one.id, one.stop_reason) for one in refused] == [(second, "refused")]
    assert table.counters() == {"completed": 2, "refused": 1}


async def test_run_complete_lets_the_slot_go_after_its_commit(
    database: str, pool: AsyncConnectionPool
) -> None:
    seen: list[tuple[list[str], dict[str, int]]] = []

    @job(name="completes", concurrency=1)
    async def completes(_: Input, run: jobs.Run) -> None:
        async with pool.connection() as conn, conn.transaction():
            await run.complete(conn)
            seen.append((slots(database), states(database)))

    table = Table(database)
    table.enqueue(completes, 3)
    stats = await make(database, completes).run_until_idle()
    assert stats.completed == 3
    assert all(held == ["job:completes"] for held, _ in seen), "the transaction leaves it alone"
    assert slots(database) == []


async def test_a_cancel_of_a_running_job_lets_the_next_one_run(database: str) -> None:
    begun: list[int] = []

    @job(name="cancelled", concurrency=1)
    async def cancelled(input: Input) -> None:
        begun.append(input.n)
        if input.n == 0:
            await asyncio.sleep(60)

    table = Table(database)
    first, second, third = table.enqueue(cancelled, 3)
    async with serving(database, cancelled):
        await until(lambda: states(database) == {"running": 1, "blocked": 2}, "two to be parked")
        with psycopg.connect(database, autocommit=True) as conn:
            assert cancel(conn, second).outcome == "cancelled", "one in the line ends at once"
            assert cancel(conn, first).outcome == "requested"
        await until(lambda: table.settled(third), "the third to end")
        assert table.settled(first).state == "cancelled"
    assert begun == [0, 2]
    assert slots(database) == []


async def test_the_limit_of_the_deployed_code_counts(database: str) -> None:
    """Up: those that wait are let out by the sweep of the new worker. Then down."""
    counted = Counted()
    handles = {}
    for limit in (1, 3):

        @job(name="changing", concurrency=limit)
        async def changing(input: Input) -> None:
            await counted.run(input.n)

        handles[limit] = changing
    table = Table(database)
    for enqueued, deployed in ((1, 3), (3, 1)):
        counted.most.clear()
        table.enqueue(handles[enqueued], 20)
        stats = await make(database, handles[deployed]).run_until_idle()
        assert stats.completed == 20
        assert counted.most == {0: deployed}


async def test_jobs_of_a_limit_that_nobody_declares_any_more_are_not_stranded(
    database: str,
) -> None:
    handles = []
    for concurrency in (1, None):

        @job(name="formerly", concurrency=concurrency)
        async def formerly(_: Input) -> None: ...

        handles.append(formerly)
    limited, free = handles
    table = Table(database)
    table.enqueue(limited, 3)
    execute(
        database,
        "update jobs.job set state = 'blocked', waiting_since = available_at",
    )
    async with serving(database, free):
        await until(lambda: table.count_live() == 0, "all to end")
    assert slots(database) == []


async def test_one_that_is_retried_lets_the_others_go_first(database: str) -> None:
    order: list[int] = []

    @job(
        name="retried",
        concurrency=1,
        retry=jobs.Retry(attempts=3, backoff="fixed", delay=timedelta(0), jitter=False),
    )
    async def retried(input: Input) -> None:
        order.append(input.n)
        if input.n == 0 and len(order) < 5:
            raise ValueError("not yet")

    Table(database).enqueue(retried, 4)
    await make(database, retried).run_until_idle()
    assert order[:4] == [0, 1, 2, 3]
    assert order[4:] == [0]


@pytest.mark.parametrize(
    "limits", [jobs.Limits(), jobs.Limits(per_tenant=5)], ids=["no limits", "of tenants"]
)
async def test_a_slot_that_was_left_behind_is_given_up_by_a_sweep(
    database: str, limits: jobs.Limits
) -> None:
    """Also where a claim is sent only when a choice of jobs has found a reason."""

    @job(name="swept", concurrency=1)
    async def swept(_: Input) -> None: ...

    table = Table(database)
    execute(
        database,
        "insert into jobs.slot values (1, %s, 'job:swept')",
        jobs.uuid7(),
    )
    table.enqueue(swept)
    begun = time.monotonic()
    async with serving(database, swept, limits=limits):
        await until(lambda: table.count_live() == 0, "it to end")
    assert time.monotonic() - begun < 15
    assert slots(database) == []
