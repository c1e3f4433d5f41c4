"""Locks and writes are what the header says: they skip what is locked, or say whom they wait for,
and no statement changes a job that it does not hold."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from pglast import ast
from pglast.enums import LockWaitPolicy

from tests.lint import sql
from tests.lint.tree import line_of

FILES = ("queries/**/*.sql",)
_WAITS = re.compile(r"\bwaits (?:only )?for (?!nobody)", re.IGNORECASE)
# Columns that tell one holder of a job from the next.
_FENCES = {"claims", "run_id"}
_WRITES = ast.InsertStmt | ast.UpdateStmt | ast.DeleteStmt | ast.MergeStmt


def problems(text: str, path: Path) -> list[str]:
    """Locks that wait unannounced, headers without them, and writes without fence or bound."""
    found = []
    for statement in sql.statements(text):
        try:
            parsed = sql.parse(statement.text)
        except sql.SqlError as error:
            line = line_of(text, statement.start) + error.line - 1
            found.append(f"line {line}: {error.what}")
            continue
        for at, what in (fault for each in parsed for fault in _faults(statement, each.stmt)):
            found.append(f"line {line_of(text, statement.start + max(at, 0))}: {what}")
    return found


def _faults(statement: sql.Statement, node: ast.Node) -> Iterator[tuple[int, str]]:
    locks, fence = statement.header.get("locks", ""), statement.header.get("fence", "")
    reading, writing = [], []
    for part in sql.walk(node):
        if isinstance(part, ast.SelectStmt) and part.lockingClause:
            reading.append(part)
        elif isinstance(part, _WRITES):
            writing.append(part)
    for part in reading:
        for clause in part.lockingClause:
            yield from _lock(sql.position(part), clause, locks)
    if (reading or writing) and locks.startswith("none"):
        yield 0, "locks: none, but the statement locks or writes"
    locked = _locked(node)
    for part in writing:
        if isinstance(part, ast.UpdateStmt | ast.DeleteStmt):
            yield from _write(part, locked, fence)
        elif isinstance(part, ast.MergeStmt) and part.relation.relname == "job":
            yield sql.position(part), "merge into jobs.job: write fenced updates instead"


def _lock(at: int, clause: ast.LockingClause, locks: str) -> Iterator[tuple[int, str]]:
    if not clause.lockedRels:
        yield at, "a locking read must say which table: for update of <alias>"
    if clause.waitPolicy == LockWaitPolicy.LockWaitBlock and not _WAITS.search(locks):
        yield at, "a locking read without skip locked: say in `locks:` whom it waits for"


def _write(
    part: ast.UpdateStmt | ast.DeleteStmt, locked: set[str], fence: str
) -> Iterator[tuple[int, str]]:
    verb = "update" if isinstance(part, ast.UpdateStmt) else "delete"
    at, table = sql.position(part), f"{part.relation.schemaname}.{part.relation.relname}"
    if part.whereClause is None:
        yield at, f"{verb} of {table} without where"
    elif table == "jobs.job" and not fence.startswith("none, "):
        columns = {
            name
            for found in sql.walk(part.whereClause)
            if isinstance(found, ast.ColumnRef)
            for name in sql.names(found.fields)
        }
        sources = _sources(part)
        if not columns & _FENCES and not (sources and sources <= locked):
            yield at, f"{verb} of {table} tests neither claims nor rows locked by this statement"


def _sources(part: ast.UpdateStmt | ast.DeleteStmt) -> set[str]:
    from_list = part.fromClause if isinstance(part, ast.UpdateStmt) else part.usingClause
    return _relations([part.whereClause, from_list])


def _relations(node: object) -> set[str]:
    return {
        found.relname
        for found in sql.walk(node)
        if isinstance(found, ast.RangeVar) and found.schemaname is None
    }


def _locked(node: ast.Node) -> set[str]:
    """Names of the CTEs whose rows this statement has locked, directly or through another."""
    locked: set[str] = set()
    for clause in (part for part in sql.walk(node) if isinstance(part, ast.WithClause)):
        for cte in clause.ctes:
            query = cte.ctequery
            locks_itself = any(
                isinstance(part, ast.SelectStmt) and part.lockingClause for part in sql.walk(query)
            )
            sources = _relations(query)
            if locks_itself or (sources and sources <= locked):
                locked.add(cte.ctename)
    return locked
