"""A relay starts and stops, and what its settings mean."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any

import pytest

import jobs
import jobs.outbox
from jobs.relay import Message, Published
from tests.runtime.relaying import (
    Taker,
    make,
    outbox,
    queued,
    relaying,
    stage,
)
from tests.runtime.working import execute, leaving_nothing, rows, until
from tests.support.server import Clones
from tests.support.waiting import PATIENCE_SECONDS

SECOND = timedelta(seconds=1)


@pytest.fixture
def queue_database(clones: Clones) -> Iterator[str]:
    """Another database than the outbox's."""
    with clones.clone() as dsn:
        yield dsn


@pytest.fixture(params=["the same database", "another database"])
def to(request: pytest.FixtureRequest, database: str, queue_database: str) -> str:
    return database if request.param == "the same database" else queue_database


async def cancelled() -> None:
    """Wait for something that is cancelled meanwhile, by nobody who means the one that waits."""
    waited_for = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_soon(waited_for.cancel)
    await waited_for


class TestLife:
    async def test_a_stop_finishes_and_marks_the_batch_in_flight(self, database: str) -> None:
        going, go = asyncio.Event(), asyncio.Event()

        class Slow(Taker):
            async def publish(self, messages: Sequence[Message]) -> Published:
                going.set()
                await go.wait()
                return await super().publish(messages)

        taker = Slow()
        stage(database, 1, 2, 3)
        async with relaying(database, taker, batch=2) as relay:
            await going.wait()
            relay.stop()
            go.set()
        assert taker.numbers == [1, 2]
        assert [row.published_at is not None for row in outbox(database)] == [True, True, False]
        assert taker.closed == 1

    @pytest.mark.parametrize("how", ["budget", "second stop", "cancelled"])
    async def test_one_that_hangs_is_given_up(self, database: str, how: str) -> None:
        going = asyncio.Event()

        class Hanging(Taker):
            async def publish(self, messages: Sequence[Message]) -> Published:
                going.set()
                await asyncio.Event().wait()
                return await super().publish(messages)

        taker = Hanging()
        stage(database, 1)
        drain = timedelta(milliseconds=50) if how == "budget" else timedelta(hours=1)
        relay = make(database, taker, drain=drain, lease=timedelta(hours=1))
        running = asyncio.create_task(relay.run(signals=False))
        await going.wait()
        if how == "cancelled":
            running.cancel()
        else:
            relay.stop()
        if how == "second stop":
            relay.stop()
        await asyncio.wait({running})
        assert running.cancelled() == (how == "cancelled")
        assert relay.stats().state == "stopped"
        assert [row.published_at for row in outbox(database)] == [None]
        next_one = Taker()
        await make(database, next_one).run_until_idle()
        assert next_one.numbers == [1]

    async def test_it_starts_once(self, database: str) -> None:
        relay = make(database)
        await relay.run_until_idle()
        with pytest.raises(jobs.ConfigError, match="cannot be started again"):
            await relay.start()

    async def test_a_sink_that_does_not_open_fails_the_start(self, database: str) -> None:
        class Shut(Taker):
            async def open(self) -> None:
                await super().open()
                raise ConnectionRefusedError("no broker")

        shut = Shut()
        with pytest.raises(jobs.DatabaseUnreachable, match="no broker"):
            await make(database, shut).start()
        assert shut.closed == 1

    async def test_a_stop_ends_the_wait_for_a_sink_that_does_not_open(self, database: str) -> None:
        opening = asyncio.Event()

        class Hanging(Taker):
            async def open(self) -> None:
                opening.set()
                await asyncio.Event().wait()

        hanging = Hanging()
        relay = make(database, hanging)
        async with leaving_nothing(database):
            running = asyncio.create_task(relay.run(signals=False))
            await opening.wait()
            relay.stop()
            async with asyncio.timeout(PATIENCE_SECONDS):
                await running
        assert (relay.stats().state, hanging.closed) == ("stopped", 1)

    async def test_a_sink_that_something_cancels_from_within(self, database: str) -> None:
        """A client that cancels what it waits for, where its connection ends for example."""

        class Cancelling(Taker):
            async def publish(self, messages: Sequence[Message]) -> Published:
                if not self.batches:
                    self.batches.append([])
                    await cancelled()
                return await super().publish(messages)

            async def close(self) -> None:
                await super().close()
                await cancelled()

        taker = Cancelling()
        stage(database, 1)
        relay = make(database, taker)
        async with leaving_nothing(database), relay:
            await until(lambda: taker.numbers == [1], "the second try")
            assert relay.stats().failed == 1
        assert (relay.stats().state, taker.closed) == ("stopped", 1)

    async def test_and_one_whose_start_is_cancelled_so(self, database: str) -> None:
        class Cancelling(Taker):
            async def open(self) -> None:
                await cancelled()

        with pytest.raises(jobs.DatabaseUnreachable, match="cancelled from within"):
            await make(database, Cancelling()).run(signals=False)

    async def test_an_unreachable_queue_fails_the_start(self, database: str) -> None:
        relay = make(database, "host=/nowhere dbname=none connect_timeout=1")
        with pytest.raises(jobs.DatabaseUnreachable):
            await relay.start()

    async def test_the_queue_may_go_away_and_come_back(
        self, database: str, queue_database: str
    ) -> None:
        ids = stage(database, 1)
        async with relaying(database, queue_database) as relay:
            await until(lambda: relay.stats().published == 1, "the first")
            execute(
                queue_database,
                "select pg_terminate_backend(pid) from pg_stat_activity where datname ="
                " current_database() and pid <> pg_backend_pid()",
            )
            ids += stage(database, 2)
            await until(lambda: queued(queue_database) == ids, "the second")


