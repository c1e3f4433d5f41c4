"""docs/guarantees.md is complete, says why where it must, and names tests that exist."""

from __future__ import annotations

import ast
import re
from collections import Counter
from functools import cache
from typing import NamedTuple

import pytest

from tests.lint import tree

# How many lines the list of behaviours to surpass has, by section. That list is not in the tree.
BEHAVIOURS = {
    1: 44,
    2: 12,
    3: 49,
    4: 18,
    5: 5,
    6: 10,
    7: 6,
    8: 8,
    9: 23,
    10: 9,
    11: 16,
    12: 14,
    13: 14,
    14: 11,
    15: 7,
    16: 21,
    17: 3,
    18: 27,
    19: 20,
    20: 20,
}
CASES = 57
SUBJECTS = 9
PARTS = {
    "worker",
    "scheduler, relay, wake",
    "performance",
    "durable steps and events",
    "operator surface",
    "factories",
    "retention",
    "telemetry",
}

_LINE = re.compile(
    r"^- \*\*(?P<id>[^*]+)\*\* (?P<status>[a-z]+)(?: \((?P<part>[^)]+)\))? · (?P<rest>.+)$", re.S
)
_ID = re.compile(r"B\d{1,2}\.\d\d|G\d\.\d\d|O-\d\d")
_TEST = re.compile(r"`(tests/[^`:]+\.py)::([^`]+)`")


class Line(NamedTuple):
    """One promise of the document."""

    id: str
    status: str
    part: str | None
    text: str
    tests: tuple[tuple[str, str], ...]


def parse(document: str) -> list[Line]:
    """The lines of a document. Raises ValueError, naming it, for an item of another form."""
    lines = []
    for item in re.findall(r"^- \*\*.*(?:\n  .*)*", document, re.M):
        match = _LINE.match(item)
        if match is None or not _ID.fullmatch(match["id"]):
            raise ValueError(f"not of the form `- **ID** status · text`: {item}")
        text = " ".join(_TEST.sub("", match["rest"]).split())
        tests = tuple(_TEST.findall(match["rest"]))
        lines.append(Line(match["id"], match["status"], match["part"], text, tests))
    return lines


def problems(line: Line) -> list[str]:
    """What is wrong with one line."""
    found = []
    if line.status not in ("kept", "better", "refused", "later"):
        found.append(f"unknown status {line.status!r}")
    if line.status == "later" and line.part not in PARTS:
        found.append(f"waits for the unknown part {line.part!r}")
    if line.status != "later" and line.part is not None:
        found.append("names a part, and waits for none")
    for status, word in (("better", "Better:"), ("refused", "Because:")):
        if (line.status == status) != (re.search(rf"{word} \S", line.text) is not None):
            found.append(f"{word!r} belongs to what is {status}, and to that only")
    if "Now:" in line.text and line.status != "later":
        found.append("'Now:' belongs to what is later")
    shown = line.status in ("kept", "better") or "Now:" in line.text
    if shown and not line.tests:
        found.append("says that something holds and names no test")
    return found + [
        f"no test {path}::{test}" for path, test in line.tests if not exists(path, test)
    ]


def exists(path: str, test: str) -> bool:
    """Whether a file has the test: a function, or class::method, or one of its parameters."""
    return test.partition("[")[0] in named_in(path)


@cache
def named_in(path: str) -> frozenset[str]:
    """Names of the tests in a file, as pytest writes them; empty when there is no such file."""
    file = tree.ROOT / path
    if not file.is_file():
        return frozenset()
    found = set()
    for node in ast.parse(file.read_text("utf-8")).body:
        if _is_test(node):
            found.add(node.name)
        elif isinstance(node, ast.ClassDef) and node.name.startswith("Test"):
            found |= {f"{node.name}::{inner.name}" for inner in node.body if _is_test(inner)}
    return frozenset(found)


def _is_test(node: ast.stmt) -> bool:
    function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    return function and node.name.startswith("test_")


@pytest.fixture(scope="module")
def lines() -> list[Line]:
    return parse(tree.read(tree.ROOT / "docs" / "guarantees.md"))


