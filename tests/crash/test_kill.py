"""A worker that dies loses nothing: SIGKILL, rescue, burial, and workers of one name."""

from __future__ import annotations

import itertools

import pytest

from tests.crash import app
from tests.crash.bench import Bench
from tests.support.waiting import until


@pytest.mark.serial
def test_a_killed_workers_job_is_rescued_on_time(bench: Bench) -> None:
    """O-02 a: nothing but the job's own row says who holds it and until when."""
    workers = {name: bench.worker("--name", name) for name in ("one", "two")}
    (job,) = bench.enqueue(app.nap, 60)
    bench.wait_for("start")
    workers.pop(bench.live(job).worker).kill()
    killed_with = bench.live(job)
    bench.wait_for("start", 2)
    row = bench.live(job)
    assert (row.attempt, row.claims, row.revoked) == (2, 2, 1)
    assert [row.worker] == list(workers)
    assert row.last_error.startswith("LeaseLapsed: ")
    assert bench.attempts(job) == [(1, 1, "LeaseLapsed")]
    assert row.claimed_at >= killed_with.lease_expires_at, "taken before its lease had ended"
    late = (row.claimed_at - killed_with.lease_expires_at).total_seconds()
    assert late < 1, "one look at the queues later, and no more"
    assert bench.counters() == {"rescued": 1}


def test_a_job_that_kills_its_workers_is_buried(bench: Bench) -> None:
    (job,) = bench.enqueue(app.nap, 60)
    for number in range(1, 4):
        worker = bench.worker("--name", f"w{number}")
        bench.wait_for("start", number)
        worker.kill()
    bench.worker("--name", "last")
    end = until(lambda: bench.settled(job), "the burial")
    assert (end.state, end.stop_reason, end.attempt) == ("dead", "lease lapsed", 3)
    assert bench.attempts(job) == [(n, n, "LeaseLapsed") for n in (1, 2, 3)]
    assert bench.story(job) == [(1, "start"), (2, "start"), (3, "start")]
    assert bench.counters() == {"rescued": 2, "dead": 1}


def test_a_job_that_kills_its_worker_ends_none_that_waited_beside_it(bench: Bench) -> None:
    """Not even where one attempt is all there is: claimed ahead is not begun."""
    before = bench.enqueue(app.quick, count=200)
    (bad,) = bench.enqueue(app.crash)
    behind = bench.enqueue(app.quick, count=300)
    first = bench.worker("--name", "first", "--queue", "default=2")
    bench.wait_for("crash")
    first.wait(15)
    (waited,) = bench.rows("select count(*) from jobs.job where state = 'running' and ahead")
    assert waited.count > 50, "many were claimed ahead"
    second = bench.worker("--name", "second", "--queue", "default=2")
    bench.wait_for("crash", 2)  # whether it had begun the first time nobody knows
    second.wait(15)
    bench.worker("--name", "last", "--queue", "default=2")
    bench.all_settled()
    assert bench.settled(bad).state == "dead"
    states = [bench.settled(one).state for one in [*before, *behind]]
    # What was claimed for a free slot has begun: the first twenty, and two beside each crash.
    assert states.count("dead") <= 24
    assert set(states) == {"completed", "dead"} or set(states) == {"completed"}


@pytest.mark.serial
def test_renewed_jobs_are_never_rescued(bench: Bench) -> None:
    """O-02 b: also after a rescue, whose old lease is long over."""
    jobs = bench.enqueue(app.nap, 4, count=8)
    first = bench.worker("--name", "first", "--queue", "default=4")
    bench.wait_for("start", 4)
    first.kill()
    for name in ("second", "third"):
        bench.worker("--name", name, "--queue", "default=8")
    bench.all_settled()
    starts = {job: list(bench.events("start", job)) for job in jobs}
    assert sorted(len(s) for s in starts.values()) == [1] * 4 + [2] * 4
    assert sorted(len(bench.attempts(job)) for job in jobs) == [0] * 4 + [1] * 4
    assert len(bench.events("end")) == 8, "each attempt that was not killed has come to its end"
    assert bench.counters() == {"rescued": 4, "completed": 8}


@pytest.mark.serial
def test_a_lease_stays_well_above_its_end(bench: Bench) -> None:
    """O-05: renewals come in time for two of them to fail."""
    (job,) = bench.enqueue(app.nap, 3)
    bench.worker(lease=2)
    bench.wait_for("start")
    left = [
        bench.rows(
            "select extract(epoch from lease_expires_at - clock_timestamp())::float as left"
            " from jobs.job where id = %s",
            job,
        )[0].left
    ]
    while rows := bench.rows(
        "select extract(epoch from lease_expires_at - clock_timestamp())::float as left"
        " from jobs.job where id = %s and lease_expires_at is not null",
        job,
    ):
        left.append(rows[0].left)
    assert len(left) > 100
    assert min(left) > 2 / 3
    assert sum(b > a for a, b in itertools.pairwise(left)) >= 3, "it was renewed again and again"


def test_a_restart_under_the_same_name_is_somebody_else(bench: Bench) -> None:
    """O-03: the renewals of a new process do not keep the jobs of its dead namesake alive."""
    (old,) = bench.enqueue(app.nap, 60)
    first = bench.worker("--name", "web-0", "--queue", "default=1")
    bench.wait_for("start")
    (new,) = bench.enqueue(app.nap, 60)
    first.kill()
    bench.worker("--name", "web-0", "--queue", "default=2")
    bench.wait_for("start", 3)
    assert bench.story(old) == [(1, "start"), (2, "start")]
    assert bench.story(new) == [(1, "start")]
    assert bench.attempts(old) == [(1, 1, "LeaseLapsed")]


@pytest.mark.serial
def test_two_live_workers_of_one_name_leave_each_other_alone(bench: Bench) -> None:
    """O-03, second part."""
    jobs = bench.enqueue(app.nap, 3, count=6)
    one = bench.worker("--name", "web-0", "--queue", "default=3")
    two = bench.worker("--name", "web-0", "--queue", "default=3")
    bench.all_settled()
    starts = bench.events("start")
    assert {event.pid for event in starts} == {one.pid, two.pid}
    assert sorted(event.job for event in starts) == sorted(jobs), "none was started twice"
    assert len(bench.events("end")) == 6
    assert bench.counters() == {"completed": 6}
