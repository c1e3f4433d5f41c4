"""Publishing to NATS JetStream, on a real server."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import jobs
from devkit import nats as nats_server
from devkit.rundir import run_dir
from jobs.adapters.nats import JetStream
from jobs.cli import main
from tests.runtime.relaying import make, noted, outbox, relaying, stage
from tests.runtime.working import execute, job, until

pytestmark = pytest.mark.skipif(nats_server.find() is None, reason="nats-server is not installed")


@pytest.fixture
def place() -> Iterator[Path]:
    with run_dir("sql-jobs-nats") as directory:
        yield directory


@pytest.fixture
def server(place: Path) -> Iterator[nats_server.NatsServer]:
    with nats_server.running(place) as server:
        yield server


class Broker:
    """A client that looks."""

    def __init__(self, client: Any) -> None:
        self.stream = client.jetstream()

    async def messages(self) -> list[Any]:
        info = await self.stream.stream_info("jobs")
        return [
            await self.stream.get_msg("jobs", number)
            for number in range(1, info.state.messages + 1)
        ]

    async def ids(self) -> list[str]:
        return [message.headers["Nats-Msg-Id"] for message in await self.messages()]


@pytest.fixture
async def broker(server: nats_server.NatsServer) -> AsyncIterator[Broker]:
    import nats

    client = await nats.connect(server.url)
    broker = Broker(client)
    await broker.stream.add_stream(name="jobs", subjects=["jobs.>"])
    yield broker
    await client.close()


async def test_each_row_is_a_message_in_order(
    database: str, server: nats_server.NatsServer, broker: Broker
) -> None:
    parent = f"00-{'a' * 32}-{'b' * 16}-01"
    ids = stage(database, 1, 2, traceparent=parent, enqueued_by="é")
    ids += stage(database, 3, delay=timedelta(hours=1))
    ids += stage(database, 4, run_at=datetime(2100, 1, 1, tzinfo=UTC))
    stats = await make(database, JetStream(server.url)).run_until_idle()
    assert stats.published == 4
    messages = await broker.messages()
    bodies = [json.loads(message.data) for message in messages]
    assert await broker.ids() == [body["id"] for body in bodies] == [str(id) for id in ids]
    assert [body["input"] for body in bodies] == [{"n": n} for n in (1, 2, 3, 4)]
    assert {message.subject for message in messages} == {"jobs.other.noted"}
    assert messages[0].headers["traceparent"] == bodies[0]["traceparent"] == parent
    assert "traceparent" not in messages[2].headers
    assert (bodies[0]["name"], bodies[0]["queue"], bodies[0]["enqueued_by"]) == (
        "noted",
        "other",
        "é",
    )
    assert 3500 < bodies[2]["delay"] <= 3600
    assert bodies[3]["run_at"] == "2100-01-01T00:00:00+00:00"
    assert {row.outcome for row in outbox(database)} == {"sent"}
    assert [row.published_as for row in outbox(database)] == ids


async def test_a_repeat_is_dropped_by_the_broker(
    database: str, server: nats_server.NatsServer, broker: Broker
) -> None:
    ids = stage(database, 1, 2)
    for _ in range(2):
        await make(database, JetStream(server.url)).run_until_idle()
        execute(
            database,
            "update jobs.outbox set published_at = null, outcome = null, published_as = null",
        )
    assert await broker.ids() == [str(id) for id in ids]


async def test_names_that_a_subject_cannot_have(
    database: str, server: nats_server.NatsServer, broker: Broker
) -> None:
    odd = job(name="a.b *>é", queue="x y")(noted.fn)
    stage(database, 1, handle=odd)
    await make(database, JetStream(server.url)).run_until_idle()
    [message] = await broker.messages()
    assert message.subject == "jobs.x%20y.a%2Eb%20%2A%3E%C3%A9"


async def test_a_subject_of_ones_own(
    database: str, server: nats_server.NatsServer, broker: Broker
) -> None:
    stage(database, 1)
    sink = JetStream(server.url, subject=lambda message: f"jobs.own.{message.name}")
    await make(database, sink).run_until_idle()
    [message] = await broker.messages()
    assert message.subject == "jobs.own.noted"


@pytest.mark.parametrize("subject", ["", "a b", "a.*", "a..b"])
async def test_a_bad_subject_is_a_refused_row(
    database: str, server: nats_server.NatsServer, broker: Broker, subject: str
) -> None:
    del broker
    stage(database, 1)
    stats = await make(
        database, JetStream(server.url, subject=lambda _: subject), park_after=1
    ).run_until_idle()
    assert (stats.published, stats.parked) == (0, 1)
    assert "is no NATS subject" in outbox(database)[0].last_error


def test_a_bad_prefix_is_refused_at_once() -> None:
    with pytest.raises(jobs.ConfigError, match="prefix"):
        JetStream("nats://x", subject="jobs.>")


async def test_a_message_that_is_too_large_is_refused_and_the_next_goes_on(
    database: str, server: nats_server.NatsServer, broker: Broker
) -> None:
    ids = stage(database, 1, 2)
    execute(
        database,
        "update jobs.outbox set input = json_build_object('n', repeat('x', 2000000)) where id = %s",
        ids[0],
    )
    stats = await make(database, JetStream(server.url), park_after=1).run_until_idle()
    assert (stats.published, stats.refused, stats.parked) == (1, 1, 1)
    assert await broker.ids() == [str(ids[1])]


async def test_without_a_stream_nothing_passes_and_nothing_is_refused(
    database: str, server: nats_server.NatsServer
) -> None:
    import nats

    ids = stage(database, 1)
    async with relaying(database, JetStream(server.url)) as relay:
        await until(lambda: relay.stats().failed >= 2, "two tries")
        assert "no stream takes the subject jobs.other.noted" in outbox(database)[0].last_error
        assert relay.stats().refused == 0
        client = await nats.connect(server.url)
        broker = Broker(client)
        await broker.stream.add_stream(name="jobs", subjects=["jobs.>"])
        await until(lambda: relay.stats().published == 1, "the message")
        assert await broker.ids() == [str(ids[0])]
        await client.close()


async def test_a_server_that_goes_away_and_comes_back(database: str, place: Path) -> None:
    import nats

    port = nats_server.free_port()
    with nats_server.running(place, port=port) as server:
        client = await nats.connect(server.url)
        await client.jetstream().add_stream(name="jobs", subjects=["jobs.>"])
        await client.close()
        ids = stage(database, 1)
        relay = make(database, JetStream(server.url))
        await relay.start()
        await until(lambda: relay.stats().published == 1, "the first")
    ids += stage(database, 2)
    await until(lambda: relay.stats().failed >= 2, "two tries")
    with nats_server.running(place, port=port) as server:
        await until(lambda: relay.stats().published == 2, "the second")
        relay.stop()
        await relay.wait()
        client = await nats.connect(server.url)
        assert await Broker(client).ids() == [str(id) for id in ids]
        await client.close()


async def test_no_server_fails_the_start(database: str) -> None:
    sink = JetStream(f"nats://127.0.0.1:{nats_server.free_port()}")
    with pytest.raises(jobs.DatabaseUnreachable, match="no NATS server answers"):
        await make(database, sink).start()


async def test_without_the_extra_the_command_says_what_to_install(
    database: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delitem(sys.modules, "jobs.adapters.nats", raising=False)
    monkeypatch.setitem(sys.modules, "nats", None)
    monkeypatch.setitem(sys.modules, "nats.aio.client", None)
    assert main(["relay", "--dsn", database, "--nats", "nats://x"]) == 2
    assert "pip install 'sql-jobs[nats]'" in capsys.readouterr().err
