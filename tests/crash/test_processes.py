"""Processes of jobs end with their worker, however that ends."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest

from tests.runtime import crunching
from tests.runtime.crunching import Input
from tests.runtime.test_processes import alive, notes
from tests.support.waiting import until
from tests.support.workers import WorkerProcess


@pytest.mark.parametrize("how", ["SIGKILL", "SIGTERM"])
def test_no_process_outlives_its_worker(
    database: str, tmp_path: Path, worker_process: Callable[..., WorkerProcess], how: str
) -> None:
    """One that computes without looking up, and one that has nothing to do."""
    busy, idle = tmp_path / "busy", tmp_path / "idle"
    worker = worker_process(
        *("worker", "tests.runtime.crunching", "--dsn", database, "--queue", "default=2"),
        *("--drain", "1", "--processes", "2"),
    )
    with psycopg.connect(database, autocommit=True) as conn:
        crunching.endless.enqueue(conn, Input(note=str(busy)))
        until(lambda: notes(busy), "the busy one")
        crunching.silent.enqueue(conn, Input(note=str(idle)))
        until(lambda: notes(idle), "the idle one")
    pids = [notes(busy)[0].split()[1], notes(idle)[0]]
    assert len({*pids}) == 2
    assert all(alive(pid) for pid in pids)
    if how == "SIGKILL":
        worker.kill()
    else:
        worker.signal(signal.SIGTERM)
        assert worker.wait() == 0
    until(lambda: not any(alive(pid) for pid in pids), "the processes to be gone")
