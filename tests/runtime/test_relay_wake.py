"""How a relay hears of stages, and what an idle one sends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import psycopg
import pytest

import jobs
from jobs.relay import config
from jobs.service import listener
from tests.runtime.relaying import Taker, outbox, queued, relaying, stage
from tests.runtime.working import logged, until
from tests.support.server import Clones

MINUTE = timedelta(minutes=1)


def live(relay: jobs.Relay) -> bool:
    """Whether it hears."""
    return relay._listener is not None and relay._listener.live


@pytest.fixture
def sent(database: str) -> Iterator[Callable[[], int]]:
    """How many statements were sent in the database since the last call, transactions aside."""
    with psycopg.connect(database, autocommit=True) as conn:
        conn.execute("create extension if not exists pg_stat_statements")

        def count() -> int:
            row = conn.execute(
                "select coalesce(sum(calls), 0) from pg_stat_statements as s"
                " join pg_database as d on d.oid = s.dbid and d.datname = current_database()"
                " where query like '%/* jobs:%' and query not like '%pg_stat_statements%'"
            ).fetchone()
            assert row is not None
            since, count.before = int(row[0]) - count.before, int(row[0])  # type: ignore[attr-defined]
            return since

        count.before = 0  # type: ignore[attr-defined]
        yield count


class TestIdle:
    """B10.08: at most 12 statements a minute with a live wake and 30 without."""

    FASTER = 20

    @pytest.mark.serial
    @pytest.mark.parametrize("before", ["never used", "has published"])
    @pytest.mark.parametrize(("listen", "most"), [("auto", 12), (False, 30)])
    async def test_statements_an_idle_minute(
        self,
        database: str,
        sent: Callable[[], int],
        monkeypatch: pytest.MonkeyPatch,
        listen: Any,
        most: int,
        before: str,
    ) -> None:
        faster = self.FASTER
        monkeypatch.setattr(config, "IDLE_POLL", config.IDLE_POLL / faster)
        monkeypatch.setattr(config, "LIVE_POLL", config.LIVE_POLL / faster)
        monkeypatch.setattr(listener, "PING_EVERY", listener.PING_EVERY / faster)
        interval = timedelta(seconds=0.2) / faster
        async with relaying(database, interval=interval, idle_poll=None, listen=listen) as relay:
            await until(lambda: not listen or live(relay), "the probe to arrive")
            if before == "has published":
                stage(database, 1)
                await until(lambda: relay.stats().published == 1, "the row")
            await asyncio.sleep(20 / faster)  # the waits double up to the ceiling
            sent()
            await asyncio.sleep(60 / faster)
            assert most * 0.5 <= sent() <= most

    def test_the_numbers(self) -> None:
        assert (timedelta(seconds=2), timedelta(seconds=5)) == (config.IDLE_POLL, config.LIVE_POLL)


class TestWake:
    async def test_a_stage_is_published_long_before_the_next_look(self, database: str) -> None:
        async with relaying(database, interval=MINUTE, idle_poll=MINUTE) as relay:
            await until(lambda: live(relay), "the probe to arrive")
            for n in range(3):
                stage(database, n)
                await until(lambda: relay.stats().published == n + 1, "the row")  # noqa: B023
                await asyncio.sleep(0.3)

    async def test_an_enqueue_is_no_stage(self, database: str) -> None:
        """Notifications of queues do not make an idle relay look."""
        async with relaying(database, Taker(), interval=MINUTE, idle_poll=MINUTE) as relay:
            await until(lambda: live(relay), "the probe to arrive")
            looks: list[int] = []
            relay._publisher._claim = lambda: looks.append(1)  # type: ignore[assignment, func-returns-value]
            with psycopg.connect(database, autocommit=True) as conn:
                conn.execute("select pg_notify('jobs_wake', 'some queue')")
            await asyncio.sleep(0.3)
            assert looks == []
            del relay._publisher._claim

    async def test_the_workers_of_the_queue_are_woken(self, database: str, clones: Clones) -> None:
        with clones.clone() as queue, psycopg.connect(queue, autocommit=True) as ear:
            ear.execute("listen jobs_wake")
            async with relaying(database, queue):
                ids = stage(database, 1)
                await until(lambda: queued(queue) == ids, "the job")
            heard = [one.payload for one in ear.notifies(timeout=10, stop_after=1)]
        assert heard == ["other"]

    async def test_nothing_is_lost_while_nothing_can_be_heard(
        self, database: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        async with relaying(database, listen="host=/nowhere dbname=x"):
            stage(database, 1)
            await until(
                lambda: all(row.published_at for row in outbox(database)), "the row to be found"
            )
            await until(lambda: logged(caplog, "jobs.relay.wake_lost"), "the warning")
