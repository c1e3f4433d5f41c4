"""Relays that are killed, stopped and continued, as processes of their own (O-57)."""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import psycopg
import pytest
from psycopg import Connection

from devkit import nats as nats_server
from devkit.rundir import run_dir
from jobs.cli.serving import loop_factory
from tests.crash.sinks import LOG_DDL
from tests.runtime.relaying import noted, outbox, stage
from tests.runtime.working import Input, job, make, rows
from tests.support.server import Clones
from tests.support.waiting import until
from tests.support.workers import WorkerProcess

pytestmark = pytest.mark.serial

needs_nats = pytest.mark.skipif(nats_server.find() is None, reason="nats-server is not installed")


@pytest.fixture
def queue_database(clones: Clones) -> Iterator[str]:
    with clones.clone() as dsn:
        with psycopg.connect(dsn, autocommit=True) as conn:
            conn.execute(LOG_DDL)
        yield dsn


@pytest.fixture
def relay(
    database: str, queue_database: str, worker_process: Callable[..., WorkerProcess]
) -> Callable[..., WorkerProcess]:
    """Start ``jobs relay`` from `database` to a sink of tests.crash.sinks."""

    def start(sink: str, *options: str, **env: str) -> WorkerProcess:
        given = {"JOBS_DSN": database, "QUEUE_DSN": queue_database, "LOG_DSN": queue_database}
        return worker_process(
            "relay",
            "--sink",
            f"tests.crash.sinks:{sink}",
            *("--lease", "1", "--interval", "0.02", "--idle-poll", "0.1", *options),
            env=given | env,
        )

    return start


def published(queue_database: str) -> list[Any]:
    """What was published, in order."""
    return rows(queue_database, "select pid, batch, id from public.published order by number")


def all_marked(database: str) -> bool:
    return all(row.published_at is not None for row in outbox(database))


def test_killed_after_each_publish_it_repeats_the_same_ids_and_no_job_runs_twice(
    database: str, queue_database: str, relay: Callable[..., WorkerProcess]
) -> None:
    """Some of the jobs live when the batch is repeated, some have finished."""
    ran: list[int] = []

    @job(name="counted", queue="other")
    async def counted(input: Input) -> None:
        ran.append(input.n)

    ids = stage(database, *range(9), handle=counted)
    deaths = 0
    while not all_marked(database):
        process = relay("killing", "--batch", "3", "--until-idle")
        if process.wait() == -signal.SIGKILL:
            deaths += 1
            if deaths % 2:
                with asyncio.Runner(loop_factory=loop_factory()) as runner:
                    worker = make(queue_database, counted, queues={"other": 5})
                    runner.run(worker.run_until_idle())
    assert deaths == 3
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(make(queue_database, counted, queues={"other": 5}).run_until_idle())
    assert sorted(ran) == list(range(9))
    times = Counter(row.id for row in published(queue_database))
    assert times == dict.fromkeys(ids, 2)
    assert [row.outcome for row in outbox(database)] == ["existing"] * 9
    assert [row.published_as for row in outbox(database)] == ids


def test_three_at_once_publish_each_row_once(
    database: str, queue_database: str, relay: Callable[..., WorkerProcess]
) -> None:
    relays = [relay("logging", "--batch", "4") for _ in range(3)]
    for process in relays:
        process.wait_for_output(" serves")
    ids: list[UUID] = []
    for n in range(40):
        ids += stage(database, n)
    until(lambda: all_marked(database), "all rows")
    assert [row.id for row in published(queue_database)] == ids
    for process in relays:
        process.signal(signal.SIGTERM)
    assert [process.wait() for process in relays] == [0, 0, 0]


def test_one_that_is_stopped_past_its_lease_owns_nothing_when_it_goes_on(
    database: str, queue_database: str, relay: Callable[..., WorkerProcess]
) -> None:
    stalled = relay("logging", "--batch", "5", "--name", "stalled", SINK_SECONDS="0.2")
    stalled.wait_for_output(" serves")
    ids = stage(database, *range(30))
    until(lambda: published(queue_database), "the first batch")
    stalled.signal(signal.SIGSTOP)
    others = [relay("logging", "--batch", "5", "--name", f"other-{n}") for n in range(2)]
    until(lambda: all_marked(database), "the others to publish all")
    before = {row.id: (row.published_at, row.published_by) for row in outbox(database)}
    stalled.signal(signal.SIGCONT)
    ids += stage(database, 30)
    until(lambda: all_marked(database), "the last row")
    stalled.signal(signal.SIGTERM)
    assert stalled.wait() == 0
    after = {row.id: (row.published_at, row.published_by) for row in outbox(database)}
    assert {id: after[id] for id in before} == before, "the first stamps stay"
    last_by_stalled = [row.id for row in published(queue_database) if row.pid == stalled.pid]
    assert len(last_by_stalled) <= 10, "the batch it was in is its last"
    assert {row.id for row in published(queue_database)} == set(ids)
    first_seen = list(dict.fromkeys(row.id for row in published(queue_database)))
    assert first_seen == ids, "nothing overtakes"
    jobs_there = rows(queue_database, "select id from jobs.job order by id")
    assert [row.id for row in jobs_there] == sorted(ids)
    for process in others:
        assert process.returncode is None


@pytest.fixture
def place() -> Iterator[Path]:
    with run_dir("sql-jobs-nats") as directory:
        yield directory


@needs_nats
def test_killed_between_publish_and_mark_a_broker_has_each_message_once(
    database: str, relay: Callable[..., WorkerProcess], place: Path
) -> None:
    import nats

    async def messages(url: str) -> list[str]:
        client = await nats.connect(url)
        stream = client.jetstream()
        info = await stream.stream_info("jobs")
        found = []
        for number in range(1, info.state.messages + 1):
            message = await stream.get_msg("jobs", number)
            assert message.headers is not None
            found.append(message.headers["Nats-Msg-Id"])
        await client.close()
        return found

    async def make_stream(url: str) -> None:
        client = await nats.connect(url)
        await client.jetstream().add_stream(name="jobs", subjects=["jobs.>"])
        await client.close()

    with nats_server.running(place) as server:
        asyncio.run(make_stream(server.url))
        ids = stage(database, *range(6))
        deaths = 0
        while not all_marked(database):
            process = relay("killing_nats", "--batch", "2", "--until-idle", NATS_URL=server.url)
            deaths += process.wait() == -signal.SIGKILL
        assert deaths == 3
        assert asyncio.run(messages(server.url)) == [str(id) for id in ids]
    assert {row.outcome for row in outbox(database)} == {"sent"}


def test_a_signal_ends_it_between_batches(
    conn: Connection[Any],
    database: str,
    queue_database: str,
    relay: Callable[..., WorkerProcess],
) -> None:
    process = relay("logging", "--batch", "2", SINK_SECONDS="0.3")
    process.wait_for_output(" serves")
    stage(database, *range(20), handle=noted)
    until(lambda: published(queue_database), "the first batch")
    process.signal(signal.SIGTERM)
    assert process.wait() == 0
    done = [row.id for row in published(queue_database)]
    marked = [row.id for row in outbox(database) if row.published_at is not None]
    assert marked == done, "what was published is marked"
    assert 0 < len(done) < 20
    assert "has stopped" in process.output()
    free = conn.execute("select expires_at <= clock_timestamp() from jobs.relay").fetchone()
    assert free == (True,)
