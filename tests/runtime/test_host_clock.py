"""A host whose clock differs from the database's is told of in the log, once."""

from __future__ import annotations

import logging
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from jobs.service import hostclock
from jobs.service.hostclock import HostClock
from jobs.service.link import Link, Target
from tests.runtime.working import logged

HOUR = timedelta(hours=1)


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    return logged(caplog, "jobs.service.clock")


@pytest.mark.parametrize(
    ("by", "said"), [(HOUR, "3600 s behind"), (-HOUR, "3600 s ahead of"), (0 * HOUR, None)]
)
def test_what_differs_is_said_once(
    caplog: pytest.LogCaptureFixture, by: timedelta, said: str | None
) -> None:
    clock = HostClock()
    for _ in range(3):
        clock.compare(datetime.now(UTC) + by, time.time())
    assert [said in one for one in told(caplog)] == ([True] if said else [])


def test_a_change_is_said_and_so_is_its_end(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "jobs.service")
    clock = HostClock()
    for hours in (1, 1, 2, 0, 0):
        clock.compare(datetime.now(UTC) + hours * HOUR, time.time())
    assert len(told(caplog)) == 3
    assert "again" in told(caplog)[-1]


def test_a_slow_answer_is_no_difference(caplog: pytest.LogCaptureFixture) -> None:
    now = time.time()
    for at in (now - 50, now - 25, now):
        HostClock().compare(datetime.fromtimestamp(at, UTC), now - 50)
    assert told(caplog) == []


@pytest.mark.parametrize("ahead", [0.0, 3600.0])
async def test_a_service_compares_when_it_connects(
    database: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, ahead: float
) -> None:
    honest: Any = time.time

    class Shifted:
        @staticmethod
        def time() -> float:
            return float(honest() + ahead)

    monkeypatch.setattr(hostclock, "time", Shifted)
    monkeypatch.setattr("jobs.service.link.time", Shifted)
    target = Target.of(database, "jobs:test")
    for _ in range(2):
        link = Link(target)
        await link.open()
        await link.close()
    assert len(told(caplog)) == (1 if ahead else 0)
