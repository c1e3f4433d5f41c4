"""``jobs run``: worker, scheduler and relay in one process."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.crash import app
from tests.crash.app import Nap
from tests.crash.bench import Bench
from tests.support.waiting import until
from tests.support.workers import WorkerProcess

pytestmark = pytest.mark.serial

TICKING = """
import os, sys
from datetime import timedelta
import psycopg
from pydantic import BaseModel
import jobs

class Nothing(BaseModel):
    pass

@jobs.job(queue="ticks", tenant=jobs.NO_TENANT, idempotency_key=jobs.NO_KEY)
def tick(input: Nothing) -> None:
    with psycopg.connect(os.environ["JOBS_DSN"], autocommit=True) as conn:
        conn.execute(
            "insert into public.event (pid, job, claims, attempt, what)"
            " values (%s, gen_random_uuid(), 1, 1, 'tick')", [os.getpid()]
        )

@jobs.task(every=timedelta(seconds=1))
def ticking():
    yield tick, Nothing()

registry = jobs.Registry.of(sys.modules[__name__])
"""


@pytest.fixture
def together(
    bench: Bench, worker_process: Callable[..., WorkerProcess]
) -> Callable[..., WorkerProcess]:
    def start(*options: str, target: str = "tests.crash.app", **env: str) -> WorkerProcess:
        given = {"JOBS_DSN": bench.dsn, "EVENTS_DSN": bench.dsn}
        return worker_process("run", target, *options, env=given | env)

    return start


def test_what_is_staged_is_published_and_run_and_one_signal_drains_all(
    bench: Bench, together: Callable[..., WorkerProcess]
) -> None:
    process = together("--name", "me")
    for noun in ("worker", "scheduler", "relay"):
        process.wait_for_output(f"{noun} me ")
    staged = app.nap.stage(bench.conn, Nap(seconds=0.5))
    bench.wait_for("start")
    process.signal(signal.SIGTERM)
    assert process.wait() == 0
    assert bench.settled(staged.id).state == "completed", "the job was let end"
    for noun in ("worker", "scheduler", "relay"):
        assert f"{noun} me has stopped" in process.output()


def test_a_task_fires_and_its_job_runs(
    bench: Bench, together: Callable[..., WorkerProcess], tmp_path: Path
) -> None:
    (tmp_path / "ticking.py").write_text(TICKING)
    process = together(target="ticking:registry", PYTHONPATH=_paths(tmp_path))
    until(lambda: len(bench.events("tick")) >= 2, "two ticks")
    process.signal(signal.SIGINT)
    assert process.wait() == 0


def test_a_second_signal_hurries(bench: Bench, together: Callable[..., WorkerProcess]) -> None:
    (job,) = bench.enqueue(app.nap, 600)
    process = together("--drain", "600")
    bench.wait_for("start")
    process.signal(signal.SIGTERM)
    process.wait_for_output("drains 1 jobs")
    process.signal(signal.SIGTERM)
    assert process.wait() == 0
    assert bench.live(job).state == "ready", "it was handed back"


def test_one_that_cannot_start_ends_all_with_its_error(
    bench: Bench, together: Callable[..., WorkerProcess]
) -> None:
    bench.enqueue(app.nap, 0.3)
    process = together("--to", "host=/nowhere connect_timeout=1")
    assert process.wait() == 1
    output = process.output()
    assert "JOB_DATABASE_UNREACHABLE" in output
    assert "relay" in process.stderr.read_text().splitlines()[-2]
    assert "Traceback" not in output


def test_parts_can_be_left_away(bench: Bench, together: Callable[..., WorkerProcess]) -> None:
    process = together("--no-scheduler", "--no-relay", "--queue", "other=2")
    process.wait_for_output("serves other (2)")
    process.signal(signal.SIGTERM)
    assert process.wait() == 0
    assert "relay" not in process.output()
    assert "scheduler" not in process.output()
    assert bench.events() == []


def _paths(first: Path) -> str:
    import os

    from tests.support.server import ROOT

    return os.pathsep.join([str(first), str(ROOT), str(ROOT / "generated")])
