"""docs/sql.md: every statement the library can send, for a database administrator."""

from __future__ import annotations

from collections.abc import Sequence

from .model import Statement

_PREAMBLE = """\
# Every statement

This page is written by `make generate` from the headers in `queries/`; edit those. It lists every
statement that sql-jobs sends, one section a capability (a file in `queries/`).

Nothing else is sent, with these exceptions:

- what psycopg sends by itself: `BEGIN`, `COMMIT`, `ROLLBACK` and savepoints, as the connection's
  transaction mode asks for;
- the `COPY ... FROM STDIN` that a statement marked *copy* is turned into (table and columns are
  those of the insert in the file);
- the DDL files of `schema/`, while `jobs migrate` installs them.

Each statement carries its name in a comment after its first keyword (`/* jobs:claim_jobs */`), so
that `pg_stat_statements`, `pg_stat_activity` and the server's log show it.
"""
_KINDS = {
    ":one": "a row or none",
    ":many": "rows",
    ":exec": "no result",
    ":execrows": "a row count",
    ":copyfrom": "copy, a row count",
}


def page(statements: Sequence[Statement]) -> str:
    """The text of docs/sql.md."""
    modules = sorted({statement.module for statement in statements})
    lines = [_PREAMBLE, "| capability | statements |", "| --- | --- |"]
    for module in modules:
        links = ", ".join(
            f"[{item.name}](#{item.name.lower()})" for item in statements if item.module == module
        )
        lines.append(f"| [{module}](#{_anchor(module)}) | {links} |")
    for module in modules:
        lines += ["", f"## {module}", "", f"`queries/{module}.sql`"]
        for item in statements:
            if item.module == module:
                lines += _section(item)
    return "\n".join(lines) + "\n"


def _anchor(module: str) -> str:
    return module.lower()


def _section(item: Statement) -> list[str]:
    lines = ["", f"### {item.name}", ""]
    lines += [
        f"Returns {_KINDS[item.command]}. Python: `jobs_sql.{item.module}.{item.function}`.",
        "",
    ]
    lines += ["| | |", "| --- | --- |"]
    lines += [
        f"| {key} | {_cell(text)} |" for key, text in item.header.items() if key != "nullable"
    ]
    params = ", ".join(
        f"`{value.name} {value.sql}`" + (" or null" if value.nullable else "")
        for value in item.params
    )
    lines.append(f"| parameters | {params or 'none'} |")
    if item.columns:
        columns = ", ".join(
            f"`{value.name} {value.sql}`" + (" or null" if value.nullable else "")
            for value in item.columns
        )
        lines.append(f"| columns | {columns} |")
    return lines


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")
