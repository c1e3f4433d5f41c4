"""How ``jobs worker`` ends: its exit status, and what does not end it."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from psycopg.conninfo import conninfo_to_dict

from devkit.proxy import Proxy
from jobs.cli.serving import LEFT
from tests.crash import app
from tests.crash.bench import Bench
from tests.support.server import Clones


class TestStatus:
    def test_of_jobs_that_ended_or_were_handed_back(self, bench: Bench) -> None:
        bench.enqueue(app.nap, 60)
        bench.enqueue(app.polite, 60)
        worker = bench.worker("--drain", "0.2", lease=30)
        bench.wait_for("start", 2)
        worker.signal(signal.SIGTERM)
        assert worker.wait() == 0
        assert " 2 handed back" in worker.output()

    def test_of_a_job_that_does_not_stop(self, bench: Bench) -> None:
        bench.enqueue(app.thread_nap, 60)
        bench.enqueue(app.nap, 60)
        worker = bench.worker("--drain", "0.2", lease=30)
        bench.wait_for("start", 2)
        worker.signal(signal.SIGTERM)
        assert worker.wait() == LEFT
        assert " 1 handed back" in worker.output()

    def test_of_an_outcome_that_could_not_be_settled(self, bench: Bench, clones: Clones) -> None:
        name = str(conninfo_to_dict(bench.dsn)["dbname"])
        with Proxy(Path(clones.host)) as proxy:
            dsn = f"{proxy.dsn(name)}?sslmode=disable&gssencmode=disable"
            bench.enqueue(app.nap, 1)
            worker = bench.worker("--drain", "1", dsn=dsn, lease=30)
            bench.wait_for("start")
            proxy.hang()
            bench.wait_for("end")
            worker.signal(signal.SIGTERM)
            assert worker.wait(40) == LEFT
        assert "leaves 1 outcomes unsettled" in worker.output()

    def test_of_a_start_that_failed(self, bench: Bench) -> None:
        worker = bench.worker(dsn="postgresql://127.0.0.1:1/x", wait=False)
        assert worker.wait() == 1


class TestSystemExit:
    """Of a task that a job has made: asyncio hands it to whoever runs the loop."""

    @pytest.mark.parametrize("handle", [app.subtask_exits, app.awaits_an_exit])
    def test_ends_that_task_and_nothing_else(self, bench: Bench, handle: object) -> None:
        (neighbour,) = bench.enqueue(app.nap, 1.5)
        (job,) = bench.enqueue(handle, 0.3)
        worker = bench.worker(lease=30)
        bench.all_settled()
        assert bench.settled(neighbour).attempt == 1
        assert bench.settled(job).state == "completed"
        if handle is app.awaits_an_exit:
            assert [error for _, _, error in bench.attempts(job)] == ["SystemExit"]
        else:
            assert bench.attempts(job) == []
        assert worker.returncode is None
        assert "SystemExit(7), which would have ended the process" in worker.output()
        worker.signal(signal.SIGTERM)
        assert worker.wait() == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_loop_without_signal_handlers_drains_all_the_same(
    bench: Bench, number: signal.Signals
) -> None:
    """O-34: with the command as a whole."""
    (job,) = bench.enqueue(app.nap, 1)
    worker = bench.worker(module="tests.crash.no_signals", lease=30)
    bench.wait_for("start")
    worker.signal(number)
    assert worker.wait() == 0
    assert bench.story(job) == [(1, "start"), (1, "end")]
    assert " drains 1 jobs" in worker.output()
