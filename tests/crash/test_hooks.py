"""A hook across a crash: at most once."""

from __future__ import annotations

from tests.crash import app
from tests.crash.bench import Bench
from tests.support.waiting import until


def test_a_process_that_dies_in_a_hook_takes_it_along(bench: Bench) -> None:
    """The job has ended, the hook has begun once, and no other worker begins it again."""
    (job,) = bench.enqueue(app.hooked)
    first = bench.worker("--name", "first")
    bench.wait_for("hook completed")
    until(lambda: first.returncode is not None, "the death")
    assert bench.settled(job).state == "completed"
    bench.worker("--name", "second")
    (other,) = bench.enqueue(app.nap)
    until(lambda: bench.settled(other), "a job after it")
    assert bench.story(job) == [(1, "start"), (1, "hook completed")]


def test_so_does_one_that_dies_in_the_hook_of_a_job_it_has_buried(bench: Bench) -> None:
    """The first process dies of the job, the second of its hook, and the third calls none."""
    (job,) = bench.enqueue(app.hooked_crash)
    first = bench.worker("--name", "first", wait=False)
    until(lambda: first.returncode is not None, "the death of the first")
    second = bench.worker("--name", "second", wait=False)
    until(lambda: second.returncode is not None, "the death of the second")
    end = bench.settled(job)
    assert (end.state, end.stop_reason) == ("dead", "lease lapsed")
    bench.worker("--name", "third")
    (other,) = bench.enqueue(app.nap)
    until(lambda: bench.settled(other), "a job after it")
    assert bench.story(job) == [(1, "start"), (1, "hook dead")]
