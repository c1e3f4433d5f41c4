"""Habits of the schema files that need a server or their bytes; the others are in tests/lint."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, get_args

import pytest
from pglast import ast
from psycopg import Connection

from jobs.inspect import JobState
from jobs.migrate import migrate
from jobs.shipped import shipped
from jobs_sql._registry import STATEMENTS
from tests.lint import sql
from tests.schema.ship import Ship
from tests.support.server import ROOT

# Columns whose name says all there is to say, wherever they stand.
SELF_EVIDENT = {
    "applied_at",
    "applied_by",
    "attempt",
    "created_at",
    "error_message",
    "error_type",
    "failed_at",
    "idempotency_key",
    "max_attempts",
    "name",
    "paused_at",
    "paused_by",
    "queue",
    "settled_at",
    "traceback",
}
# What the comment of the table says already.
SAID_BY_TABLE = {
    "counter.amount",
    "job.state",
    "migration.checksum",
    "migration.version",
    "pause.kind",
}
# Columns that other tables share with jobs.job, and ids of other tables' rows.
SAME_AS = {"settled": "job", "attempt": "settled", "outbox": "job", "slot": "job"}


def uncommented(conn: Connection[Any]) -> list[str]:
    """Tables and columns without a comment that need one."""
    found = conn.execute(
        """
        select c.relname, a.attname, col_description(c.oid, a.attnum)
        from pg_class as c
        inner join pg_attribute as a on a.attrelid = c.oid
        where
            c.relnamespace = 'jobs'::regnamespace and c.relkind = 'r'
            and a.attnum > 0 and not a.attisdropped
        """
    ).fetchall()
    columns = {(table, column): comment for table, column, comment in found}
    tables = conn.execute(
        "select relname from pg_class where relnamespace = 'jobs'::regnamespace "
        "and relkind = 'r' and obj_description(oid, 'pg_class') is null"
    ).fetchall()
    return sorted(
        [name for (name,) in tables]
        + [f"{table}.{column}" for table, column in columns if not _said(columns, table, column)]
    )


def _said(columns: Mapping[tuple[str, str], str | None], table: str, column: str) -> bool:
    if f"{table}.{column}" in SAID_BY_TABLE or column in SELF_EVIDENT:
        return True
    if columns[table, column]:
        return True
    if column.endswith("_id") and (column.removesuffix("_id"), "id") in columns:
        return True
    origin = SAME_AS.get(table)
    return origin is not None and (origin, column) in columns and _said(columns, origin, column)


def test_every_table_and_column_that_is_not_self_evident_has_a_comment(
    owner: Connection[Any],
) -> None:
    migrate(owner)
    assert uncommented(owner) == []


def test_what_has_no_comment_is_found(owner: Connection[Any], ship: Ship) -> None:
    ship.more(
        "create table jobs.bad (id bigint not null, queue text not null, odd text, job_id uuid);"
        "comment on column jobs.bad.id is 'Number.';"
    )
    migrate(owner)
    assert uncommented(owner) == ["bad", "bad.odd"]


def faults(data: bytes) -> Iterator[str]:
    """What would make a file mean something else on another machine, or end our transaction."""
    if not data.isascii():
        yield "not ASCII: its meaning would depend on the encoding of the session"
    if b"\r" in data:
        yield "carriage returns"
    if not data.endswith(b";\n"):
        yield "does not end with a semicolon and one newline"
    for statement in sql.parse(data.decode(errors="replace")):
        if isinstance(statement.stmt, ast.TransactionStmt):
            yield "transaction control: the installer commits all files together, or none"
        if isinstance(statement.stmt, ast.VariableSetStmt):
            yield "a setting that would outlive the file"
        if isinstance(statement.stmt, ast.CopyStmt):
            yield "copy, which the installer does not speak"


@pytest.mark.parametrize("path", sorted((ROOT / "schema").glob("*.sql")), ids=lambda p: p.name)
def test_files_are_plain(path: Path) -> None:
    assert list(faults(path.read_bytes())) == []


@pytest.mark.parametrize(
    ("data", "fault"),
    [
        ("comment on table jobs.job is 'Größe';\n".encode(), "not ASCII"),
        (b"\xef\xbb\xbfselect 1;\n", "not ASCII"),
        (b"select 1;\r\n", "carriage returns"),
        (b"select 1", "does not end"),
        (b"select 1;\n-- done\n", "does not end"),
        (b"begin;\nselect 1;\ncommit;\n", "transaction control"),
        (b"set search_path = x;\n", "a setting"),
        (b"copy jobs.job from stdin;\n", "copy"),
    ],
)
def test_files_that_are_not_plain_are_found(data: bytes, fault: str) -> None:
    assert any(found.startswith(fault) for found in faults(data))


def test_what_ships_is_what_is_in_the_repository() -> None:
    """The package's copy, in the order of the numbers, and the checksum is sha256sum's."""
    files = sorted((ROOT / "schema").glob("*.sql"))
    assert [(file.name, file.text, file.checksum) for file in shipped()] == [
        (path.stem, path.read_bytes(), hashlib.sha256(path.read_bytes()).hexdigest())
        for path in files
    ]
    versions = [file.version for file in shipped()]
    assert versions == list(range(len(versions))), "each number once, and none left out"


_WRITES = re.compile(
    r"\b(?:insert(?: /\*[^*]*\*/)? into|update(?: /\*[^*]*\*/)?|delete(?: /\*[^*]*\*/)? from)"
    r" jobs\.(?:job|settled)\b"
)


def test_the_page_about_the_schema_names_every_table_state_and_writer(
    owner: Connection[Any],
) -> None:
    migrate(owner)
    page = (ROOT / "docs" / "schema.md").read_text()
    tables = owner.execute(
        "select relname from pg_class where relnamespace = 'jobs'::regnamespace and relkind = 'r'"
    ).fetchall()
    assert set(re.findall(r"^\| `jobs\.(\w+)` \|", page, re.MULTILINE)) == {t for (t,) in tables}
    states = {
        state
        for table in ("job", "settled")
        for state in re.findall(r"'(\w+)'::text", check_of(owner, f"{table}_state_check"))
    }
    listed = re.findall(r"^\| `(\w+)` \| `(?:job|settled)` \|", page, re.MULTILINE)
    assert sorted(listed) == sorted(states)
    assert states | {"delayed"} == set(get_args(JobState))
    named = {word for word in re.findall(r"`([A-Z]\w+)`", page) if word in STATEMENTS}
    writers = {name for name, statement in STATEMENTS.items() if _WRITES.search(statement.text)}
    assert named == writers | {"CopyJobs"}


def check_of(conn: Connection[Any], name: str) -> str:
    """The text of a check constraint."""
    row = conn.execute(
        "select pg_get_constraintdef(oid) from pg_constraint where conname = %s", [name]
    ).fetchone()
    assert row is not None
    text: str = row[0]
    return text
