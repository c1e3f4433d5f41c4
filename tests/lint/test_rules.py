"""Every rule refuses its bad files with exactly these findings, accepts its good ones, and finds
nothing in the tree."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from tests.lint import tree
from tests.lint.rules import Rule, all_rules

HERE = Path(__file__).parent
# Stands inside what no file of the tree may hold, not even a bad one; taken out before it is read.
APART = "\N{BROKEN BAR}"
RULES = dict(all_rules())


def fixtures(kind: str) -> list[tuple[str, Path]]:
    """Rule name and path of each fixture."""
    return [
        (rule, path)
        for rule in RULES
        for path in sorted((HERE / kind / rule).rglob("*"))
        if path.is_file() and path.name != "findings.toml"
    ]


def named(value: object) -> str | None:
    """Short test ids."""
    return value.stem if isinstance(value, Path) else None


def expected(rule: str) -> dict[Path, list[str]]:
    """The findings written down beside the bad files of a rule."""
    text = (HERE / "bad" / rule / "findings.toml").read_text("utf-8").replace(APART, "")
    return {Path(name): list(problems) for name, problems in tomllib.loads(text).items()}


def findings(rule: Rule, path: Path) -> list[str]:
    """What the rule says about one file, in order of the lines."""
    return sorted(
        rule.problems(tree.read(path).replace(APART, ""), path),
        key=lambda problem: int(problem.removeprefix("line ").partition(":")[0]),
    )


@pytest.mark.parametrize(("rule", "path"), fixtures("bad"), ids=named)
def test_bad_file_is_refused(rule: str, path: Path) -> None:
    assert findings(RULES[rule], path) == expected(rule)[path.relative_to(HERE / "bad" / rule)]


@pytest.mark.parametrize(("rule", "path"), fixtures("good"), ids=named)
def test_good_file_is_accepted(rule: str, path: Path) -> None:
    assert findings(RULES[rule], path) == []


@pytest.mark.parametrize("rule", RULES)
def test_tree_has_no_problems(rule: str) -> None:
    paths = tree.files(*RULES[rule].FILES)
    assert paths, "the rule looks at no file"
    found = "\n".join(
        f"{path.relative_to(tree.ROOT)}: {problem}"
        for path in paths
        for problem in findings(RULES[rule], path)
    )
    assert not found


@pytest.mark.parametrize("rule", RULES)
def test_rule_is_proven_by_a_bad_file(rule: str) -> None:
    present = {path for found, path in fixtures("bad") if found == rule}
    assert present
    assert {path.relative_to(HERE / "bad" / rule) for path in present} == set(expected(rule))
    assert all(expected(rule).values()), "a bad file without a finding proves nothing"
