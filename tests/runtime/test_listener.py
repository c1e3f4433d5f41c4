"""The parts of the wake by themselves: a listener without a worker, and the pace of the looks."""

from __future__ import annotations

import asyncio
import gc
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import psycopg
import pytest

from jobs.service import listener
from jobs.service.link import Target
from jobs.service.listener import Errand, Listener
from jobs.service.pace import Pace
from tests.runtime.working import until


class Ears:
    """Stands in for the claim loop of a worker."""

    def __init__(self, database: str) -> None:
        self.database = database
        self.heard: list[str] = []
        self.count = 0
        self.trusted: list[bool] = []
        self.keep = True

    def hear(self, queue: str) -> None:
        self.count += 1
        if self.keep:
            self.heard.append(queue)

    def trust(self, live: bool) -> None:
        self.trusted.append(live)

    def errand(self, errand: Errand) -> asyncio.Future[Exception | None]:
        async def send() -> Exception | None:
            async with await psycopg.AsyncConnection.connect(self.database) as conn:
                await errand(conn)
            return None

        return asyncio.ensure_future(send())


class TestNothingIsEaten:
    """O-29."""

    @asynccontextmanager
    async def listening(self, database: str) -> AsyncIterator[Ears]:
        ears = Ears(database)
        made = Listener(Target.of(database, "jobs:ear"), ears, "w")
        made.start()
        try:
            await until(lambda: ears.trusted, "the probe to arrive")
            yield ears
        finally:
            await made.stop()

    async def test_what_comes_during_a_statement_on_the_same_session(
        self, database: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The statement takes most of the time, and all 200 come while it runs or between."""
        during: list[int] = []

        async def slow(conn: Any) -> None:
            before = ears.count
            await conn.execute("select pg_sleep(0.2)")
            during.append(ears.count - before)

        monkeypatch.setattr(listener, "PING_EVERY", 0.001)
        async with self.listening(database) as ears:
            monkeypatch.setattr(listener, "_ping", slow)
            await until(lambda: len(during) > 1, "the statement to run")
            async with await psycopg.AsyncConnection.connect(database, autocommit=True) as conn:
                for number in range(200):
                    await conn.execute("select pg_notify('jobs_wake', %s)", [str(number)])
                    await asyncio.sleep(0.005)
            await until(lambda: ears.count == 200, "all of them")
        assert ears.heard == [str(number) for number in range(200)]
        assert max(during) > 0

    @pytest.mark.parametrize(
        "rounds",
        [
            pytest.param(1, id="thirty_thousand"),
            pytest.param(34, id="a_million", marks=[pytest.mark.slow, pytest.mark.timeout(600)]),
        ],
    )
    async def test_many_of_them_leave_no_memory_behind(self, database: str, rounds: int) -> None:
        async with self.listening(database) as ears:
            ears.keep = False

            async def send(count: int) -> int:
                before = ears.count
                async with await psycopg.AsyncConnection.connect(database) as conn:
                    await conn.execute(
                        "select pg_notify('jobs_wake', n::text) from generate_series(1, %s) as n",
                        [count],
                    )
                await until(lambda: ears.count == before + count, "all of them")
                gc.collect()
                return tracemalloc.get_traced_memory()[0]

            tracemalloc.start()
            try:
                after_few = await send(1_000)
                for _ in range(rounds):
                    assert await send(30_000) - after_few < 100_000
            finally:
                tracemalloc.stop()


class TestPace:
    def test_after_something_was_heard_waits_double_from_far_below_the_floor(self) -> None:
        pace = Pace(0.25, 5.0)
        waits = [pace.nothing() for _ in range(7)]
        assert waits == [0.25, 0.5, 1.0, 2.0, 4.0, 5.0, 5.0]
        pace.heard()
        waits = [pace.nothing() for _ in range(11)]
        assert waits == [0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.0, 5.0]

    def test_a_lower_ceiling_holds_at_once(self) -> None:
        pace = Pace(0.25, 5.0)
        for _ in range(7):
            pace.nothing()
        pace.ceiling = 2.0
        assert pace.nothing() == 2.0
