"""O-06: workers whose clocks are ten minutes ahead and behind do what workers with true ones do."""

from __future__ import annotations

import shutil
from collections import Counter
from datetime import datetime, timedelta
from typing import Any

import pytest

from tests.crash import app
from tests.crash.bench import Bench
from tests.support.waiting import until
from tests.support.workers import WorkerProcess

AHEAD, BEHIND = "+10m", "-10m"
POLL = 0.2  # the longest wait of an idle worker of the bench


def start(bench: Bench, shift: str) -> WorkerProcess:
    """A worker whose wall clock is shifted; its monotonic one is not."""
    prefix = ("env", "FAKETIME_DONT_FAKE_MONOTONIC=1", "faketime", "-f", shift)
    worker = bench.worker("--queue", "default=20", prefix=prefix, wait=False, lease=60)
    worker.wait_for_output(" serves ")
    return worker


def shown_by(worker: WorkerProcess) -> datetime:
    """The time in its first log line."""
    return datetime.fromisoformat(worker.output()[:19])


def seconds(value: Any) -> float:
    """An interval of the database in seconds."""
    return float(value.total_seconds())


@pytest.mark.serial
def test_the_whole_of_it(bench: Bench) -> None:
    """One is ten minutes ahead, the other as much behind."""
    if shutil.which("faketime") is None:
        pytest.skip("faketime is not installed (Debian: apt-get install faketime)")
    ahead, behind = start(bench, AHEAD), start(bench, BEHIND)
    apart = shown_by(ahead) - shown_by(behind)
    assert apart > timedelta(minutes=19), "else this test tests nothing"
    now = bench.enqueue(app.nap, 0.02, count=200)
    again = bench.enqueue(app.fail_once_slowly, 0, count=50)
    with bench.conn.transaction():
        later = [
            app.nap.enqueue(bench.conn, app.Nap(), delay=timedelta(seconds=5)).id for _ in range(50)
        ]
    bench.all_settled()
    starts = Counter(event.job for event in bench.events("start"))
    assert starts == Counter(now) + Counter(later) + Counter(again) + Counter(again)
    assert bench.counters() == {"completed": 300, "retried": 50}
    assert len({event.pid for event in bench.events("start")}) == 2, "both have worked"
    for row in bench.rows(
        "select claimed_at - created_at as waited from jobs.settled where id = any(%s)", later
    ):
        assert 5 <= seconds(row.waited) < 5 + 10 * POLL
    for row in bench.rows(
        "select s.claimed_at - a.failed_at as waited from jobs.settled as s"
        " join jobs.attempt as a on a.job_id = s.id where s.id = any(%s)",
        again,
    ):
        # From the settle on, which is a moment after the failure was noted.
        assert 1.9 <= seconds(row.waited) < 2 + 10 * POLL
    assert not bench.rows(
        "select 1 from jobs.settled where settled_at not between clock_timestamp()"
        " - interval '1 minute' and clock_timestamp() or claimed_at > settled_at"
    )


@pytest.mark.parametrize("shift", [AHEAD, BEHIND])
def test_a_live_lease_is_not_taken(bench: Bench, shift: str) -> None:
    """A process that runs ahead would see every lease lapsed, if it were asked."""
    if shutil.which("faketime") is None:
        pytest.skip("faketime is not installed (Debian: apt-get install faketime)")
    holder = bench.worker("--queue", "default=5", lease=2)
    jobs = bench.enqueue(app.nap, 4, count=5)
    bench.wait_for("start", 5)
    start(bench, shift)
    bench.all_settled()
    assert sorted(event.job for event in bench.events("start")) == sorted(jobs)
    assert {event.pid for event in bench.events("start")} == {holder.pid}
    assert bench.counters() == {"completed": 5}


@pytest.mark.parametrize("shift", [AHEAD, BEHIND])
def test_the_registry_goes_by_the_databases_clock(bench: Bench, shift: str) -> None:
    if shutil.which("faketime") is None:
        pytest.skip("faketime is not installed (Debian: apt-get install faketime)")
    start(bench, shift)
    (row,) = until(
        lambda: bench.rows("select beat_at, expires_at from jobs.worker"),
        "the worker to register",
    )
    (clock,) = bench.rows("select clock_timestamp() as now")
    assert timedelta(0) <= clock.now - row.beat_at < timedelta(minutes=1)
    assert row.expires_at - row.beat_at == timedelta(seconds=90)
