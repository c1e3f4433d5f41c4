"""What a header claims is true: callers call, indexes exist, a missing fence has a reason."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from codegen.sqlc_gen_python.naming import snake
from tests.lint import python, sql, tree
from tests.lint.catalog import installed

FILES = ("queries/**/*.sql",)
_CALLER = re.compile(r"\bjobs(?:\.[a-z_]\w*)+")
_WORD = re.compile(r"(?<![@.\w])[a-z]\w*_\w+\b(?!\()")
_NO_INDEX = ("none", "catalog")
_SYSTEM_INDEX = re.compile(r"pg_[a-z_]+_index")


def problems(text: str, path: Path) -> list[str]:
    """Header keys and values that a reviewer could not rely on."""
    return [
        f"line {statement.line}: {what}"
        for statement in sql.statements(text)
        for what in ([statement.fault] if statement.fault else _untrue(statement))
    ]


def _untrue(statement: sql.Statement) -> Iterator[str]:
    yield from _callers(snake(statement.name), statement.header["callers"])
    yield from _index(statement.header["index"])
    fence = statement.header["fence"]
    if fence.startswith("none") and not re.match(r"none, \w", fence):
        yield f"fence: {fence!r}, write `none, ` and the reason"


def _callers(function: str, claim: str) -> Iterator[str]:
    named = set()
    for caller in _CALLER.findall(claim):
        module = _module(caller)
        if module is None:
            yield f"callers: there is no module {caller}"
            continue
        named.add(module)
        inside = caller.removeprefix(module).removeprefix(".")
        if inside and inside not in _defined(module):
            yield f"callers: {module} does not define {inside}"
        elif not any(_uses(part, function) for part in _modules() if _within(part, module)):
            yield f"callers: {module} does not call {function}"
    if not named:
        yield "callers: names no module of jobs"
    for module in _modules():
        if not _sends(module):
            continue  # it means a function of ours that has the statement's name
        if _uses(module, function) and not any(_within(module, known) for known in named):
            yield f"callers: {module} calls {function} and is not named"


def _index(claim: str) -> Iterator[str]:
    first = re.split(r"[\s,;]", claim, maxsplit=1)[0]
    if first not in _NO_INDEX and not _is_index(first):
        yield f"index: {first!r} is no index of schema/, nor `none` or `catalog`"
    for word in _WORD.findall(claim):
        if word != first and not _is_index(word):
            yield f"index: {word!r} is no index of schema/"


def _is_index(word: str) -> bool:
    return word in installed().indexes or bool(_SYSTEM_INDEX.fullmatch(word))


@cache
def _modules() -> dict[str, Path]:
    return {tree.module_of(path): path for path in tree.files("jobs/**/*.py")}


def _module(caller: str) -> str | None:
    parts = caller.split(".")
    for length in (len(parts), len(parts) - 1):
        name = ".".join(parts[:length])
        if length > 1 and any(_within(module, name) for module in _modules()):
            return name
    return None


def _within(module: str, package: str) -> bool:
    return module == package or module.startswith(f"{package}.")


@cache
def _sends(module: str) -> bool:
    return "jobs_sql" in tree.read(_modules()[module])


@cache
def _defined(module: str) -> frozenset[str]:
    kinds = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
    parsed = python.tree(tree.read(_modules()[module]))
    return frozenset(node.name for node in ast.walk(parsed) if isinstance(node, kinds))


@cache
def _identifiers(module: str) -> frozenset[str]:
    found = set()
    for node in ast.walk(python.tree(tree.read(_modules()[module]))):
        if isinstance(node, ast.Attribute):
            found.add(node.attr)
        elif isinstance(node, ast.Name):
            found.add(node.id)
        elif isinstance(node, ast.ImportFrom):
            found.update(alias.name for alias in node.names)
    return frozenset(found)


def _uses(module: str, function: str) -> bool:
    ways = (function, f"{function}_async", function.upper())
    return not _identifiers(module).isdisjoint(ways)
