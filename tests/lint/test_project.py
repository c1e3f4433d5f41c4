"""Pins, public names and snippets: what the project says about itself in more than one place."""

from __future__ import annotations

import ast
import importlib
import re
import textwrap
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.lint import python, tree

PROJECT = tomllib.loads((tree.ROOT / "pyproject.toml").read_text("utf-8"))
PINS = [
    line
    for line in (tree.ROOT / "requirements-dev.txt").read_text("utf-8").splitlines()
    if line and not line.startswith("#")
]
_CALL = re.compile(r"`jobs\.(\w+)\(")
_BLOCK = re.compile(r"^( *)```python[^\n]*\n(.*?)^\1```", re.MULTILINE | re.DOTALL)


def pinned() -> dict[str, str]:
    """Name -> version of every tool."""
    return {found.name: str(found.specifier) for found in map(Requirement, PINS)}


def exported(text: str) -> tuple[list[str], set[str]]:
    """What `__all__` of a module lists, and the public names that the module binds."""
    listed: list[str] = []
    bound: set[str] = set()
    for node in python.tree(text).body:
        match node:
            case ast.Assign(targets=[ast.Name(id="__all__")]):
                listed = ast.literal_eval(node.value)
            case ast.ImportFrom(module=module) if module != "__future__":
                bound |= {alias.asname or alias.name for alias in node.names}
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                bound.add(name)
            case ast.ClassDef(name=name) | ast.AnnAssign(target=ast.Name(id=name)):
                bound.add(name)
            case ast.Assign(targets=[ast.Name(id=name)]):
                bound.add(name)
    return listed, {name for name in bound if not name.startswith("_")}


def snippets(text: str) -> list[tuple[int, str]]:
    """Line and source of every Python block of a Markdown text."""
    return [
        (tree.line_of(text, match.start(2)), textwrap.dedent(match[2]))
        for match in _BLOCK.finditer(text)
    ]


def names_of_jobs() -> set[str]:
    """What follows `jobs.` in an application: public names and modules."""
    listed, _ = exported(tree.read(tree.ROOT / "jobs" / "__init__.py"))
    packages = {path.parent.name for path in tree.files("jobs/*/__init__.py")}
    return {*listed, *(path.stem for path in tree.files("jobs/*.py")), *packages}


def faults(source: str) -> list[str]:
    """Why a snippet cannot be run: syntax, or a name that `jobs` does not have."""
    try:
        parsed = compile(
            source, "snippet", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT | ast.PyCF_ONLY_AST
        )
    except SyntaxError as error:
        return [f"line {error.lineno}: {error.msg}"]
    return sorted(
        {
            f"jobs has no {node.attr}"
            for node in ast.walk(parsed)
            if isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Name)
            and node.value.id == "jobs"
            and node.attr not in names_of_jobs()
        }
    )


@pytest.mark.parametrize("pin", PINS)
def test_tool_is_pinned_and_installed(pin: str) -> None:
    requirement = Requirement(pin)
    assert re.fullmatch(r"==[\w.]+", str(requirement.specifier))
    assert requirement.specifier.contains(version(requirement.name))


def test_each_tool_is_pinned_once() -> None:
    assert len(pinned()) == len(PINS)


def test_dependencies_are_tested_in_a_version_they_allow() -> None:
    project = PROJECT["project"]
    extras = [each for group in project["optional-dependencies"].values() for each in group]
    for requirement in map(Requirement, [*project["dependencies"], *extras]):
        assert requirement.specifier.contains(pinned()[requirement.name].removeprefix("=="))


def test_oldest_python_is_the_same_everywhere() -> None:
    oldest = PROJECT["project"]["requires-python"].removeprefix(">=")
    assert PROJECT["tool"]["ruff"]["target-version"] == f"py{oldest.replace('.', '')}"
    assert PROJECT["tool"]["mypy"]["python_version"] == oldest
    assert f"Programming Language :: Python :: {oldest}" in PROJECT["project"]["classifiers"]


@pytest.mark.parametrize(
    "path",
    [tree.ROOT / "jobs" / "__init__.py", *tree.files("generated/jobs_sql/[a-z]*.py")],
    ids=tree.module_of,
)
def test_all_is_exact(path: Path) -> None:
    listed, bound = exported(tree.read(path))
    module = importlib.import_module(tree.module_of(path))
    assert listed
    assert len(listed) == len(set(listed))
    assert all(hasattr(module, name) for name in listed)
    if path.parent.name == "jobs":
        assert set(listed) == bound
    else:
        # Generated modules import what they need under its own name.
        assert {name for name in listed if name in bound} == set(listed)


def test_wrong_all_is_seen() -> None:
    text = '__all__ = ["a", "b"]\nfrom x import a, _hidden\nfrom y import z as c\nd: int = 1\n'
    assert exported(text) == (["a", "b"], {"a", "c", "d"})


DOCUMENTS = pytest.mark.parametrize(
    "path",
    tree.files("*.md", "docs/**/*.md", "examples/**/*.md"),
    ids=lambda path: path.relative_to(tree.ROOT).as_posix(),
)


@DOCUMENTS
def test_snippets_can_be_run(path: Path) -> None:
    for line, source in snippets(tree.read(path)):
        assert faults(source) == [], f"the snippet in line {line}"


@DOCUMENTS
def test_calls_in_the_text_exist(path: Path) -> None:
    """A reader who copies `jobs.name(...)` from a sentence gets a function."""
    assert set(_CALL.findall(tree.read(path))) <= names_of_jobs()


def test_wrong_snippets_are_seen() -> None:
    text = "x\n\n- y\n\n  ```python\n  await f(\n  ```\n\n```python\nawait jobs.nothing()\n```\n"
    found = snippets(text)
    assert [line for line, _ in found] == [6, 10]
    assert [faults(source) for _, source in found] == [
        ["line 1: '(' was never closed"],
        ["jobs has no nothing"],
    ]
