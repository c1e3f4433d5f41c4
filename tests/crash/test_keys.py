"""Concurrency keys with real processes: the slot of a job is its lease, and goes where it goes."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg

from tests.crash import app
from tests.crash.bench import Bench
from tests.support.waiting import until

LEASE = 1.0
_RUNNING = "select count(*) from jobs.job where state = 'running' and concurrency_key is not null"


@contextmanager
def watched(bench: Bench) -> Iterator[list[int]]:
    """How many keyed jobs run, in one statement every 20 ms, during the block."""
    seen: list[int] = []
    over = threading.Event()

    def look() -> None:
        with psycopg.connect(bench.dsn, autocommit=True) as conn:
            while not over.wait(0.02):
                row = conn.execute(_RUNNING).fetchone()
                assert row is not None
                seen.append(row[0])

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield seen
    finally:
        over.set()
        thread.join()


def states(bench: Bench) -> dict[str, int]:
    """How many live jobs are in which state."""
    rows = bench.rows("select state, count(*)::int as jobs from jobs.job group by state")
    return {row.state: row.jobs for row in rows}


def slots(bench: Bench) -> int:
    """How many slots are held."""
    return len(bench.rows("select 1 from jobs.slot"))


def test_a_killed_holder_does_not_stand_in_its_own_way(bench: Bench) -> None:
    """O-04: it is rescued when its lease has lapsed, and then the next one runs."""
    (first,) = bench.enqueue(app.one_at_a_time, 30)
    worker = bench.worker(lease=LEASE)
    bench.wait_for("start")
    worker.kill()
    bench.conn.execute("update jobs.job set input = '{}'")  # its second attempt takes no time
    (second,) = bench.enqueue(app.one_at_a_time)
    bench.worker(lease=LEASE)
    with watched(bench) as seen:
        bench.all_settled()
    assert bench.story(first) == [(1, "start"), (2, "start"), (2, "end")]
    assert bench.story(second) == [(1, "start"), (1, "end")]
    ends = [(event.job, event.what) for event in bench.events()]
    assert ends.index((first, "end")) < ends.index((second, "start"))
    assert max(seen) <= 1
    until(lambda: slots(bench) == 0, "the slot to be let go")


def test_a_job_of_ten_leases_keeps_its_slot(bench: Bench) -> None:
    """O-35 (a): slot and lease are the same fact, and there is no other expiry."""
    (first,) = bench.enqueue(app.one_at_a_time, 10 * LEASE)
    waiting = bench.enqueue(app.one_at_a_time, 0.05, count=4)
    for name in ("one", "two"):
        bench.worker("--name", name, lease=LEASE)
    with watched(bench) as seen:
        until(lambda: bench.settled(first) is not None, "the long one to end", timeout=30 * LEASE)
        bench.all_settled()
    assert bench.story(first) == [(1, "start"), (1, "end")]
    assert len(seen) > 50
    assert max(seen) == 1, "never two at once"
    assert [event.job for event in bench.events("start")] == [first, *waiting], "in their order"
    assert slots(bench) == 0


def test_a_job_that_is_handed_back_is_claimable_at_once(bench: Bench) -> None:
    """O-35 (b): nobody is blocked without a holder, and another worker goes on with it."""
    (first,) = bench.enqueue(app.one_at_a_time, 30)
    bench.enqueue(app.one_at_a_time, 0.05, count=4)
    worker = bench.worker("--name", "one", "--drain", "0.1", lease=30)
    bench.wait_for("start")
    until(lambda: states(bench) == {"running": 1, "blocked": 4}, "the others to be parked")
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0
    assert bench.live(first).state == "ready"
    assert bench.live(first).attempt == 0
    assert slots(bench) == 0
    assert states(bench) == {"ready": 1, "blocked": 4}, "it goes before those that wait"
    bench.conn.execute("update jobs.job set input = '{}' where id = %s", [first])
    bench.worker("--name", "two", lease=30)
    with watched(bench) as seen:
        bench.all_settled()
    assert bench.events("start")[1].job == first, "the same job is the next one"
    assert max(seen, default=1) <= 1
    assert slots(bench) == 0


def test_a_worker_that_is_killed_between_commit_and_release_strands_nobody(bench: Bench) -> None:
    """What it leaves is a slot without a job: a sweep lets the next one out within 5 s."""
    (first,) = bench.enqueue(app.one_at_a_time, 30)
    bench.enqueue(app.one_at_a_time)
    worker = bench.worker(lease=30)
    bench.wait_for("start")
    until(lambda: states(bench) == {"running": 1, "blocked": 1}, "the other to be parked")
    worker.kill()
    bench.conn.execute("delete from jobs.job where id = %s", [first])  # as its commit would have
    assert slots(bench) == 1
    bench.worker(lease=30)
    begun = time.monotonic()
    bench.all_settled()
    assert time.monotonic() - begun < 15
    assert slots(bench) == 0
