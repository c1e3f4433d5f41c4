"""What a generated statement costs and how it is planned, by its name and arguments.

Totals come from pg_stat_statements, not from the top plan node: a data-modifying CTE that the main
query does not read to its end runs after it and is missing there.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NoReturn
from unittest.mock import patch

from psycopg import Connection, RawCursor, sql
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row

from jobs_sql._registry import STATEMENTS

_OPTIONS = "analyze, buffers, wal, format json"
_PROBE = "buffers_probe"
_WATCH = b"""
    set client_min_messages = warning;
    create extension if not exists pg_stat_statements schema public;
    reset client_min_messages;
    set pg_stat_statements.track = 'all'
"""
_RESET = """
    select public.pg_stat_statements_reset(0, d.oid, 0)
    from pg_catalog.pg_database as d
    where d.datname = current_database()
"""
_TOTALS = """
    select
        s.shared_blks_hit + s.shared_blks_read, s.shared_blks_dirtied,
        s.wal_bytes, s.wal_records, s.rows
    from public.pg_stat_statements as s
    inner join pg_catalog.pg_database as d on d.oid = s.dbid and d.datname = current_database()
    where s.query like $1 and not s.toplevel and s.calls = 1
"""


@dataclass(frozen=True)
class Node:
    """One node of a plan.

    part: the CTE or sub-plan it starts, or the CTE it reads.
    buffers: shared hit and read, its children's included.
    """

    kind: str
    relation: str | None
    index: str | None
    part: str | None
    depth: int
    rows: float
    loops: float
    buffers: int
    raw: dict[str, Any]

    def __str__(self) -> str:
        parts = [self.kind, self.relation and f"on {self.relation}", self.index, self.part]
        name = " ".join(part for part in parts if part)
        return f"{'  ' * self.depth}{name} (rows {self.rows:g} x {self.loops:g}, {self.buffers})"


@dataclass(frozen=True)
class Plan:
    """One execution of a statement.

    buffers: shared buffers it touched (hit and read); dirtied: those it changed first.
    wal_bytes, wal_records: what it wrote, without the commit record.
    nodes: depth first, sub-plans and CTEs included.
    planning_ms is apart from execution_ms, and planning's buffers are in none of these.
    """

    buffers: int
    dirtied: int
    wal_bytes: int
    wal_records: int
    rows: int
    nodes: tuple[Node, ...]
    planning_ms: float
    execution_ms: float

    @property
    def kinds(self) -> set[str]:
        """Types of the nodes: 'Sort', 'Seq Scan', 'Index Scan', ..."""
        return {node.kind for node in self.nodes}

    @property
    def indexes(self) -> set[str]:
        """Names of the indexes in the plan."""
        return {node.index for node in self.nodes if node.index}

    def on(self, relation: str) -> list[Node]:
        """The nodes that read or write a relation (its bare name); index-only ones included."""
        return [node for node in self.nodes if node.relation == relation]

    def __str__(self) -> str:
        head = f"{self.buffers} buffers, {self.wal_bytes} WAL bytes, {self.rows} rows"
        return "\n".join([head, *map(str, self.nodes)])


class _CapturedError(Exception):
    pass


class _Capture(RawCursor[Any]):
    """Takes the place of the cursor in a generated function and keeps what it would send."""

    def execute(self, query: Any, params: Any = None, **_: Any) -> NoReturn:
        raise _CapturedError(query, params or ())


def encoded(
    conn: Connection[Any], name: str, /, **params: Any
) -> tuple[str, tuple[str | None, ...]]:
    """The text and the encoded parameters that the generated function of a statement sends."""
    statement = STATEMENTS[name]
    module = importlib.import_module(f"jobs_sql.{statement.module}")
    with patch.object(module, "RawCursor", _Capture):
        try:
            getattr(module, statement.function)(conn, **params)
        except _CapturedError as call:
            text, values = call.args
            return text, values
    raise AssertionError(f"{name} sends no single statement")


def explain(conn: Connection[Any], name: str, /, *, generic: bool = False, **params: Any) -> Plan:
    """Run a generated statement under EXPLAIN ANALYZE; what it does happens.

    conn: an autocommit session, or one in a transaction that the caller ends.
    name: the statement's name in queries/; params: the arguments of its function.
    generic: plan it once for all values, as a prepared statement is after five runs.
    Planning it once before warms the session's caches, so that equal calls give equal buffers.
    """
    text, values = encoded(conn, name, **params)
    with RawCursor(conn, row_factory=tuple_row) as cursor, _watched(cursor):
        if generic:
            cursor.execute(f"prepare {_PROBE} as {text}")
            text, values = _execute_probe(cursor, values), ()
        cursor.execute(f"explain {text}", values, prepare=False)
        cursor.execute(_RESET)
        cursor.execute(f"explain ({_OPTIONS}) {text}", values, prepare=False)
        plan = _only(cursor)[0][0]
        totals = cursor.execute(_TOTALS, [f"%/* jobs:{STATEMENTS[name].function} */%"])
        buffers, dirtied, wal_bytes, wal_records, rows = _only(totals)
        if generic:
            cursor.execute(f"deallocate {_PROBE}")
    return Plan(
        buffers=buffers,
        dirtied=dirtied,
        wal_bytes=int(wal_bytes),
        wal_records=wal_records,
        rows=rows,
        nodes=tuple(_nodes(plan["Plan"])),
        planning_ms=plan["Planning Time"],
        execution_ms=plan["Execution Time"],
    )


@contextmanager
def _watched(cursor: RawCursor[Any]) -> Iterator[None]:
    """Count the statement under EXPLAIN, which is a nested one for pg_stat_statements."""
    cursor.execute(_WATCH)
    try:
        yield
    finally:
        if cursor.connection.info.transaction_status != TransactionStatus.INERROR:
            cursor.execute("reset pg_stat_statements.track")
            cursor.execute("reset plan_cache_mode")


def _execute_probe(cursor: RawCursor[Any], values: tuple[str | None, ...]) -> str:
    cursor.execute("set plan_cache_mode = force_generic_plan")
    if not values:
        return f"execute {_PROBE}"
    literals = sql.SQL(", ").join(map(sql.Literal, values)).as_string(cursor)
    return f"execute {_PROBE} ({literals})"


def _only(cursor: RawCursor[Any]) -> Any:
    rows = cursor.fetchall()
    assert len(rows) == 1, rows
    return rows[0]


def _nodes(raw: dict[str, Any], depth: int = 0) -> Iterator[Node]:
    yield Node(
        kind=raw["Node Type"],
        relation=raw.get("Relation Name"),
        index=raw.get("Index Name"),
        part=raw.get("Subplan Name") or raw.get("CTE Name"),
        depth=depth,
        rows=raw["Actual Rows"],
        loops=raw["Actual Loops"],
        buffers=raw["Shared Hit Blocks"] + raw["Shared Read Blocks"],
        raw={key: value for key, value in raw.items() if key != "Plans"},
    )
    for child in raw.get("Plans", ()):
        yield from _nodes(child, depth + 1)
