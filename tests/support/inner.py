"""Run pytest in a process of its own, for tests of the harness itself."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from tests.support.server import HOST_VARIABLE, ROOT, RUN_VARIABLE
from tests.support.strictness import VARIABLE as CI_VARIABLE

INNER = ROOT / "tests" / "harness" / "inner"


def command(*arguments: str | Path) -> list[str]:
    """The command line of such a run, from the repository's root."""
    quiet = ["-p", "no:cacheprovider", "-q", "-rA"]
    return [sys.executable, "-m", "pytest", *quiet, *map(str, arguments)]


def environment(**extra: str) -> dict[str, str]:
    """Ours without what would tie the inner run to the outer one's server and settings."""
    drop = {HOST_VARIABLE, RUN_VARIABLE, CI_VARIABLE}
    kept = {k: v for k, v in os.environ.items() if k not in drop and not k.startswith("PYTEST_")}
    return kept | extra
