"""A test run that is killed in the middle: nothing is left, and the next one is green (O-54)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from devkit.process import end_group, spawn
from tests.support import inner
from tests.support.server import ROOT
from tests.support.waiting import until

pytestmark = [
    pytest.mark.serial,
    pytest.mark.skipif(sys.platform != "linux", reason="Linux only: parent-death signal"),
]

SUITE = inner.INNER / "suite_to_kill.py"


def alive(pid: int) -> bool:
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return False


@pytest.mark.parametrize(
    "processes", [2, pytest.param(8, marks=[pytest.mark.slow, pytest.mark.timeout(180)])]
)
def test_a_killed_run_leaves_nothing_in_the_way(processes: int, tmp_path: Path) -> None:
    command = inner.command(SUITE, "-n", str(processes), "--basetemp", tmp_path / "first")
    notes = tmp_path / "notes"
    notes.mkdir()
    log = tmp_path / "first.log"
    env = inner.environment(SUITE_TO_KILL=str(notes))
    run = spawn(command, stdout=log, env=env, cwd=ROOT, death="KILL")
    try:
        until(
            lambda: len(list(notes.glob("*.pids"))) == processes or run.poll() is not None,
            "a test in each process, with its worker connected",
            timeout=60,
        )
        assert run.poll() is None, log.read_text()
        run.kill()  # the controller alone: its processes and the server must notice
        run.wait()
        seen = [note.read_text().split() for note in notes.glob("*.pids")]

        again = subprocess.run(
            inner.command(SUITE, "-n", str(processes), "--basetemp", tmp_path / "second"),
            cwd=ROOT,
            env=inner.environment(),
            capture_output=True,
            text=True,
            check=False,
        )

        assert again.returncode == 0, again.stdout + again.stderr
        assert "8 passed" in again.stdout
        assert not [host for *_, host in seen if Path(host).exists()], "files of the killed run"
        until(
            lambda: not [pid for *pids, _ in seen for pid in pids if alive(int(pid))],
            "test processes, workers and backends of the killed run to end",
        )
    finally:
        end_group(run)