class TestSettings:
    def test_defaults(self) -> None:
        config = jobs.Relay("dbname=x").config
        assert config.batch == 100
        assert config.interval == timedelta(milliseconds=200)
        assert config.lease == timedelta(seconds=30)
        assert config.drain == timedelta(seconds=10)
        assert config.keep == timedelta(days=7)
        assert config.park_after == 10
        assert (config.idle_poll, config.live_poll) == (2 * SECOND, 5 * SECOND)

    def test_a_queue_beside_the_outbox_may_be_named(self) -> None:
        """Then publish and mark are one transaction, as without ``to``."""
        assert jobs.Relay("dbname=x", "dbname=x")._sink is None
        assert jobs.Relay("dbname=x", "dbname=y")._sink is not None

    def test_a_name_is_its_own(self) -> None:
        assert jobs.Relay("dbname=x").name != jobs.Relay("dbname=x").name

    @pytest.mark.parametrize(
        ("field", "value"),
        [
            ("batch", 0),
            ("batch", 10_001),
            ("batch", True),
            ("batch", 1.5),
            ("interval", timedelta(0)),
            ("interval", 0.2),
            ("idle_poll", timedelta(milliseconds=1)),
            ("lease", timedelta(0)),
            ("lease", timedelta(days=-1)),
            ("lease", 30),
            ("drain", timedelta(days=-1)),
            ("keep", timedelta(days=-1)),
            ("park_after", 0),
            ("name", ""),
            ("name", "a\0"),
            ("listen", True),
            ("to", 5),
            ("outbox", 5),
            ("outbox", "=="),
        ],
    )
    def test_what_cannot_be_kept_is_refused(self, field: str, value: Any) -> None:
        given: dict[str, Any] = {"outbox": "dbname=x", field: value}
        name = "database" if value == 5 and field == "outbox" else field
        with pytest.raises(jobs.ConfigError, match="connection string" if value == "==" else name):
            jobs.Relay(**given)

    async def test_the_lease_is_what_was_asked_for(self, database: str) -> None:
        stage(database, 1)
        async with relaying(database, Taker(), lease=timedelta(hours=3)) as relay:
            await until(lambda: relay.stats().published, "the row")
            [row] = rows(database, "select expires_at - now() as left, holder from jobs.relay")
            assert timedelta(hours=2) < row.left <= timedelta(hours=3)
            assert row.holder == relay.name
