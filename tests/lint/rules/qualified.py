"""Every name of ours has its schema, so that no search path can lead a statement elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pglast import ast
from pglast.enums import ObjectType

from tests.lint import sql
from tests.lint.catalog import Catalog, catalog_of, installed
from tests.lint.tree import line_of

FILES = ("queries/**/*.sql", "schema/**/*.sql")
SCHEMAS = ("jobs", "pg_catalog")
# Reads a name as late as the statement runs.
_LATE = {"nextval", "currval", "setval", "to_regclass", "pg_relation_size", "has_table_privilege"}
_WORDS = {ObjectType.OBJECT_SCHEMA: 1, ObjectType.OBJECT_COLUMN: 3}
_OF_TABLE = (ObjectType.OBJECT_TABCONSTRAINT, ObjectType.OBJECT_TRIGGER, ObjectType.OBJECT_POLICY)


def problems(text: str, path: Path) -> list[str]:
    """Relations, functions and types without `jobs.` or `pg_catalog.`."""
    try:
        return list(_Names(text).found())
    except sql.SqlError as error:
        return [str(error)]


@dataclass
class _Names:
    text: str

    def found(self) -> Iterator[str]:
        own = installed()
        if "create " in self.text:
            made = catalog_of([self.text])
            own = Catalog(functions=own.functions | made.functions, types=own.types | made.types)
        for statement in sql.parse(self.text):
            start = statement.stmt_location
            line = line_of(self.text, max(start, sql.position(statement.stmt)))
            for place, what in _visit(statement.stmt, frozenset(), own):
                at = line_of(self.text, place) if place > start else line
                yield f"line {at}: {what}"


def _visit(node: object, ctes: frozenset[str], own: Catalog) -> Iterator[tuple[int, str]]:
    if isinstance(node, tuple | list):
        for part in node:
            yield from _visit(part, ctes, own)
    if not isinstance(node, ast.Node):
        return
    yield from _name(node, ctes, own)
    inner, seen = ctes, set()
    if isinstance(getattr(node, "withClause", None), ast.WithClause):
        clause = node.withClause
        for cte in clause.ctes:
            known = [other.ctename for other in clause.ctes] if clause.recursive else []
            yield from _visit(cte.ctequery, inner.union(known), own)
            inner = inner.union([cte.ctename])
        seen.add("withClause")
    if isinstance(node, ast.LockingClause):
        return  # names aliases
    if isinstance(node, ast.InsertStmt | ast.UpdateStmt | ast.DeleteStmt | ast.MergeStmt):
        yield from _visit(node.relation, frozenset(), own)
        seen.add("relation")
    for name in node:
        if name not in seen:
            yield from _visit(getattr(node, name), inner, own)


def _name(node: ast.Node, ctes: frozenset[str], own: Catalog) -> Iterator[tuple[int, str]]:
    at = sql.position(node)
    match node:
        case ast.RangeVar(schemaname=None, relname=name):
            if name not in ctes:
                yield at, f"relation {name} without its schema"
        case ast.RangeVar(schemaname=schema, relname=name):
            if schema not in SCHEMAS:
                yield at, f"relation {schema}.{name} is of another schema"
        case ast.FuncCall(funcname=funcname, args=args):
            yield from _function(at, sql.names(funcname), args, own)
        case ast.TypeName(names=words):
            yield from _type(at, sql.names(words), own)
        case ast.TypeCast(arg=arg, typeName=type_name):
            if sql.names(type_name)[-1].startswith("reg"):
                yield from _late(at, arg)
        case ast.CreateFunctionStmt():
            yield from _defined(at, "function", node.funcname)
            yield from _body(at, node)
        case ast.CreateTrigStmt():
            yield from _defined(at, "function", node.funcname)
        case ast.CreateEnumStmt(typeName=words) | ast.CreateDomainStmt(domainname=words):
            yield from _defined(at, "type", words)
        case ast.DoStmt():
            yield at, "a body that this lint cannot read"
        case ast.DropStmt(objects=objects, removeType=kind):
            for each in objects:
                yield from _object(at, kind, each)
        case ast.CommentStmt(object=each, objtype=kind):
            yield from _object(at, kind, each)


def _function(at: int, words: list[str], args: object, own: Catalog) -> Iterator[tuple[int, str]]:
    name = words[-1]
    if len(words) == 1 and name in own.functions:
        yield at, f"function {name} without its schema"
    if len(words) > 1 and words[0] not in (*SCHEMAS, "sqlc"):
        yield at, f"function {'.'.join(words)} is of another schema"
    if name in _LATE and args:
        yield from _late(at, args[0])  # type: ignore[index]


def _type(at: int, words: list[str], own: Catalog) -> Iterator[tuple[int, str]]:
    if len(words) == 1 and words[0] in own.types:
        yield at, f"type {words[0]} without its schema"
    if len(words) > 1 and words[0] not in SCHEMAS:
        yield at, f"type {'.'.join(words)} is of another schema"


def _late(at: int, arg: object) -> Iterator[tuple[int, str]]:
    if isinstance(arg, ast.A_Const) and isinstance(arg.val, ast.String) and "." not in arg.val.sval:
        yield at, f"the string {arg.val.sval!r} names something without its schema"


def _defined(at: int, kind: str, words: object) -> Iterator[tuple[int, str]]:
    if len(found := sql.names(words)) == 1:
        yield at, f"{kind} {found[0]} without its schema"


def _object(at: int, kind: ObjectType, each: object) -> Iterator[tuple[int, str]]:
    needed = 3 if kind in _OF_TABLE else _WORDS.get(kind, 2)
    if len(words := sql.names(each)) < needed:
        yield at, f"{'.'.join(words)} without its schema"


def _body(at: int, node: ast.CreateFunctionStmt) -> Iterator[tuple[int, str]]:
    options = {option.defname: option.arg for option in node.options or ()}
    if "as" in options:
        yield at, "a body in a string, which this lint cannot read: write begin atomic"
