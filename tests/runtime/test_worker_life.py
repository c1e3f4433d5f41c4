"""Starting, draining and stopping a worker inside an application, and what it leaves behind."""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from datetime import timedelta
from typing import Any

import pytest
from psycopg_pool import AsyncConnectionPool

import jobs
from tests.runtime.working import (
    Gate,
    Input,
    Table,
    execute,
    job,
    leaving_nothing,
    make,
    registry,
    serving,
    sessions,
    tasks,
    threads,
    until,
)
from tests.support.waiting import until as wait_until

NO_TIME = timedelta(0)


async def test_a_block_serves_and_then_waits_for_what_runs(database: str) -> None:
    gate = Gate()
    table = Table(database)
    ids = table.enqueue(gate.job, 3)
    async with leaving_nothing(database):
        async with make(database, gate.job) as worker:
            assert worker.stats().state == "running"
            await until(lambda: len(gate.started) == 3, "the jobs to start")
            assert worker.stats().in_flight == 3
            asyncio.get_running_loop().call_later(0.2, gate.open.set)
        assert worker.stats().state == "stopped"
    assert len(gate.ended) == 3
    assert [table.settled(one).state for one in ids] == ["completed"] * 3
    assert (worker.stats().completed, worker.stats().in_flight) == (3, 0)


async def test_nothing_more_is_claimed_while_draining(database: str) -> None:
    gate = Gate()
    table = Table(database)
    table.enqueue(gate.job)
    async with serving(database, gate.job) as worker:
        await until(lambda: gate.started, "the start")
        worker.stop()
        (later,) = table.enqueue(gate.job)
        await asyncio.sleep(0.4)
        gate.open.set()
    assert gate.started == [0]
    assert table.live(later).claims == 0


async def test_start_is_refused_twice_at_once_and_after_the_end(database: str) -> None:
    gate = Gate()
    async with leaving_nothing(database):
        worker = make(database, gate.job)
        first = asyncio.create_task(worker.start())
        await asyncio.sleep(0)
        with pytest.raises(jobs.ConfigError, match="is starting and cannot be started again"):
            await worker.start()
        await first
        with pytest.raises(jobs.ConfigError, match="is running and"):
            await worker.start()
        assert len(sessions(database)) == 2, "claims and settles; renewals connect when needed"
        worker.stop()
        with pytest.raises(jobs.ConfigError, match="cannot be started again"):
            await worker.start()
        await worker.wait()
        with pytest.raises(jobs.ConfigError, match="is stopped and"):
            await worker.start()


async def test_stop_before_start(database: str) -> None:
    gate = Gate()
    (one,) = Table(database).enqueue(gate.job)
    async with leaving_nothing(database):
        worker = make(database, gate.job)
        await worker.wait()
        worker.stop()
        await worker.run(signals=False)
    assert worker.stats().state == "stopped"
    assert Table(database).live(one).claims == 0


@pytest.mark.parametrize("steps", range(12))
async def test_cancelling_a_start_leaves_nothing(database: str, steps: int) -> None:
    gate = Gate()
    async with leaving_nothing(database):
        worker = make(database, gate.job)
        starting = asyncio.create_task(worker.start())
        for _ in range(steps):
            await asyncio.sleep(0.001)
        starting.cancel()
        try:
            await starting
        except asyncio.CancelledError:
            assert worker.stats().state == "idle"
        else:
            worker.stop()
            await worker.wait()


async def test_two_workers_in_one_loop(database: str) -> None:
    ran: list[tuple[str, int]] = []

    @job()
    async def tell(input: Input, run: jobs.Run) -> None:
        ran.append((run.worker, input.n))
        await asyncio.sleep(0.01)

    @job()
    def tell_in_thread(input: Input, run: jobs.Run) -> None:
        ran.append((run.worker, input.n))
        time.sleep(0.01)

    table = Table(database)
    table.enqueue(tell, 60)
    table.enqueue(tell_in_thread, 60)
    async with (
        leaving_nothing(database),
        make(database, tell, tell_in_thread, name="one") as one,
        make(database, tell, tell_in_thread, name="two") as two,
    ):
        await until(lambda: not table.count_live(), "all to end")
    assert one.stats().completed + two.stats().completed == 120
    assert min(one.stats().completed, two.stats().completed) > 0
    assert len(ran) == 120
    assert {name for name, _ in ran} == {"one", "two"}


