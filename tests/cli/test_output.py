"""Where commands print: into nothing, into what is full, and names that command a terminal."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.command import environment, jobs

MODULE = [sys.executable, "-W", "error", "-m", "jobs"]


def through_a_shell(redirection: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """``jobs ARGUMENTS`` with its output redirected by a shell."""
    return subprocess.run(
        ["sh", "-c", f'exec "$@" {redirection}', "sh", *MODULE, *arguments],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )


def test_without_a_standard_output() -> None:
    done = through_a_shell(">&-", "version")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_a_full_disk_is_said_in_a_line_and_fails_the_command() -> None:
    done = through_a_shell("> /dev/full", "version")
    assert done.returncode == 1
    assert done.stderr.startswith("error: [Errno 28]")
    assert "Traceback" not in done.stderr


def test_an_error_does_not_command_the_terminal() -> None:
    done = jobs("worker", "no\x1b[2J:x\x07")
    assert done.returncode == 2
    assert "\\x1b[2J" in done.stderr
    assert "\x1b" not in done.stderr
