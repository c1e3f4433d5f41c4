"""What makes a worker look at once, in a world whose next poll is a minute away."""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta
from typing import Any

import pytest

import jobs
from jobs.worker import claimer
from tests.runtime.test_wake import FAR, hearing, live
from tests.runtime.working import Gate, Input, Table, job, leaving_nothing, make, serving, until

times: list[float] = []


@pytest.fixture(autouse=True)
def _nothing_happened() -> None:
    times.clear()


def failing(delay: timedelta) -> Any:
    """A job that fails once, and is tried again after so long."""

    @job(retry=jobs.Retry(attempts=2, backoff="fixed", delay=delay, jitter=False))
    async def fails_once(_: Input) -> None:
        times.append(time.monotonic())
        if len(times) == 1:
            raise ValueError("on purpose")

    return fails_once


@pytest.mark.parametrize("seconds", [0, 0.4, 1.5])
async def test_a_retry_that_is_due(database: str, seconds: float) -> None:
    handle = failing(timedelta(seconds=seconds))
    Table(database).enqueue(handle)
    async with serving(database, handle, **FAR, listen=False) as worker:
        await until(lambda: worker.stats().completed == 1, "the second attempt")
    assert times[1] - times[0] >= seconds


async def test_only_so_many_retries_are_waited_for(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others are found by the looks that there are."""
    monkeypatch.setattr(claimer, "_MOST_EXPECTED", 2)
    async with serving(database, **FAR, listen=False) as worker:
        for _ in range(5):
            worker._claimer.expect(timedelta(seconds=30))
        assert worker._claimer._expected == 2
        worker._claimer.expect(timedelta(hours=1))
        assert worker._claimer._expected == 2


async def test_what_a_worker_that_stops_hands_back(database: str) -> None:
    """It tells the others, who may be idle."""
    gate = Gate()
    options: dict[str, Any] = FAR | {"lease": timedelta(hours=1), "drain": timedelta(0)}
    async with leaving_nothing(database), make(database, gate.job, **options) as other:
        await until(lambda: live(other), "the probe to arrive")
        other._claimer.hear = lambda _: None  # type: ignore[method-assign]  # not of the enqueue
        async with make(database, gate.job, **options) as first:
            await until(lambda: live(first), "the probe to arrive")
            await asyncio.sleep(0.2)
            Table(database).enqueue(gate.job)
            await until(lambda: gate.started, "the start")
            assert (first.stats().in_flight, other.stats().in_flight) == (1, 0)
            del other._claimer.hear  # type: ignore[method-assign]
            await asyncio.sleep(0.3)
        assert first.stats().released == 1
        await until(lambda: other.stats().in_flight == 1, "the other one to have it")
        gate.open.set()
        await until(lambda: other.stats().completed == 1, "the end")


async def test_an_enqueue_that_is_heard_in_the_middle_of_a_look(database: str) -> None:
    """B9.08: that look has missed it, and another one follows."""
    gate = Gate()
    gate.open.set()
    async with hearing(database, gate.job) as worker:
        send, looks = worker._claimer._claim, []

        async def late_answer(*asked: Any) -> Any:
            found = await send(*asked)
            looks.append(len(found))
            if len(looks) == 1:
                Table(database).enqueue(gate.job)
                await asyncio.sleep(0.3)  # time to hear of it
            return found

        worker._claimer._claim = late_answer  # type: ignore[method-assign]
        worker._claimer.wake()
        await until(lambda: worker.stats().completed == 1, "the job")
    assert looks[:2] == [0, 1]
