"""What a worker asks for and when: slots, queues, pace, and nothing for nobody."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import Counter
from datetime import timedelta
from typing import Any

import pytest

import jobs
from jobs.service.pace import Pace
from jobs.worker import worker as worker_module
from jobs.worker.demand import Ask
from tests.runtime.working import (
    Input,
    Table,
    execute,
    job,
    make,
    rows,
    serving,
    sessions,
    until,
)

Room = dict[str, int]


def watch(worker: jobs.Worker) -> list[tuple[Room, int]]:
    """What each claim of a worker asks for, and how many rows it is given."""
    asked: list[tuple[Room, int]] = []
    claim = worker._claimer._claim

    async def watched(ask: Ask) -> Any:
        found = await claim(ask)
        asked.append((dict(ask.room), len(found)))
        return found

    worker._claimer._claim = watched  # type: ignore[method-assign]
    return asked


async def test_no_queue_ever_runs_more_than_its_slots(database: str) -> None:
    slots = {"one": 1, "three": 3, "seven": 7}
    running: Counter[str] = Counter()
    most: Counter[str] = Counter()

    def handle(name: str) -> Any:
        @job(name=name, queue=name)
        async def body(input: Input, run: jobs.Run) -> None:
            running[run.queue] += 1
            most[run.queue] = max(most[run.queue], running[run.queue])
            try:
                await asyncio.sleep(0.002 * (input.n % 5))
                if input.n % 7 == 0 and run.attempt == 1:
                    raise ValueError("its slot must be free again")
            finally:
                running[run.queue] -= 1

        return body

    handles = [handle(name) for name in slots]
    table = Table(database)
    for one in handles:
        table.enqueue(one, 70)
    async with serving(database, *handles, queues=slots) as worker:
        asked = watch(worker)
        await until(lambda: not table.count_live(), "all to end")
        await until(lambda: worker.stats().completed == 210, "the answers")
        assert all(lane.held == 0 for lane in worker._lanes.values()), "slots are free again"
    assert most == slots, "as many as there are, and not one more"
    assert worker.stats().retried == 30
    for room, found in asked:
        assert all(free > 0 for free in room.values())
        assert found <= sum(room.values())


async def test_a_full_queue_beside_an_idle_one_is_filled_again_at_once(database: str) -> None:
    """Its freed slot is known; it need not wait for the idle queue's next look."""
    ends: list[float] = []

    @job(queue="busy")
    async def short(_: Input) -> None:
        await asyncio.sleep(0.4)  # longer than a worker is hot after a find
        ends.append(time.monotonic())

    @job(queue="idle")
    async def never(_: Input) -> None:
        raise AssertionError

    table = Table(database)
    table.enqueue(short, 4)
    slow = {"poll": timedelta(seconds=30), "idle_poll": timedelta(seconds=30)}
    async with serving(database, short, never, queues={"busy": 1, "idle": 5}, **slow):
        await until(lambda: len(ends) == 4, "all of them")


async def test_a_free_slot_is_not_forgotten_while_another_queue_is_full(database: str) -> None:
    """Both full, the one that frees a slot gets its next job, however long the other one takes."""
    gate = asyncio.Event()
    ends: list[int] = []

    @job(queue="short")
    async def short(input: Input) -> None:
        await asyncio.sleep(0.4)
        ends.append(input.n)

    @job(queue="long")
    async def long(_: Input) -> None:
        await gate.wait()

    table = Table(database)
    table.enqueue(short, 3)
    slow = {"poll": timedelta(milliseconds=20), "idle_poll": timedelta(seconds=30)}
    async with serving(database, short, long, queues={"short": 1, "long": 1}, **slow) as worker:
        await until(lambda: worker.stats().claimed == 1, "the first to be claimed")
        await asyncio.sleep(0.05)
        table.enqueue(long, 1)
        await until(lambda: len(ends) == 3, "the short ones to go on")
        gate.set()


async def test_a_busy_queue_does_not_make_the_others_spin(database: str) -> None:
    """One claim for each slot that becomes free, and a few more."""

    @job(queue="busy")
    async def short(_: Input) -> None:
        await asyncio.sleep(0.05)

    @job(queue="idle")
    async def never(_: Input) -> None:
        raise AssertionError

    table = Table(database)
    table.enqueue(short, 40)
    pace = {"poll": timedelta(milliseconds=250), "idle_poll": timedelta(seconds=2)}
    async with serving(database, short, never, queues={"busy": 1, "idle": 5}, **pace) as worker:
        asked = watch(worker)
        await until(lambda: worker.stats().completed == 38, "most of them")
        assert len(asked) <= 2 * 40


