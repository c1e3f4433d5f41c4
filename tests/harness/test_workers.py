from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest

from devkit import postgres
from devkit.process import group_alive
from tests.support.workers import WorkerProcess

Start = Callable[..., WorkerProcess]


def python(tmp_path: Path, body: str) -> dict[str, str]:
    """Environment in which ``python -m body`` runs this text."""
    (tmp_path / "body.py").write_text(body)
    return {"PYTHONPATH": str(tmp_path)}


def test_output_exit_status_and_arguments(worker_process: Start, tmp_path: Path) -> None:
    body = "import sys\nprint('out', sys.argv[1:])\nprint('err', file=sys.stderr)\nsys.exit(3)"
    worker = worker_process("a", "--b", module="body", env=python(tmp_path, body))
    assert worker.wait() == 3
    assert worker.stdout.read_text() == "out ['a', '--b']\n"
    assert worker.stderr.read_text() == "err\n"


def test_waiting_for_output_ends_with_the_process(worker_process: Start, tmp_path: Path) -> None:
    env = python(tmp_path, "print('something else')")
    worker = worker_process(module="body", env=env)
    with pytest.raises(AssertionError, match="ended before it wrote 'ready'"):
        worker.wait_for_output("ready")


def test_signals_reach_it(worker_process: Start, tmp_path: Path) -> None:
    body = (
        "import signal, sys, threading\nstop = threading.Event()\n"
        "signal.signal(signal.SIGTERM, lambda *_: stop.set())\n"
        "print('ready')\nstop.wait()\nprint('drained')"
    )
    worker = worker_process(module="body", env=python(tmp_path, body))
    worker.wait_for_output("ready")
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0
    assert "drained" in worker.output()


def test_the_end_takes_children_along(tmp_path: Path) -> None:
    body = (
        "import subprocess, signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "child = subprocess.Popen(['sleep', '1000'])\nprint('child', child.pid)\nchild.wait()"
    )
    env = python(tmp_path, body)
    worker = WorkerProcess([sys.executable, "-m", "body"], tmp_path, "w", env)
    worker.wait_for_output("child")
    assert group_alive(worker.pid)
    worker.end()
    assert worker.returncode == -signal.SIGKILL
    assert not group_alive(worker.pid)
    with pytest.raises(ProcessLookupError):
        os.kill(int(worker.output().split()[1]), 0)


def test_server_variables_of_the_test_run_do_not_leak(
    worker_process: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGHOST", "elsewhere")
    body = "import os\nprint(sorted(k for k in os.environ if k.startswith(('PG', 'PYTEST'))))"
    worker = worker_process(module="body", env=python(tmp_path, body))
    assert worker.wait() == 0
    assert worker.output() == "[]\n"


class TestDurableServer:
    @pytest.mark.parametrize("mode", ["immediate", "kill"])
    def test_a_crash_keeps_what_was_committed(
        self, durable_server: postgres.Server, durable_database: str, mode: postgres.Mode
    ) -> None:
        with psycopg.connect(durable_database, autocommit=True) as conn:
            assert conn.execute("show fsync").fetchone() == ("on",)
            conn.execute("create table public.t as select 1 as n")
        durable_server.restart(mode)
        with psycopg.connect(durable_database) as conn:
            assert conn.execute("select n from public.t").fetchone() == (1,)

    def test_a_test_may_leave_it_down(self, durable_server: postgres.Server) -> None:
        durable_server.stop("immediate")

    def test_and_the_next_one_finds_it_up_and_empty(self, durable_database: str) -> None:
        with psycopg.connect(durable_database) as conn:
            assert conn.execute("select to_regclass('public.t')").fetchone() == (None,)
            assert conn.execute("select to_regclass('jobs.job')").fetchone() != (None,)
