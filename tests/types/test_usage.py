"""What users write passes the strict type checker, and what they must not write does not."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
USAGE = Path(__file__).with_name("usage.py")


def check(path: Path, cache: Path) -> subprocess.CompletedProcess[str]:
    """Run the project's type checker on one file that may stand anywhere."""
    return subprocess.run(
        [
            *(sys.executable, "-m", "mypy", "--config-file", str(ROOT / "pyproject.toml")),
            *("--cache-dir", str(cache), "--warn-unused-ignores", str(path)),
        ],
        cwd=ROOT,
        env=os.environ | {"MYPYPATH": f"{ROOT}:{ROOT / 'generated'}"},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The checker's cache, begun with the one of the tree so that psycopg is not read again."""
    copy = tmp_path_factory.mktemp("types") / "cache"
    own = ROOT / ".mypy_cache"
    if own.is_dir():
        shutil.copytree(own, copy)
    return copy


@pytest.mark.timeout(300)
def test_the_documented_use_is_typed_and_wrong_use_is_not(cache: Path) -> None:
    done = check(USAGE, cache)
    assert (done.stdout.strip(), done.returncode) == (
        "Success: no issues found in 1 source file",
        0,
    )


@pytest.mark.timeout(300)
def test_every_wrong_use_is_refused_for_its_own_reason(cache: Path, tmp_path: Path) -> None:
    """Without the ignore comments each of those lines, and no other, is an error of its kind."""
    lines = USAGE.read_text().splitlines()
    expected = {
        number: code
        for number, line in enumerate(lines, start=1)
        for code in re.findall(r"# type: ignore\[([\w-]+)\]", line)
    }
    bare = tmp_path / "bare_usage.py"
    bare.write_text(re.sub(r"  # type: ignore\[[\w-]+\]", "", USAGE.read_text()))
    done = check(bare, cache)
    told = re.findall(r"bare_usage\.py:(\d+): error: .* \[([\w-]+)\]$", done.stdout, re.M)
    found = {int(number): code for number, code in told}
    assert found == expected
    assert len(expected) >= 20
