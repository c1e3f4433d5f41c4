"""No `select *`, no `returning *`: a statement names the columns its caller reads."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from pglast import ast

from tests.lint import python, sql
from tests.lint.tree import line_of

FILES = (
    "queries/**/*.sql",
    "schema/**/*.sql",
    "jobs/**/*.sql",
    "generated/**/*.sql",
    "codegen/**/*.sql",
    "jobs/**/*.py",
    "generated/**/*.py",
    "codegen/**/*.py",
)
_PIECE = re.compile(
    r"\b(?:select(?:\s+all|\s+distinct(?:\s+on\s*\([^)]*\))?)?|returning)\s+(?:\w+\s*\.\s*)*\*",
    re.IGNORECASE,
)
_STATEMENT = re.compile(r"\s*(?:with|select|insert|update|delete|merge|table)\b", re.IGNORECASE)


def problems(text: str, path: Path) -> list[str]:
    """Stars in select lists and RETURNING, of SQL files and of strings in Python files."""
    if path.suffix == ".sql":
        try:
            return [f"line {line_of(text, at)}: {found}" for at, found in _stars(text)]
        except sql.SqlError as error:
            return [str(error)]
    return [
        f"line {literal.line}: a string has {found}"
        for literal in python.literals(text)
        for found in _in_string(literal.text)
    ]


def _in_string(text: str) -> list[str]:
    if "*" not in text:
        return []
    if _STATEMENT.match(text):
        try:
            return [found for _, found in _stars(text)]
        except sql.SqlError:
            pass
    return [f"`{' '.join(found.split())}`" for found in _PIECE.findall(sql.without_comments(text))]


def _stars(text: str) -> Iterator[tuple[int, str]]:
    for statement in sql.parse(text):
        for node in sql.walk(statement.stmt):
            if isinstance(node, ast.ColumnRef) and isinstance(node.fields[-1], ast.A_Star):
                at = max(sql.position(node), statement.stmt_location)
                yield at, f"`{'.'.join([*sql.names(node.fields), '*'])}` names no columns"
            elif isinstance(node, ast.A_Indirection) and any(
                isinstance(part, ast.A_Star) for part in node.indirection
            ):
                yield sql.position(node), "`(...).*` names no columns"
