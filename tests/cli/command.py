"""Runs the real command in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.support.server import ROOT

_INHERITED = ("PATH", "HOME", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "TMPDIR")


def environment(**extra: str) -> dict[str, str]:
    """A clean environment, in which the tree is importable and nothing says where a server is."""
    kept = {name: os.environ[name] for name in _INHERITED if name in os.environ}
    return kept | {"PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'generated'}"} | extra


def jobs(
    *arguments: str, cwd: Path | None = None, **variables: str
) -> subprocess.CompletedProcess[str]:
    """``jobs ARGUMENTS``, waited for. Warnings are errors. Variables are added to a clean
    environment."""
    return subprocess.run(
        [sys.executable, "-W", "error", "-m", "jobs", *arguments],
        cwd=cwd or ROOT,
        env=environment(**variables),
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