def test_every_behaviour_has_its_line(lines: list[Line]) -> None:
    wanted = [
        f"B{section}.{number:02}"
        for section, count in BEHAVIOURS.items()
        for number in range(1, count + 1)
    ]
    assert [line.id for line in lines if line.id.startswith("B")] == wanted


def test_every_field_case_has_its_line(lines: list[Line]) -> None:
    wanted = [f"O-{number:02}" for number in range(1, CASES + 1)]
    assert [line.id for line in lines if line.id.startswith("O")] == wanted


def test_every_subject_of_the_design_has_lines_numbered_without_a_gap(lines: list[Line]) -> None:
    found = [line.id for line in lines if line.id.startswith("G")]
    count = Counter(id.partition(".")[0] for id in found)
    assert list(count) == [f"G{subject}" for subject in range(1, SUBJECTS + 1)]
    assert found == [f"{g}.{number:02}" for g, n in count.items() for number in range(1, n + 1)]


def test_no_line_has_a_problem(lines: list[Line]) -> None:
    found = [f"{line.id}: {problem}" for line in lines for problem in problems(line)]
    assert not found, "\n".join(found)


def test_every_listed_part_is_named_in_the_introduction() -> None:
    introduction = tree.read(tree.ROOT / "docs" / "guarantees.md").partition("# Part one")[0]
    words = " ".join(introduction.split())
    assert [part for part in sorted(PARTS) if part not in words] == []


HERE = "tests/lint/test_guarantees.py::test_no_line_has_a_problem"


@pytest.mark.parametrize(
    ("item", "problem"),
    [
        ("kept · Text.", "names no test"),
        ("better · Text. Better: more.", "names no test"),
        (f"better · Text.\n  `{HERE}`", "belongs to what is better"),
        (f"kept · Text. Better: more.\n  `{HERE}`", "belongs to what is better"),
        (f"kept · Text. Now: some.\n  `{HERE}`", "belongs to what is later"),
        ("refused · Text.", "belongs to what is refused"),
        ("refused · Text. Because:", "belongs to what is refused"),
        ("later · Text.", "unknown part None"),
        ("later (someday) · Text.", "unknown part 'someday'"),
        ("later (worker) · Text. Now: some of it.", "names no test"),
        ("kept (worker) · Text.", "names a part"),
        ("done · Text.", "unknown status"),
        ("kept · Text.\n  `tests/lint/test_nowhere.py::test_x`", "no test tests/lint/test_nowhere"),
        ("kept · Text.\n  `tests/lint/test_guarantees.py::test_x`", "no test"),
        ("kept · Text.\n  `tests/lint/test_guarantees.py::exists`", "no test"),
        (
            "kept · Text.\n  `tests/sql/test_claim.py::TestLocks::test_only_due_jobs_are_taken`",
            "no test",
        ),
    ],
)
def test_a_bad_line_is_refused(item: str, problem: str) -> None:
    (line,) = parse(f"- **B1.01** {item}\n")
    assert any(problem in found for found in problems(line))


@pytest.mark.parametrize(
    "item",
    [
        f"kept · Text that\n  goes on.\n  `{HERE}`",
        f"kept · Text.\n  `{HERE}[case-1]`",
        "kept · Text.\n  `tests/sql/test_claim.py::TestOrder::"
        "test_priority_comes_before_due_time_before_id`",
        f"better · Text. Better: more.\n  `{HERE}`",
        "refused · Text. Because: reason.",
        "later (scheduler, relay, wake) · Text.",
        f"later (worker) · Text. Now: some of it.\n  `{HERE}`",
    ],
)
def test_a_good_line_is_accepted(item: str) -> None:
    (line,) = parse(f"- **B1.01** {item}\n")
    assert problems(line) == []


@pytest.mark.parametrize(
    "item",
    [
        "- **B1.01** kept, text",
        "- **B1** kept · Text.",
        "- **B1.01** kept · ",
        "- **X-1** kept · T",
    ],
)
def test_an_item_of_another_form_is_no_line(item: str) -> None:
    with pytest.raises(ValueError, match="not of the form"):
        parse(item + "\n")
