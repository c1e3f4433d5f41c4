"""Run by test_rerun.py in a process of its own that is killed; never collected by itself."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from psycopg import Connection

from tests.support.workers import WorkerProcess

_CLIENT = """
import sys, time, psycopg
with psycopg.connect(sys.argv[1], autocommit=True) as conn:
    print("connected", flush=True)
    time.sleep(1000)
"""


@pytest.mark.parametrize("number", range(8))
def test_with_a_worker(
    number: int,
    database: str,
    conn: Connection[Any],
    worker_process: Callable[..., WorkerProcess],
    tmp_path: Path,
) -> None:
    conn.execute("insert into jobs.pause (kind, name) values ('queue', 'q')")
    (tmp_path / "client.py").write_text(_CLIENT)
    worker = worker_process(database, module="client", env={"PYTHONPATH": str(tmp_path)})
    worker.wait_for_output("connected")
    if notes := os.environ.get("SUITE_TO_KILL"):
        note = Path(notes) / f"{number}.tmp"
        note.write_text(f"{os.getpid()} {worker.pid} {conn.info.backend_pid} {conn.info.host}")
        note.rename(note.with_suffix(".pids"))
        time.sleep(50)  # until the run is killed
    assert worker.returncode is None
