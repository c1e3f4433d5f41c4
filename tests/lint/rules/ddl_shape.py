"""What a schema file says about itself, and the shape of what it makes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from pglast import ast
from pglast.enums import AlterTableType, ConstrType

from tests.lint import sql
from tests.lint.catalog import catalog_of
from tests.lint.tree import line_of

FILES = ("schema/**/*.sql",)
_NAME = re.compile(r"\d{4}_[a-z0-9_]+\.sql")
_HEADER = ("what", "lock", "time", "rollback")
# Everything else that counts is bigint.
_SMALL = {"priority": "int2", "version": "int4"}
_SUFFIX = {
    ConstrType.CONSTR_PRIMARY: "pkey",
    ConstrType.CONSTR_UNIQUE: "key",
    ConstrType.CONSTR_CHECK: "check",
    ConstrType.CONSTR_FOREIGN: "fkey",
    ConstrType.CONSTR_EXCLUSION: "excl",
}


def problems(text: str, path: Path) -> list[str]:
    """File names, headers, object names, comments and types that break the schema's habits."""
    found = list(_file(text, path))
    try:
        for statement in sql.parse(text):
            found += _statement(text, statement)
        made = catalog_of([text])
    except sql.SqlError as error:
        return [*found, str(error)]
    for table in sorted(made.tables.keys() - made.commented):
        found.append(f"line 1: table {table} has no comment on table")
    return found


def _file(text: str, path: Path) -> Iterator[str]:
    if not _NAME.fullmatch(path.name):
        yield f"line 1: {path.name} is not NNNN_what_it_makes.sql"
    keys = re.findall(r"^-- (\w+):", text.split("\n\n", 1)[0], re.MULTILINE)
    if tuple(keys) != _HEADER:
        yield f"line 1: the file must begin with `-- key: text` for {', '.join(_HEADER)}"


def _statement(text: str, statement: ast.RawStmt) -> Iterator[str]:
    node = statement.stmt
    match node:
        case ast.CreateStmt(relation=relation):
            parts = [(part, relation.relname) for part in node.tableElts or ()]
        case ast.AlterTableStmt(relation=relation):
            parts = [(command.def_, relation.relname) for command in node.cmds]
            yield from _grown(text, node)
        case ast.IndexStmt(idxname=name, relation=relation):
            parts = []
            if not (name or "").startswith(f"{relation.relname}_") or not name.endswith("_idx"):
                yield f"line {_line(text, node)}: index {name} is not {relation.relname}_<why>_idx"
        case _:
            parts = []
    for part, table in parts:
        yield from _part(text, part, table)


def _part(text: str, part: ast.Node | None, table: str) -> Iterator[str]:
    if isinstance(part, ast.ColumnDef):
        kind = sql.names(part.typeName)[-1]
        if kind in ("int2", "int4") and _SMALL.get(part.colname) != kind:
            yield f"line {_line(text, part)}: {table}.{part.colname} is no bigint"
        for constraint in part.constraints or ():
            yield from _part(text, constraint, table)
    elif isinstance(part, ast.Constraint) and part.contype in _SUFFIX:
        suffix = _SUFFIX[part.contype]
        wanted = re.compile(rf"{table}_(?:\w+_)?{suffix}")
        if not wanted.fullmatch(part.conname or ""):
            yield f"line {_line(text, part)}: name the constraint {table}_<rule>_{suffix}"


def _grown(text: str, node: ast.AlterTableStmt) -> Iterator[str]:
    for command in node.cmds:
        if command.subtype == AlterTableType.AT_AddColumn and not command.missing_ok:
            yield f"line {_line(text, node)}: write add column if not exists"


def _line(text: str, node: ast.Node) -> int:
    return line_of(text, max(sql.position(node), 0))
