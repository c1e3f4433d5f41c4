"""O-10: connections that are cut, hang, or lead to a server that was restarted."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

import jobs
from devkit import postgres
from devkit.proxy import Proxy
from jobs.service import link
from jobs.service.link import Target
from jobs.worker import claimer, settler
from jobs.worker.farewell import GRACE
from tests.runtime.working import (
    Input,
    Table,
    execute,
    job,
    make,
    rows,
    serving,
    sessions,
    tasks,
    until,
)
from tests.support.server import Clones

LONG = timedelta(seconds=30)


@pytest.fixture
def proxy(clones: Clones) -> Iterator[Proxy]:
    with Proxy(Path(clones.host)) as proxy:
        yield proxy


@pytest.fixture
def through(proxy: Proxy, database: str) -> str:
    """DSN of `database` through the proxy, without encryption, so that each chunk is protocol."""
    name = conninfo_to_dict(database)["dbname"]
    return f"{proxy.dsn(str(name))}?sslmode=disable&gssencmode=disable&connect_timeout=2"


class Bodies:
    """A job that counts its runs, and fails in its first attempt when told."""

    def __init__(self, fails: bool = False) -> None:
        self.runs: list[int] = []
        self.may_end = asyncio.Event()

        @job(name="counted")
        async def counted(_: Input, run: jobs.Run) -> None:
            self.runs.append(run.attempt)
            await self.may_end.wait()
            if fails and run.attempt == 1:
                raise ValueError("on purpose")

        self.job = counted


@pytest.mark.parametrize("way", ["up", "down"])
@pytest.mark.parametrize("fails", [False, True])
async def test_a_connection_cut_around_the_settle(
    database: str,
    proxy: Proxy,
    through: str,
    way: Any,
    fails: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Before the server sees it, and after it has committed: one run, counted once."""
    monkeypatch.setattr(settler, "_FIRST_PAUSE", 0.3)  # not again before the line is down
    bodies = Bodies(fails)
    table = Table(database)
    (one,) = table.enqueue(bodies.job)
    async with serving(database, bodies.job, dsn=through, lease=LONG) as worker:
        await until(lambda: bodies.runs, "the start")
        # A beat sends the id too, but only a settle says how the job ended.
        outcome = b'{"retry"}' if fails else b'{"completed"}'
        proxy.cut(way, on=b"jobs:settle_jobs" if way == "up" else outcome)
        bodies.may_end.set()
        await until(proxy.was_cut.is_set, "the cut")
        proxy.drop()
        await asyncio.sleep(0.5)
        assert bool(table.counters()) == (way == "down"), "else this test tests something else"
        proxy.ok()
        await until(lambda: table.settled(one), "the settle")
        await until(lambda: not worker.stats().in_flight, "its answer")
        assert worker.stats().completed == 1
        assert worker.stats().retried == fails
        assert worker.stats().lost == 0
    assert bodies.runs == ([1, 2] if fails else [1])
    assert table.settled(one).claims == len(bodies.runs)
    assert len(table.attempts(one)) == fails
    assert table.counters() == {"completed": 1} | ({"retried": 1} if fails else {})


