"""squawk finds DDL that would hold up or break a database in use, and finds none in schema/."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.lint import tree

HERE = Path(__file__).parent / "linters" / "squawk"
EXPECTED = tomllib.loads((HERE / "findings.toml").read_text("utf-8"))
SQUAWK = Path(sys.executable).parent / "squawk"
DECISION = tree.ROOT / "docs" / "decisions" / "0003-linters-and-their-gaps.md"


def run(*paths: Path) -> tuple[int, list[str]]:
    """Exit code, and line and rule of each finding, as `make lint` runs it from the root."""
    done = subprocess.run(
        [SQUAWK, "--reporter", "json", *paths],
        cwd=tree.ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    found = [f"{each['line'] + 1} {each['rule_name']}" for each in json.loads(done.stdout or "[]")]
    return done.returncode, found


def test_our_files_pass() -> None:
    assert run(*tree.files("schema/*.sql")) == (0, [])


@pytest.mark.parametrize("path", sorted(HERE.glob("*.sql")), ids=lambda path: path.stem)
def test_fixture_is_judged(path: Path) -> None:
    code, found = run(path)
    assert found == EXPECTED[path.name]
    assert code == (1 if found else 0)


def test_no_file_is_a_failure() -> None:
    """A pattern that matches nothing must not pass."""
    assert run(HERE / "nowhere*.sql")[0] == 1


def test_rules_that_are_off_have_a_reason() -> None:
    text = (tree.ROOT / ".squawk.toml").read_text("utf-8")
    off = tomllib.loads(text)["excluded_rules"]
    lines = [line.strip() for line in text.splitlines()]
    assert off
    for rule in off:
        at = lines.index(f'"{rule}",')
        while lines[at - 1].startswith('"'):
            at -= 1
        assert lines[at - 1].startswith("# "), f"{rule} is off without a reason"
        assert rule in DECISION.read_text("utf-8")