async def test_no_claim_where_nothing_is_free(database: str) -> None:
    gate = asyncio.Event()

    @job()
    async def waits(_: Input) -> None:
        await gate.wait()

    table = Table(database)
    table.enqueue(waits, 20)
    async with serving(database, waits, queues={"default": 5}) as worker:
        asked = watch(worker)
        await until(lambda: worker.stats().claimed == 5, "a full house")
        asked.clear()
        await asyncio.sleep(0.5)
        assert asked == []
        gate.set()
        await until(lambda: not table.count_live(), "the rest")
    assert worker.stats().completed == 20


async def test_the_statements_of_an_idle_worker(database: str) -> None:
    """With the defaults: a quarter of a second, doubling to two; so at most 30 in a minute."""
    defaults = {"poll": timedelta(milliseconds=250), "idle_poll": timedelta(seconds=2)}
    times: list[float] = []
    async with serving(database, **defaults, lease=timedelta(seconds=1), listen=False) as worker:
        claim = worker._claimer._claim

        async def timed(ask: Ask) -> Any:
            times.append(time.monotonic())
            return await claim(ask)

        worker._claimer._claim = timed  # type: ignore[method-assign]
        await until(lambda: len(times) == 5, "five claims")
        assert worker._renewer._conn is None, "where nothing is held nothing is renewed"
        assert len(sessions(database)) == 2
    gaps = [b - a for a, b in itertools.pairwise(times)]
    assert all(gap >= least for gap, least in zip(gaps, [0.25, 0.5, 1, 2], strict=True)), gaps


def test_the_pace_doubles_to_its_ceiling_and_stays_there() -> None:
    pace = Pace(0.25, 2.0)
    waits = [pace.nothing() for _ in range(20)]
    assert waits[:5] == [0.25, 0.5, 1.0, 2.0, 2.0]
    minute, spent = 0, 0.0
    while spent < 60:
        spent += pace.nothing()
        minute += 1
    assert minute <= 30
    assert pace.filled() == 0.25
    assert [pace.nothing(), pace.nothing()] == [0.25, 0.5]
    assert [pace.failed(), pace.failed(), pace.failed()] == [1.0, 2.0, 2.0]


