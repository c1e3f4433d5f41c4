"""O-32: SIGTERM at each point of a worker's life."""

from __future__ import annotations

import signal
import time

import pytest

from jobs.cli.serving import LEFT
from jobs.worker.farewell import GRACE
from tests.crash import app
from tests.crash.bench import Bench
from tests.support.waiting import until
from tests.support.workers import WorkerProcess


def waiting_for_a_lock(bench: Bench, statement: str) -> list[int]:
    """Server processes of workers that wait for a lock in a statement of that name."""
    rows = bench.rows(
        "select pid from pg_stat_activity where datname = current_database()"
        " and wait_event_type = 'Lock' and query like %s",
        f"%jobs:{statement} %",
    )
    return [row.pid for row in rows]


def terminate(worker: WorkerProcess, times: int = 1) -> None:
    """Send SIGTERM, and see each one arrive."""
    worker.signal(signal.SIGTERM)
    worker.wait_for_output(" drains ")
    for _ in range(times - 1):
        worker.signal(signal.SIGTERM)


def assert_ready(bench: Bench, job: object, *, attempt: int = 0, claims: int = 1) -> None:
    """The job waits for anybody, as if it had never been begun."""
    row = bench.live(job)  # type: ignore[arg-type]
    assert (row.state, row.attempt, row.claims) == ("ready", attempt, claims)
    assert row.worker is None


def test_while_a_claim_waits_for_a_lock(bench: Bench) -> None:
    """(a) It is cancelled on the server, and claims for nobody."""
    (job,) = bench.enqueue(app.nap)
    with bench.table_locked():
        worker = bench.worker("--name", "one", lease=5)
        (pid,) = until(lambda: waiting_for_a_lock(bench, "claim_jobs"), "the claim to wait")
        terminate(worker)
        assert worker.wait() == 0
        assert not bench.rows("select 1 from pg_stat_activity where pid = %s", pid)
    assert_ready(bench, job, claims=0)
    assert not bench.events()


def test_while_a_claim_waits_and_then_gets_through(bench: Bench) -> None:
    """(a) What it claims is handed back unbegun."""
    (job,) = bench.enqueue(app.nap)
    with bench.table_locked():
        worker = bench.worker("--name", "one", lease=30)
        until(lambda: waiting_for_a_lock(bench, "claim_jobs"), "the claim to wait")
        terminate(worker)
    assert worker.wait() == 0
    assert "1 handed back" in worker.output(), "else this test has tested something else"
    assert_ready(bench, job)
    assert not bench.events()
    assert not bench.attempts(job)


def test_twice_while_a_claim_waits(bench: Bench) -> None:
    """(a, e) Then it is cancelled at once."""
    with bench.table_locked():
        worker = bench.worker()
        until(lambda: waiting_for_a_lock(bench, "claim_jobs"), "the claim to wait")
        asked = time.monotonic()
        terminate(worker, 2)
        assert worker.wait() == 0
        assert time.monotonic() - asked < GRACE.claim


def test_while_a_claim_waits_followed_by_sigkill(bench: Bench) -> None:
    """(a, f) The server notices that nobody is there any more, and gives the claim up."""
    (job,) = bench.enqueue(app.nap)
    with bench.table_locked():
        worker = bench.worker("--name", "one", lease=5)
        until(lambda: waiting_for_a_lock(bench, "claim_jobs"), "the claim to wait")
        worker.kill()
        until(lambda: not waiting_for_a_lock(bench, "claim_jobs"), "the claim to end")
    assert_ready(bench, job, claims=0)


def test_in_a_handler_that_ends_within_the_budget(bench: Bench) -> None:
    (job,) = bench.enqueue(app.nap, 1)
    worker = bench.worker("--drain", "10")
    bench.wait_for("start")
    (later,) = bench.enqueue(app.nap)
    terminate(worker)
    assert worker.wait() == 0
    assert bench.story(job) == [(1, "start"), (1, "end")]
    assert bench.settled(job).state == "completed"
    if (row := bench.live(later)) is not None:  # else it was begun before the signal came
        assert_ready(bench, later, claims=row.claims)
    assert not bench.sessions()


def test_in_a_handler_that_awaits_for_a_minute(bench: Bench) -> None:
    """(b) It is cancelled after the grace period and handed back without a used attempt."""
    (job,) = bench.enqueue(app.nap, 60)
    worker = bench.worker("--drain", "0.5", lease=30)
    bench.wait_for("start")
    asked = time.monotonic()
    terminate(worker)
    assert worker.wait() == 0
    assert time.monotonic() - asked >= 0.5, "not before its budget was over"
    assert bench.story(job) == [(1, "start"), (1, "cancelled")]
    assert_ready(bench, job)
    assert not bench.attempts(job)
    assert bench.counters() == {}
    bench.worker(lease=30)
    bench.wait_for("start", 2)
    assert bench.live(job).attempt == 1


