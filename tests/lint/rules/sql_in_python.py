"""No SQL in the runtime: a DBA who has read queries/ and schema/ has read all that is sent.

A string counts as SQL when PostgreSQL parses it as a statement that does something, or when it
has the marks of a part of one. Sentences do not parse, and single words are words.
"""

from __future__ import annotations

import ast as py
import re
from collections.abc import Iterator
from pathlib import Path

from pglast import ast

from tests.lint import python, sql

FILES = ("jobs/**/*.py",)
# The migration sends each schema file whole, and prints generated statements with their values as
# literals. Everything else goes through jobs_sql.
MIGRATION = "jobs/migrate.py"
_SENDING = {
    "execute",
    "executemany",
    "stream",
    "mogrify",
    "exec_",
    "exec_params",
    "exec_prepared",
    "send_query",
    "send_query_params",
    "send_prepare",
}
# Parse as statements and are sentences as well ("close pool", "lock timeout", "delete from the
# queue"): they need a mark that sentences do not have.
_ALSO_ENGLISH = (
    ast.ClosePortalStmt,
    ast.DeallocateStmt,
    ast.DiscardStmt,
    ast.ExecuteStmt,
    ast.FetchStmt,
    ast.ListenStmt,
    ast.LockStmt,
    ast.NotifyStmt,
    ast.TransactionStmt,
    ast.TruncateStmt,
    ast.VacuumStmt,
    ast.VariableSetStmt,
    ast.VariableShowStmt,
)
_MARK = re.compile(r"[_.=$;'\"(*]|isolation level|to savepoint")
_PIECE = re.compile(
    r"""
      \b(?:where|and|or|having|on|set)\s+[\w.]+\s*(?:=|<>|!=|<=?|>=?|\blike\b|\bin\s*\()\s*
        (?:\$\d|%s|'|any\b|\w+\.\w)
    | \bselect\s+\w+\.\w+ | \bselect\s+(?:\w+\s*,\s*)+$
    | \bselect\s+(?:[\w.]+\s*,\s*)*(?:[\w.]+|\w+\([^)]*\)|\$1)\s+from\s+(?:\$1|\w+\.\w+)
    | \b(?:insert\s+into|delete\s+from|merge\s+into|update)\s+(?:\$1|\w+\.\w+)\s*(?:\(|as\b|set\b|
        where\b|using\b|values\b|$)
    | \binsert\s+into\s+\w+\s*(?:\(|values\b|select\b) | \bdelete\s+from\s+\w+\s+where\b
    | \bupdate\s+\w+\s+set\s+\w+\s*=
    | \b(?:create|alter|drop)\s+(?:table|index|schema|function|type|view|trigger)\s+
        (?:if\s|\$1|\w+\.)
    | \bskip\s+locked\b | \bfor\s+no\s+key\s+update\b
    | \bfor\s+update\s*(?:of\b|skip\b|nowait\b|\)|;|$)
    | \bon\s+conflict\s+(?:\(|do\s+(?:nothing|update)\b)
    | \border\s+by\s+\w+\.\w | \breturning\s+\w+\.\w | \blimit\s+(?:\$\d|%s)
    | ::(?:text|int|integer|bigint|uuid|interval|timestamptz|jsonb?|boolean|regclass)\b
    """,
    re.IGNORECASE | re.VERBOSE,
)


def problems(text: str, path: Path) -> list[str]:
    """SQL in strings, ways around jobs_sql to send some, and uses of `psycopg.sql`."""
    found = [
        f"line {literal.line}: SQL in a string: {_short(literal.text)}"
        for literal in python.literals(text)
        if not literal.is_doc and is_sql(literal.text)
    ]
    is_migration = path.as_posix().endswith(MIGRATION)
    for node in py.walk(python.tree(text)):
        found += _composed(node, may_quote=is_migration)
        found += _sent(node, may_send=is_migration)
    return found


def is_sql(text: str) -> bool:
    """Whether a string is a statement or a part of one."""
    plain = re.sub(r"%s|%\(\w+\)s|\{\w*\}", python.HOLE, text)
    return bool(_PIECE.search(plain)) or _is_statement(plain)


def _is_statement(text: str) -> bool:
    if len(text.split()) < 2 and not re.search(r"[;(]", text):
        return False
    try:
        return any(_does_something(statement.stmt, text) for statement in sql.parse(text))
    except sql.SqlError:
        return False


def _does_something(statement: ast.Node, text: str) -> bool:
    if isinstance(statement, ast.SelectStmt):
        columns = [target.val for target in statement.targetList or ()]
        says_nothing = all(isinstance(column, ast.ColumnRef) for column in columns)
        return bool(statement.fromClause or statement.valuesLists) or not says_nothing
    ambiguous = isinstance(statement, _ALSO_ENGLISH) or (
        isinstance(statement, ast.DeleteStmt) and not statement.whereClause
    )
    return not ambiguous or bool(_MARK.search(text))


def _composed(node: py.AST, *, may_quote: bool) -> Iterator[str]:
    match node:
        case py.ImportFrom(module="psycopg.sql", names=[py.alias(name="Literal")]) if may_quote:
            return
        case py.ImportFrom(module="psycopg", names=names) if any(n.name == "sql" for n in names):
            pass
        case (
            py.ImportFrom(module="psycopg.sql")
            | py.Attribute(value=py.Name(id="psycopg"), attr="sql")
        ):
            pass
        case py.Import(names=names) if any(n.name == "psycopg.sql" for n in names):
            pass
        case _:
            return
    yield f"line {getattr(node, 'lineno', 0)}: psycopg.sql composes statements"


def _sent(node: py.AST, *, may_send: bool) -> Iterator[str]:
    match node:
        case py.Call(func=py.Attribute(attr=name), args=[first, *_]):
            literal = python.text_of(first) is not None
            if name in _SENDING and (literal or not may_send):
                what = "a literal" if literal else "a text of its own"
                yield f"line {node.lineno}: .{name}() sends {what}"
            elif name == "copy" and literal:
                yield f"line {node.lineno}: .{name}() sends a literal"


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 60 else f"{line[:57]}..."
