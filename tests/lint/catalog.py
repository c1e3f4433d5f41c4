"""What schema files create, read from the files: no server is needed to lint against it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache

from pglast import ast
from pglast.enums import AlterTableType, ConstrType, ObjectType

from . import sql, tree

_INDEXED = {
    ConstrType.CONSTR_PRIMARY: "pkey",
    ConstrType.CONSTR_UNIQUE: "key",
    ConstrType.CONSTR_EXCLUSION: "excl",
}


@dataclass
class Catalog:
    """Names without their schema. `indexes` has constraints that own one as well."""

    tables: dict[str, set[str]] = field(default_factory=dict)
    indexes: set[str] = field(default_factory=set)
    functions: set[str] = field(default_factory=set)
    types: set[str] = field(default_factory=set)
    commented: set[str] = field(default_factory=set)


@cache
def installed() -> Catalog:
    """The catalog that the files of schema/ make."""
    return catalog_of(tree.read(path) for path in tree.files("schema/*.sql"))


def catalog_of(texts: Iterable[str]) -> Catalog:
    """The catalog that these DDL files make, sent in this order. Raises sql.SqlError."""
    made = Catalog()
    for text in texts:
        for statement in sql.parse(text):
            _apply(made, statement.stmt)
    return made


def _apply(made: Catalog, statement: ast.Node) -> None:
    match statement:
        case ast.CreateStmt(relation=relation):
            made.tables[relation.relname] = set()
            for part in statement.tableElts or ():
                _column_or_constraint(made, relation.relname, part)
        case ast.AlterTableStmt(relation=relation, cmds=commands):
            for command in commands:
                if command.subtype in (
                    AlterTableType.AT_AddColumn,
                    AlterTableType.AT_AddConstraint,
                ):
                    _column_or_constraint(made, relation.relname, command.def_)
                elif command.subtype == AlterTableType.AT_DropConstraint:
                    made.indexes.discard(command.name)
        case ast.IndexStmt(idxname=name):
            made.indexes.add(name)
        case ast.CreateFunctionStmt(funcname=name):
            made.functions.add(sql.names(name)[-1])
        case ast.CreateEnumStmt(typeName=name) | ast.CreateDomainStmt(domainname=name):
            made.types.add(sql.names(name)[-1])
        case ast.CompositeTypeStmt(typevar=relation):
            made.types.add(relation.relname)
        case ast.DropStmt(objects=objects):
            for gone in (sql.names(found)[-1] for found in objects):
                made.indexes.discard(gone)
                made.tables.pop(gone, None)
        case ast.RenameStmt(renameType=ObjectType.OBJECT_INDEX, relation=relation, newname=name):
            made.indexes = (made.indexes - {relation.relname}) | {name}
        case ast.CommentStmt(objtype=ObjectType.OBJECT_TABLE, object=name):
            made.commented.add(sql.names(name)[-1])


def _column_or_constraint(made: Catalog, table: str, part: ast.Node) -> None:
    if isinstance(part, ast.ColumnDef):
        made.tables.setdefault(table, set()).add(part.colname)
        for constraint in part.constraints or ():
            _constraint(made, table, constraint, [part.colname])
    elif isinstance(part, ast.Constraint):
        _constraint(made, table, part, sql.names(part.keys))


def _constraint(made: Catalog, table: str, part: ast.Constraint, columns: list[str]) -> None:
    suffix = _INDEXED.get(part.contype)
    if suffix:
        between = [] if suffix == "pkey" else columns
        made.indexes.add(part.conname or "_".join([table, *between, suffix]))