async def test_a_pool_is_asked_for_its_address_only(database: str) -> None:
    """Job functions that hold every pooled connection do not keep the worker from settling."""
    table = Table(database)
    async with AsyncConnectionPool(database, min_size=1, max_size=2, open=False) as pool:
        await pool.open()

        @job()
        async def hold(_: Input) -> None:
            async with pool.connection():
                await asyncio.sleep(0.05)

        table.enqueue(hold, 10)
        async with serving(database, hold, dsn=pool, queues={"default": 10}) as worker:
            async with pool.connection(), pool.connection():
                await asyncio.sleep(0.3)
                assert worker.stats().claimed == 10
            await until(lambda: not table.count_live(), "all to end")


def test_an_application_that_forgets_to_stop_its_worker(database: str) -> None:
    """The loop ends, and so do its renewals: the jobs are free for others after their leases."""
    gate: list[Gate] = []

    async def application() -> None:
        gate.append(Gate())
        worker = make(database, gate[0].job, lease=timedelta(seconds=1))
        await worker.start()
        await until(lambda: gate[0].started, "the start")

    async def prepare() -> None:
        Table(database).enqueue(Gate().job)

    asyncio.run(prepare())
    asyncio.run(application())
    wait_until(lambda: not threads(), "the renewals to end")
    wait_until(lambda: not sessions(database), "the sessions to end")


async def test_one_outside_the_main_thread_is_told_to_leave_signals_alone(database: str) -> None:
    gate = Gate()
    with pytest.raises(jobs.ConfigError, match=r"outside the main thread.*signals=False"):
        await asyncio.to_thread(asyncio.run, make(database, gate.job).run())

    async def elsewhere() -> None:
        worker = make(database, gate.job)
        asyncio.get_running_loop().call_later(0.1, worker.stop)
        await worker.run(signals=False)

    async with leaving_nothing(database):
        await asyncio.to_thread(asyncio.run, elsewhere())


class NoSignals(asyncio.SelectorEventLoop):
    """A loop as on Windows."""

    add_signal_handler = asyncio.AbstractEventLoop.add_signal_handler
    remove_signal_handler = asyncio.AbstractEventLoop.remove_signal_handler


@pytest.mark.parametrize("loop_factory", [NoSignals, asyncio.SelectorEventLoop])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_drain_in_any_loop(
    database: str, loop_factory: type[asyncio.SelectorEventLoop], number: signal.Signals
) -> None:
    """O-34: also where the loop has no signal handlers. Handlers that were there come back."""
    received: list[int] = []

    def own(received_number: int, _: object) -> None:
        received.append(received_number)

    before = signal.signal(number, own)

    async def application() -> None:
        gate = Gate()
        Table(database).enqueue(gate.job)
        worker = make(database, gate.job, drain=timedelta(hours=1))
        running = asyncio.create_task(worker.run())
        await until(lambda: gate.started, "the start")
        signal.raise_signal(number)
        await until(lambda: worker.stats().state == "draining", "the drain")
        signal.raise_signal(number)
        await running
        assert worker.stats().released == 1

    try:
        with asyncio.Runner(loop_factory=loop_factory) as runner:
            runner.run(application())
        assert received == []
        signal.raise_signal(number)
        assert received == [number]
    finally:
        signal.signal(number, before)


