"""Workers that stand still: a blocked event loop, a stopped process."""

from __future__ import annotations

import re
import signal

import pytest

from tests.crash import app
from tests.crash.bench import Bench
from tests.support.waiting import until


@pytest.mark.serial
def test_a_blocked_loop_does_not_cost_its_neighbours_their_leases(bench: Bench) -> None:
    """O-33: three leases long nothing moves in the loop, and nobody else gets the jobs."""
    naps = bench.enqueue(app.nap, 1, count=9)
    (blocker,) = bench.enqueue(app.block, 4.5)
    first = bench.worker("--queue", "default=10", lease=1.5)
    bench.wait_for("start", 10)
    second = bench.worker("--queue", "default=10", lease=1.5)
    bench.all_settled()
    assert len(bench.events("start")) == 10, "each was started once"
    assert {event.pid for event in bench.events("start")} == {first.pid}
    assert bench.counters() == {"completed": 10}
    assert {job for job in (*naps, blocker) if bench.settled(job).claims == 1} == {*naps, blocker}
    output = first.output()
    named = re.search(r"the event loop has stood still for ([0-9.]+) s in task (\S+);", output)
    assert named, "a warning says who blocks"
    assert named[2] == f"job:block:{blocker}"
    assert "app.py" in output, "and where"
    moved = re.search(r"the event loop moves again after ([0-9.]+) s", output)
    assert moved
    assert float(moved[1]) > 3
    assert second.returncode is None


def test_a_worker_that_slept_past_its_leases_learns_that_it_lost_them(bench: Bench) -> None:
    """O-09 a: it gets nothing back, is told, stops its runs and records nothing."""
    asleep, in_thread, ends = (
        bench.enqueue(kind, seconds)[0]
        for kind, seconds in ((app.nap, 60), (app.polite, 60), (app.nap, 0.5))
    )
    first = bench.worker("--name", "first")
    bench.wait_for("start", 3)
    first.signal(signal.SIGSTOP)
    second = bench.worker("--name", "second", "--drain", "0")
    bench.wait_for("start", 6)
    until(lambda: bench.settled(ends), "the second run to complete")
    first.signal(signal.SIGCONT)
    (cancelled,) = bench.wait_for("cancelled")
    assert (cancelled.pid, cancelled.job, cancelled.claims) == (first.pid, asleep, 1)
    (stopped,) = bench.wait_for("stopped")
    assert (stopped.pid, stopped.job) == (first.pid, in_thread)
    first.signal(signal.SIGTERM)
    assert first.wait() == 0
    output = first.output()
    for job in (asleep, in_thread):
        assert re.search(f"job {job} .* lost its lease and is cancelled", output)
        row = bench.live(job)
        assert (row.worker, row.claims, row.attempt) == ("second", 2, 2)
        assert bench.attempts(job) == [(1, 1, "LeaseLapsed")], "of the lost run nothing is recorded"
    # It either finished and was refused, or was told first.
    assert re.search(
        f"job {ends} .* (not recorded: its lease had been lost|lost its lease)", output
    )
    assert (bench.settled(ends).worker, bench.settled(ends).claims) == ("second", 2)
    assert bench.counters() == {"rescued": 3, "completed": 1}
    assert second.returncode is None
