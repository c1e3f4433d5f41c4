"""Cancelling what real worker processes run, also when they die on the way."""

from __future__ import annotations

from uuid import UUID

import pytest

from jobs.control import cancel
from tests.crash import app
from tests.crash.bench import Bench
from tests.support.waiting import until


def ended(bench: Bench, job: UUID) -> str:
    """The state in which a job has ended, once it has."""
    row = until(lambda: bench.settled(job), f"the end of {job}")
    return f"{row.state}: {row.stop_reason}"


@pytest.mark.parametrize("handle", [app.nap, app.polite], ids=["async", "thread"])
def test_the_function_stops_and_the_worker_goes_on(bench: Bench, handle: object) -> None:
    bench.worker(lease=2)
    (job,) = bench.enqueue(handle, 3600)
    bench.wait_for("start")
    assert cancel(bench.conn, job).outcome == "requested"
    assert ended(bench, job) == "cancelled: cancel requested"
    stopped = "cancelled" if handle is app.nap else "stopped"
    assert bench.story(job) == [(1, "start"), (1, stopped)]
    (other,) = bench.enqueue(app.nap)
    assert ended(bench, other) == "completed: None"
    assert bench.counters() == {"cancelled": 1, "completed": 1}


def test_a_worker_that_dies_after_the_request_has_no_successor(bench: Bench) -> None:
    first = bench.worker(lease=2)
    (job, other) = bench.enqueue(app.nap, 3600, count=2)
    bench.wait_for("start", 2)
    first.kill()
    assert cancel(bench.conn, job).outcome in ("requested", "cancelled")
    bench.worker(lease=2)
    assert ended(bench, job) == "cancelled: cancel requested"
    bench.wait_for("start", 3)  # the other one is rescued
    assert [event.attempt for event in bench.events("start", other)] == [1, 2]
    assert bench.story(job) == [(1, "start")]
    assert bench.settled(job).revoked == bench.settled(job).claims == 1
    cancel(bench.conn, other)
    assert ended(bench, other) == "cancelled: cancel requested"
