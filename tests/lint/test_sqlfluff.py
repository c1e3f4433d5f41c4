"""sqlfluff reads all that we use, passes all our files, and never passes what it cannot read."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path

import pytest
from sqlfluff.core import FluffConfig, Linter

from tests.lint import sql, tree

HERE = Path(__file__).parent / "linters" / "sqlfluff"
EXPECTED = tomllib.loads((HERE / "findings.toml").read_text("utf-8"))
DECISION = tree.ROOT / "docs" / "decisions" / "0003-linters-and-their-gaps.md"


def fixtures(kind: str) -> list[Path]:
    """The fixture files of a folder."""
    return sorted((HERE / kind).glob("*.sql"))


def named(path: Path) -> str:
    """Short test ids."""
    return path.stem


@cache
def configuration() -> FluffConfig:
    """The repository's own, whatever directory the tests run in."""
    return FluffConfig.from_path(str(tree.ROOT))


def findings(text: str, name: str = "fixture.sql") -> list[str]:
    """Line and rule of everything sqlfluff says about a text, warnings and parse errors too."""
    linted = Linter(config=configuration()).lint_string(text, fname=name, config=configuration())
    found = linted.get_violations(filter_ignore=False, filter_warning=False)
    return list(dict.fromkeys(f"{each.line_no} {each.rule_code()}" for each in found))


def is_valid(text: str) -> bool:
    """Whether PostgreSQL itself can read a text."""
    try:
        sql.parse(text)
    except sql.SqlError:
        return False
    return True


@pytest.mark.parametrize("path", tree.files("queries/**/*.sql", "schema/**/*.sql"), ids=named)
def test_our_files_pass(path: Path) -> None:
    assert findings(tree.read(path), str(path)) == []


@pytest.mark.parametrize("path", fixtures("clean"), ids=named)
def test_construct_is_read(path: Path) -> None:
    text = tree.read(path)
    assert is_valid(text)
    assert findings(text) == []


@pytest.mark.parametrize("path", fixtures("refused"), ids=named)
def test_bad_file_is_refused(path: Path) -> None:
    assert findings(tree.read(path)) == EXPECTED["refused"][path.name] != []


@pytest.mark.parametrize("path", fixtures("gaps"), ids=named)
def test_gap_is_as_documented(path: Path) -> None:
    text, gap = tree.read(path), EXPECTED["gaps"][path.name]
    assert (findings(text), is_valid(text)) == (gap["found"], gap["valid"])
    assert path.stem in DECISION.read_text("utf-8")


def test_lists_and_files_agree() -> None:
    for kind in ("refused", "gaps"):
        assert {path.name for path in fixtures(kind)} == set(EXPECTED[kind])


def test_command_fails_on_unparsable() -> None:
    """What `make lint` runs, on a file whose only fault is that it cannot be read."""
    run = subprocess.run(
        [sys.executable, "-m", "sqlfluff", "lint", str(HERE / "refused" / "unparsable.sql")],
        cwd=tree.ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 1
    assert "PRS" in run.stdout


def test_large_files_are_read() -> None:
    """The default limit of 20,000 bytes would skip the file and pass."""
    text = "/*\n" + ("padding" * 12 + "\n") * 250 + "*/\nSELECT 2 as two;\n"
    assert len(text) > 20_000
    assert findings(text) == ["253 CP01"]


def test_rules_that_are_off_have_a_reason() -> None:
    lines = [line.strip() for line in (tree.ROOT / ".sqlfluff").read_text("utf-8").splitlines()]
    off = {rule for rule in configuration().get("rule_denylist") if rule.isupper()}
    assert off
    for rule in off:
        at = next(at for at, line in enumerate(lines) if line.rstrip(",") == rule)
        others = {f"{other}," for other in off}
        while lines[at - 1] in others:
            at -= 1
        assert lines[at - 1].startswith("# "), f"{rule} is off without a reason"
        assert rule in DECISION.read_text("utf-8")


def test_nobody_fixes_sql_unseen() -> None:
    """`sqlfluff fix` may change what a statement means, so no target runs it."""
    commands = "".join((tree.ROOT / name).read_text("utf-8") for name in ("Makefile", ".ci/run"))
    assert re.findall(r"sqlfluff (\w+)", commands) == ["lint"]


def test_nothing_silences_a_finding() -> None:
    assert configuration().get("ignore") == []
    assert configuration().get("warnings") == []
    assert configuration().get("disable_noqa")