def test_the_pace_is_hot_after_a_find(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    pace = Pace(0.25, 2.0)
    pace.nothing()
    assert pace.found() == 0.002
    assert pace.nothing() == 0.002
    now[0] += 0.05
    assert pace.nothing() == 0.01
    now[0] += 0.26
    assert [pace.nothing(), pace.nothing()] == [0.25, 0.5]
    assert Pace(0.001, 2.0).found() == 0.001, "never slower than the floor that was asked for"


async def test_no_claim_while_outcomes_pile_up(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Back-pressure: what cannot be settled is not claimed either, and it goes on afterwards."""
    monkeypatch.setattr(worker_module, "CHOKED", 20)

    @job()
    async def short(_: Input) -> None:
        pass

    table = Table(database)
    table.enqueue(short, 200)
    slow = {"poll": timedelta(seconds=30), "idle_poll": timedelta(seconds=30)}
    async with serving(database, short, queues={"default": 10}, **slow) as worker:
        send = worker._settler._send
        dam = asyncio.Event()

        async def dammed(batch: Any) -> Any:
            await dam.wait()
            return await send(batch)

        worker._settler._send = dammed  # type: ignore[method-assign]
        await until(lambda: worker._settler.backlog >= 20, "the backlog")
        await asyncio.sleep(0.2)
        assert worker._settler.backlog <= 20 + 10, "what was running then, and no more"
        dam.set()
        await until(lambda: worker.stats().completed == 200, "all of them")


async def test_a_claim_that_came_too_late_is_handed_back(database: str) -> None:
    """Its lease has run out on the way: somebody else may have it already."""
    ran: list[int] = []

    @job()
    async def short(_: Input, run: jobs.Run) -> None:
        ran.append(run.claims)

    table = Table(database)
    (one,) = table.enqueue(short)
    async with serving(database, short, lease=timedelta(seconds=1)) as worker:
        claim = worker._claimer._claim

        async def slowly(ask: Ask) -> Any:
            found = await claim(ask)
            if found and found[0].claims == 1:
                await asyncio.sleep(1.1)
            return found

        worker._claimer._claim = slowly  # type: ignore[method-assign]
        await until(lambda: table.settled(one), "the end")
    assert ran == [2], "not with the token of the late claim"
    assert table.settled(one).state == "completed"


async def test_a_slow_claim_is_renewed_at_once(database: str) -> None:
    """Two thirds of the lease are gone when it starts; the regular renewal could be too late."""
    ended: list[int] = []

    @job()
    async def long(_: Input, run: jobs.Run) -> None:
        await asyncio.sleep(1.5)
        ended.append(run.claims)

    table = Table(database)
    (one,) = table.enqueue(long)
    async with serving(database, long, lease=timedelta(seconds=3)) as worker:
        claim = worker._claimer._claim

        async def slowly(ask: Ask) -> Any:
            found = await claim(ask)
            if found:
                await asyncio.sleep(2)
            return found

        worker._claimer._claim = slowly  # type: ignore[method-assign]
        await until(lambda: worker.stats().claimed, "the claim")
        before = table.live(one).lease_expires_at
        await until(lambda: table.live(one).lease_expires_at > before, "the renewal")
        left = (
            "select extract(epoch from lease_expires_at - clock_timestamp())::float as left"
            " from jobs.job where lease_expires_at is not null"
        )
        assert rows(database, left)[0].left > 2
        await until(lambda: ended, "the end")
    assert ended == [1]


async def test_burials_go_on_until_none_is_left(database: str) -> None:
    """A queue with one slot ends a crowd of exhausted jobs in far less than a second each."""

    @job(retry=jobs.Retry(attempts=1))
    async def short(_: Input) -> None:
        pass

    table = Table(database)
    table.enqueue(short, 60)
    execute(
        database,
        "update jobs.job set state = 'running', worker = 'gone', claims = 1, attempt = 1,"
        " lease_expires_at = now() - interval '1 second', rescue_at = now() - interval '1 second'",
    )
    async with serving(database, short, queues={"default": 1}) as worker:
        await until(lambda: worker.stats().buried == 60, "the burials")
    assert table.counters() == {"dead": 60}


async def test_jobs_start_in_their_order(database: str) -> None:
    order: list[tuple[int, int]] = []

    @job()
    async def tell(input: Input) -> None:
        order.append((0, input.n))

    @job(priority=3)
    async def tell_last(input: Input) -> None:
        order.append((3, input.n))

    table = Table(database)
    table.enqueue(tell_last, 5)
    table.enqueue(tell, 5)
    await make(database, tell, tell_last, queues={"default": 20}).run_until_idle()
    assert order == [(0, n) for n in range(5)] + [(3, n) for n in range(5)]


async def test_a_paused_queue_is_left_alone(database: str) -> None:
    ran: list[int] = []

    @job()
    async def tell(input: Input) -> None:
        ran.append(input.n)

    table = Table(database)
    table.enqueue(tell, 3)
    execute(database, "insert into jobs.pause (kind, name) values ('queue', 'default')")
    async with serving(database, tell) as worker:
        await asyncio.sleep(0.3)
        assert worker.stats().claimed == 0
        execute(database, "delete from jobs.pause")
        await until(lambda: len(ran) == 3, "them to run")


@pytest.mark.parametrize("how", ["dsn", "variable"])
async def test_a_narrow_client_encoding_fails_no_claim(
    database: str, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """The payload of one job may hold what the encoding does not, and all would fail with it."""
    ran: list[str] = []

    class Text(Input):
        text: str

    @job()
    async def tell(input: Text) -> None:
        ran.append(input.text)

    table = Table(database)
    table.insert("tell", '{"text": "日本 €"}')
    dsn = database
    if how == "dsn":
        dsn += "&client_encoding=latin1"
    else:
        monkeypatch.setenv("PGCLIENTENCODING", "LATIN1")
    await make(dsn, tell).run_until_idle()
    assert ran == ["日本 €"]


async def test_the_settings_of_a_session(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ours, which nothing relies on for being correct, behind those of the environment."""
    monkeypatch.setenv("PGOPTIONS", "-c statement_timeout=77s -c lock_timeout=1h")

    async def setting(conn: Any, name: str) -> str:
        found = await conn.execute("select current_setting(%s)", [name], prepare=False)
        return str((await found.fetchone())[0])

    async with serving(database) as worker:
        for name, value in {
            "statement_timeout": "77s",
            "lock_timeout": "5s",
            "client_connection_check_interval": "2s",
            "plan_cache_mode": "force_generic_plan",
            "enable_seqscan": "off",
        }.items():
            call = worker._links[1].call
            assert await call(lambda conn, n=name: setting(conn, n), 5) == value