async def test_calls_that_hang_are_given_up_and_sent_again(
    database: str, proxy: Proxy, through: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Claims and settles have deadlines of their own; when the network is back all is well."""
    monkeypatch.setattr(claimer, "TIMEOUT", 0.3)
    monkeypatch.setattr(settler, "TIMEOUT", 0.3)
    monkeypatch.setattr(link, "CONNECT_TIMEOUT", 0.3)
    bodies = Bodies()
    table = Table(database)
    ids = table.enqueue(bodies.job, 5)
    async with serving(database, bodies.job, dsn=through, lease=LONG) as worker:
        await until(lambda: len(bodies.runs) == 5, "the starts")
        proxy.hang()
        bodies.may_end.set()
        await asyncio.sleep(1.5)
        assert worker.stats().completed == 0
        proxy.ok()
        await until(lambda: worker.stats().completed == 5, "the answers")
        table.enqueue(bodies.job, 5)
        await until(lambda: worker.stats().completed == 10, "the next ones")
    assert bodies.runs == [1] * 10
    assert {table.settled(one).claims for one in ids} == {1}
    assert table.counters() == {"completed": 10}


@pytest.mark.serial
async def test_renewals_through_a_hung_connection(
    database: str, proxy: Proxy, through: str, caplog: pytest.LogCaptureFixture
) -> None:
    """They give up in time to try again, and the lease holds."""
    bodies = Bodies()
    table = Table(database)
    (one,) = table.enqueue(bodies.job)
    lease = timedelta(seconds=3)
    async with (
        serving(database, bodies.job, dsn=through, lease=lease) as worker,
        make(database, bodies.job, lease=lease) as hungry,
    ):
        for _ in range(2):
            first = await until(lambda: table.live(one).lease_expires_at, "the lease")
            await until(lambda first=first: table.live(one).lease_expires_at > first, "a renewal")
            with caplog.at_level(logging.WARNING, "jobs.worker"):
                caplog.clear()
                proxy.hang()
                await until(lambda: "renewing 1 leases failed" in caplog.text, "one to give up")
                proxy.ok()
        await asyncio.sleep(1)
        bodies.may_end.set()
        await until(lambda: worker.stats().completed, "the end")
        assert hungry.stats().claimed == 0
    assert bodies.runs == [1]
    assert table.settled(one).claims == 1
    assert table.attempts(one) == []


async def test_a_renewal_that_hangs_between_connecting_and_its_first_statement(
    database: str,
    proxy: Proxy,
    through: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The look at a new session has a deadline too."""
    opened: list[int] = []
    open_session = Target.open

    def hanging(self: Target) -> Any:
        conn = open_session(self)
        if not opened:
            proxy.hang()
        opened.append(1)
        return conn

    monkeypatch.setattr(Target, "open", hanging)
    bodies = Bodies()
    table = Table(database)
    (one,) = table.enqueue(bodies.job)
    async with serving(database, bodies.job, dsn=through, lease=timedelta(seconds=3)) as worker:
        await until(lambda: bodies.runs, "the start")
        first = table.live(one).lease_expires_at
        await until(lambda: "renewing 1 leases failed" in caplog.text, "it to give up")
        assert len(opened) == 1
        proxy.ok()
        await until(lambda: table.live(one).lease_expires_at > first, "a renewal")
        bodies.may_end.set()
        await until(lambda: worker.stats().completed, "the end")
    assert bodies.runs == [1]


@pytest.mark.serial
async def test_a_lease_stays_well_above_its_end_on_a_slow_network(
    database: str, proxy: Proxy, through: str
) -> None:
    """O-05: 50 ms for every statement there and back, and it never falls under a third."""
    proxy.delay(0.025)
    bodies = Bodies()
    table = Table(database)
    (one,) = table.enqueue(bodies.job)
    left: list[float] = []
    expiries: set[object] = set()
    lease = timedelta(seconds=2)
    async with (
        serving(database, bodies.job, dsn=through, lease=lease) as worker,
        make(through, bodies.job, lease=lease) as other,
    ):
        await until(lambda: bodies.runs, "the start")
        while len(expiries) < 6:
            (row,) = rows(
                database,
                "select lease_expires_at, extract(epoch from lease_expires_at - clock_timestamp())"
                " as left from jobs.job where id = %s",
                one,
            )
            left.append(float(row.left))
            expiries.add(row.lease_expires_at)
            await asyncio.sleep(0.01)
        bodies.may_end.set()
        await until(lambda: not table.count_live(), "the end")
        await until(lambda: worker.stats().completed + other.stats().completed, "the answer")
    assert min(left) > lease.total_seconds() / 3
    assert bodies.runs == [1]


async def test_a_start_that_hangs_can_be_given_up(
    database: str, proxy: Proxy, through: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link, "CONNECT_TIMEOUT", 0.3)
    proxy.hang()
    with pytest.raises(jobs.DatabaseUnreachable, match="no answer from the database"):
        await make(through).start()
    proxy.ok()
    async with serving(database, dsn=through):
        pass


async def test_a_stop_ends_a_start_that_hangs(database: str, proxy: Proxy, through: str) -> None:
    proxy.hang()
    worker = make(through)
    running = asyncio.create_task(worker.run(signals=False))
    await asyncio.sleep(0.3)
    worker.stop()
    async with asyncio.timeout(5):
        await running
    assert worker.stats().state == "stopped"
    proxy.ok()
    await until(lambda: not sessions(database), "the sessions to end")
    assert tasks() == []


async def test_a_drain_does_not_wait_for_a_network_that_is_gone(
    database: str, proxy: Proxy, through: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jobs.worker.worker.GRACE", GRACE._replace(flush=0.5))
    bodies = Bodies()
    table = Table(database)
    (one,) = table.enqueue(bodies.job)
    worker = make(through, bodies.job, drain=timedelta(seconds=1))
    await worker.start()
    await until(lambda: bodies.runs, "the start")
    proxy.hang()
    bodies.may_end.set()
    async with asyncio.timeout(12):
        worker.stop()
        await worker.wait()
    proxy.ok()
    proxy.reset()  # a connection begun and given up while it hung is the proxy's alone by now
    await until(lambda: not sessions(database), "the sessions to end")
    assert worker.stats().state == "stopped"
    assert table.live(one) is None or table.live(one).state == "running"


async def test_sessions_ended_again_and_again(database: str) -> None:
    """By an administrator, a failover, a firewall: every job runs and is counted once."""
    runs: list[int] = []

    @job(retry=jobs.Retry(attempts=20))
    async def short(input: Input) -> None:
        runs.append(input.n)
        await asyncio.sleep(0.01)

    table = Table(database)
    table.enqueue(short, 150)
    options: dict[str, Any] = {"lease": timedelta(seconds=1), "queues": {"default": 3}}
    async with serving(database, short, **options) as worker:
        while table.count_live() > 30:
            execute(
                database,
                "select pg_terminate_backend(pid) from pg_stat_activity"
                " where datname = current_database() and application_name like 'jobs:%%'",
            )
            await asyncio.sleep(0.1)
        await until(lambda: not table.count_live(), "all to end")
        await until(lambda: not worker.stats().in_flight, "the answers")
        assert worker.stats().lost == 0
    assert sorted(runs) == list(range(150))
    assert table.counters()["completed"] == 150


async def test_a_server_that_is_read_only_for_a_while(database: str) -> None:
    """A failover, a full disk: an outcome is not given up because it cannot be written now."""
    bodies = Bodies()
    table = Table(database)
    (one,) = table.enqueue(bodies.job)
    name = conninfo_to_dict(database)["dbname"]
    async with serving(database, bodies.job, lease=LONG) as worker:
        await until(lambda: bodies.runs, "the start")
        execute(database, f'alter database "{name}" set default_transaction_read_only = on')
        execute(
            database,
            "select pg_terminate_backend(pid) from pg_stat_activity"
            " where datname = current_database() and application_name like 'jobs:%%'",
        )
        bodies.may_end.set()
        await asyncio.sleep(1)
        assert table.live(one).state == "running"
        with psycopg.connect(database, options="-c default_transaction_read_only=off") as conn:
            conn.execute(f'alter database "{name}" reset default_transaction_read_only')
        await until(lambda: worker.stats().completed, "the settle")
    assert bodies.runs == [1]
    assert table.settled(one).state == "completed"
    assert table.counters() == {"completed": 1}


async def test_a_session_that_forgets_its_statements(database: str) -> None:
    """A pooler in between that was not noticed: a new session is better than the same error."""
    ran: list[int] = []

    @job()
    async def short(input: Input) -> None:
        ran.append(input.n)

    async def forget(conn: Any) -> None:
        await conn.execute("deallocate all", prepare=False)

    table = Table(database)
    async with serving(database, short) as worker:
        for number in range(1, 4):
            table.enqueue(short)
            await until(lambda n=number: len(ran) == n, "the job")
            await until(lambda: not worker.stats().in_flight, "its answer")
            for each in worker._links:
                await until(lambda e=each: e._task is None and e._conn, "a quiet moment")
                await forget(each._conn)
        table.enqueue(short, 5)
        await until(lambda: len(ran) == 8, "the others")
        await until(lambda: worker.stats().completed == 8, "their answers")
    assert table.counters() == {"completed": 8}


@pytest.mark.serial
async def test_a_server_that_crashes_and_comes_back(
    durable_server: postgres.Server, durable_database: str
) -> None:
    """What runs goes on and is settled afterwards; what waits is claimed."""
    bodies = Bodies()
    table = Table(durable_database)
    (one,) = table.enqueue(bodies.job)
    async with serving(durable_database, bodies.job, lease=timedelta(seconds=4)) as worker:
        await until(lambda: bodies.runs, "the start")
        await asyncio.to_thread(durable_server.restart, "immediate")
        (two,) = table.enqueue(bodies.job)
        await until(lambda: len(bodies.runs) == 2, "the other one to start")
        before = table.live(one).lease_expires_at
        await until(lambda: table.live(one).lease_expires_at > before, "a renewal")
        bodies.may_end.set()
        await until(lambda: worker.stats().completed == 2, "both to end")
        await asyncio.to_thread(durable_server.stop, "immediate")
        await asyncio.sleep(0.5)
        await asyncio.to_thread(durable_server.launch)
        (three,) = table.enqueue(bodies.job)
        await until(lambda: worker.stats().completed == 3, "the third")
    assert bodies.runs == [1, 1, 1]
    assert [table.settled(each).claims for each in (one, two, three)] == [1, 1, 1]
    assert table.counters() == {"completed": 3}