async def test_a_proactor_loop_is_refused_with_what_to_do(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """O-34."""

    class ProactorEventLoop:
        pass

    worker = make(database, Gate().job)
    monkeypatch.setattr(asyncio, "get_running_loop", ProactorEventLoop)
    with pytest.raises(jobs.ConfigError, match=r"loop_factory=asyncio\.SelectorEventLoop"):
        await worker.start()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"queues": []}, "no queue has a slot"),
        ({"queues": {}}, "no queue has a slot"),
        ({"queues": {"a": 0}}, "no queue has a slot"),
        ({"queues": "files"}, "expected a mapping or a list"),
        ({"queues": 5}, "expected a mapping or a list"),
        ({"queues": {"a": 1.5}}, "queue 'a' has 1.5 slots"),
        ({"queues": {"a": True}}, "queue 'a' has True slots"),
        ({"queues": {"a": -1}}, "queue 'a' has -1 slots"),
        ({"queues": {"a": 10_001}}, "expected a whole number up to 10000"),
        ({"queues": {"": 1}}, "queue name '': must not be empty"),
        ({"queues": {"a\x00": 1}}, "queue name"),
        ({"queues": {"\ud800": 1}}, "queue name"),
        ({"queues": {"x" * 256: 1}}, "queue name"),
        ({"queues": {7: 1}}, "queue name 7: must be a str"),
        ({"name": ""}, "name '': must not be empty"),
        ({"name": "\x00"}, "name"),
        ({"name": 7}, "name 7: must be a str"),
        ({"lease": timedelta(milliseconds=999)}, "lease is"),
        ({"lease": 30}, "lease is 30, expected a timedelta"),
        ({"lease": float("nan")}, "lease is nan"),
        ({"poll": timedelta(0)}, "poll is"),
        ({"poll": timedelta(seconds=-1)}, "poll is"),
        ({"idle_poll": timedelta(milliseconds=1)}, "idle_poll is"),
        ({"drain": timedelta(seconds=-1)}, "drain is"),
        ({"drain": None}, "drain is None"),
    ],
)
def test_settings_that_cannot_work_are_refused(
    database: str, options: dict[str, Any], message: str
) -> None:
    @job()
    async def nothing(input: Input) -> None:
        pass

    with pytest.raises(jobs.ConfigError, match=message.replace("(", r"\(")):
        make(database, nothing, **options)


@pytest.mark.parametrize(
    "target", ["postgresql://me:secret@h/x?no=y", "password=secret x", 7, None]
)
def test_a_database_that_cannot_be_read_is_refused_without_its_password(target: Any) -> None:
    with pytest.raises(jobs.ConfigError) as refused:
        make(target)
    assert "secret" not in str(refused.value)
    assert "secret" not in repr(refused.value.__context__)


def test_an_odd_registry_is_refused(database: str) -> None:
    with pytest.raises(jobs.ConfigError, match=r"expected a jobs\.Registry"):
        jobs.Worker(database, [])  # type: ignore[arg-type]


async def test_a_start_without_a_database_says_so() -> None:
    worker = make("postgresql://nobody:secret@127.0.0.1:1/nowhere", Gate().job)
    with pytest.raises(jobs.DatabaseUnreachable, match=r"cannot connect: .*JOB_DATABASE") as error:
        await worker.start()
    assert "secret" not in str(error.value)
    assert worker.stats().state == "idle"
    assert not tasks()
    assert not threads()


async def test_a_start_without_a_thread_for_renewals_leaves_nothing(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none_left(_: object) -> None:
        raise RuntimeError("can't start new thread")

    async with leaving_nothing(database):
        worker = make(database, Gate().job)
        with monkeypatch.context() as context:
            context.setattr(threading.Thread, "start", none_left)
            with pytest.raises(RuntimeError, match="can't start new thread"):
                await worker.start()
        assert worker.stats().state == "idle"


async def test_a_start_without_the_schema_says_so(database: str) -> None:
    execute(database, "alter schema jobs rename to elsewhere")
    async with leaving_nothing(database):
        with pytest.raises(jobs.SchemaOutdated, match=r"not installed.*jobs migrate"):
            await make(database, Gate().job).start()


async def test_a_worker_that_may_not_look_says_so(database: str) -> None:
    execute(database, "create role stranger login")
    try:
        async with leaving_nothing(database):
            with pytest.raises(jobs.DatabaseUnreachable, match="permission denied"):
                await make(f"{database}&user=stranger", Gate().job).start()
    finally:
        execute(database, "drop role stranger")


def test_an_empty_registry_still_serves(database: str) -> None:
    """It hands back whatever it meets; the command line refuses it earlier."""
    assert len(registry()) == 0
    assert make(database).config.queues == {"default": 5}