def test_in_the_settle(bench: Bench) -> None:
    """(c) It completes."""
    bench.conn.execute(
        "create function public.slow() returns trigger language plpgsql as"
        " $$ begin perform pg_sleep(1.5); return new; end $$"
    )
    bench.conn.execute(
        "create trigger slow before insert on jobs.settled for each row"
        " execute function public.slow()"
    )
    (job,) = bench.enqueue(app.nap)
    worker = bench.worker()
    until(
        lambda: [s for s in bench.sessions() if "settle_jobs" in s.query and s.state == "active"],
        "the settle to run",
    )
    terminate(worker)
    assert worker.wait() == 0
    assert bench.settled(job).state == "completed"
    assert bench.counters() == {"completed": 1}
    assert bench.story(job) == [(1, "start"), (1, "end")]


def test_in_a_thread_that_does_not_look(bench: Bench) -> None:
    """(d) It is named in the log and left to its lease."""
    (job,) = bench.enqueue(app.thread_nap, 60)
    worker = bench.worker("--name", "one", "--drain", "0.2")
    bench.wait_for("start")
    terminate(worker)
    assert worker.wait() == LEFT
    assert f"job {job} (thread_nap) does not stop and is left to its lease" in worker.output()
    assert "its thread is still running" in worker.output()
    row = bench.live(job)
    assert (row.state, row.worker, row.attempt) == ("running", "one", 1)
    bench.worker("--name", "two")
    bench.wait_for("start", 2)
    assert bench.attempts(job) == [(1, 1, "LeaseLapsed")]


def test_in_a_thread_that_looks(bench: Bench) -> None:
    """(d) One that stops by raising is handed back as if it had been cancelled."""
    (job,) = bench.enqueue(app.polite, 60)
    worker = bench.worker("--drain", "0.2", lease=30)
    bench.wait_for("start")
    terminate(worker)
    assert worker.wait() == 0
    assert bench.story(job) == [(1, "start"), (1, "stopped")]
    assert_ready(bench, job)
    assert not bench.attempts(job)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_twice(bench: Bench, number: signal.Signals) -> None:
    """(e) The second one hurries."""
    (job,) = bench.enqueue(app.nap, 60)
    worker = bench.worker("--drain", "60", lease=30)
    bench.wait_for("start")
    worker.signal(number)
    worker.wait_for_output(" drains ")
    assert not bench.events("cancelled")
    worker.signal(number)
    assert worker.wait() == 0
    assert bench.story(job) == [(1, "start"), (1, "cancelled")]
    assert_ready(bench, job)


def test_followed_by_sigkill(bench: Bench) -> None:
    """(f) The lease lapses and somebody else starts over."""
    (job,) = bench.enqueue(app.nap, 60)
    worker = bench.worker("--drain", "60")
    bench.wait_for("start")
    terminate(worker)
    worker.kill()
    bench.worker()
    bench.wait_for("start", 2)
    assert bench.attempts(job) == [(1, 1, "LeaseLapsed")]
    assert bench.live(job).attempt == 2


def test_in_a_handler_that_does_not_stop(bench: Bench) -> None:
    (job,) = bench.enqueue(app.stubborn, 60)
    worker = bench.worker("--drain", "0.2")
    bench.wait_for("start")
    terminate(worker)
    assert worker.wait() == LEFT
    assert f"job {job} (stubborn) does not stop and is left to its lease\n" in worker.output()
    assert bench.live(job).state == "running"


def test_in_a_handler_with_a_thread_of_its_own(bench: Bench) -> None:
    """The job is handed back; what it leaves behind does not keep the process, only its status."""
    (job,) = bench.enqueue(app.hidden_thread, 60)
    worker = bench.worker("--drain", "0.2", lease=30)
    bench.wait_for("start")
    terminate(worker)
    assert worker.wait() == LEFT
    assert_ready(bench, job)


def test_in_an_open_completion(bench: Bench) -> None:
    """The transaction of the handler rolls back, and the job is handed back whole."""
    (job,) = bench.enqueue(app.complete, 60)
    worker = bench.worker("--drain", "0.2", lease=30)
    bench.wait_for("completing")
    terminate(worker)
    assert worker.wait() == 0
    assert_ready(bench, job)
    assert not bench.rows("select 1 from public.effect")


def test_no_session_is_ever_left_in_a_transaction(bench: Bench) -> None:
    """Looked at all the time while workers claim, settle, renew and drain."""
    jobs = bench.enqueue(app.nap, 0.05, count=150)
    worker = bench.worker("--queue", "default=20", "--drain", "5")
    seen = []

    def look() -> bool:
        seen.extend(bench.sessions())
        return len(bench.events("end")) >= 100

    until(look, "most of the jobs")
    terminate(worker)
    while worker.returncode is None:
        look()
    assert worker.returncode == 0
    assert len({session.pid for session in seen}) in (3, 4)  # claims, settles, listens, renews
    assert not [s for s in seen if (s.state or "").startswith("idle in transaction")]
    assert not bench.sessions()
    assert len(bench.events("start")) == len(bench.events("end")), "a drain waits for what runs"
    left = bench.rows("select state, attempt from jobs.job")
    assert {(row.state, row.attempt) for row in left} <= {("ready", 0)}
    assert len(left) + len(bench.rows("select 1 from jobs.settled")) == len(jobs)
