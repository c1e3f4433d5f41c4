"""One module a query file: constants, row types, functions in both flavours."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from .literals import WIDTH, block, docstring, wrap
from .model import Statement, Value

_NOQA = "# ruff: noqa: E501  (SQL keeps the width of its file)"
_HEADER_NOTES = ("locks", "index", "fence", "clock", "cost", "tx", "notify")


@dataclass(frozen=True, slots=True)
class Flavour:
    """What differs between the synchronous and the asynchronous function."""

    suffix: str
    define: str
    connection: str
    cursor: str
    enter: str
    wait: str


SYNC = Flavour("", "def", "Connection[Any]", "RawCursor", "with", "")
ASYNC = Flavour(
    "_async", "async def", "AsyncConnection[Any]", "AsyncRawCursor", "async with", "await "
)


def async_name(statement: Statement) -> str:
    """The name of the asynchronous function."""
    return f"{statement.function.rstrip('_')}_async"


def row_name(statement: Statement) -> str:
    """The name of the row type of a result with several columns."""
    return f"{statement.name}Row"


def params_name(statement: Statement) -> str:
    """The name of the row type that `:copyfrom` takes."""
    return f"{statement.name}Params"


def copy_text(statement: Statement) -> str:
    """The COPY statement of a `:copyfrom`, derived from its insert."""
    match = re.search(r"\binto\s+([^\s(]+)", statement.text, re.IGNORECASE)
    target = match[1] if match else ""
    columns = ", ".join(_identifier(name) for name in statement.copy_columns)
    comment = re.search(r"/\*.*?\*/ ", statement.text)
    return f"copy {comment[0] if comment else ''}{target} ({columns}) from stdin"


def public_names(statement: Statement) -> list[str]:
    """Every public name the statement adds to its module."""
    names = [statement.constant, statement.function, async_name(statement)]
    if len(statement.columns) > 1:
        names.append(row_name(statement))
    if statement.command == ":copyfrom":
        names.append(params_name(statement))
    return names


def module(banner: str, statements: Sequence[Statement]) -> str:
    """The source of the module for one query file."""
    stem = statements[0].module
    body = "\n\n\n".join(_statement(statement) for statement in statements)
    names = sorted(
        (name for statement in statements for name in public_names(statement)), key=_sort_key
    )
    exported = "".join(f'    "{name}",\n' for name in names)
    noqa = f"{_NOQA}\n\n" if any(len(line) > WIDTH for line in body.splitlines()) else ""
    title = f'"""Statements of queries/{stem}.sql."""'
    return (
        f"{banner}\n{title}\n\n{noqa}from __future__ import annotations\n\n"
        + _imports(statements, body)
        + f"\n\n__all__ = [\n{exported}]\n\n{_lead(statements)}{body}\n"
    )


def _sort_key(name: str) -> tuple[int, str]:
    # Constants, classes, functions: the order ruff asks for in __all__.
    return (0 if name.isupper() else 1 if name[:1].isupper() else 2, name)


def _lead(statements: Sequence[Statement]) -> str:
    # A class or function wants two blank lines before it, a constant one.
    first = statements[0]
    return "" if _types(first) == "" else "\n"


def _imports(statements: Sequence[Statement], body: str) -> str:
    used = set(re.findall(r"\b_?\w+\b", re.sub(r'(?s)"""(?:[^\\]|\\.)*?"""', "", body)))
    lines = []
    if "dt" in used:
        lines.append("import datetime as dt")
    abc = [name for name in ("Iterable", "Sequence") if name in used]
    if abc:
        lines.append(f"from collections.abc import {', '.join(abc)}")
    if "Decimal" in used:
        lines.append("from decimal import Decimal")
    typing = [name for name in ("Any", "Final", "NamedTuple") if name in used]
    lines.append(f"from typing import {', '.join(typing)}")
    if "UUID" in used:
        lines.append("from uuid import UUID")
    local = [name for name in ("_copying", "_encode", "_rows") if name in used]
    second = [
        "from psycopg import AsyncConnection, AsyncRawCursor, Connection, RawCursor",
    ]
    third = [f"from . import {', '.join(local)}"] if local else []
    if "Json" in used:
        third.append("from ._json import Json")
    enums = sorted(
        {
            value.type.enum
            for statement in statements
            for value in (*statement.params, *statement.columns)
            if value.type.enum
        }
    )
    if enums:
        third.extend(_from("enums", enums))
    groups = [lines, second, third]
    return "\n\n".join("\n".join(group) for group in groups if group)


def _from(name: str, items: Sequence[str]) -> list[str]:
    line = f"from .{name} import {', '.join(items)}"
    if len(line) <= WIDTH:
        return [line]
    return [f"from .{name} import (", *(f"    {item}," for item in items), ")"]


def _statement(statement: Statement) -> str:
    parts = [part for part in (_types(statement), _constants(statement)) if part]
    functions = [_function(statement, SYNC), _function(statement, ASYNC)]
    return "\n\n\n".join([*parts, *functions])


def _types(statement: Statement) -> str:
    if statement.command == ":copyfrom":
        return _named_tuple(
            params_name(statement),
            f"One row for `{statement.function}`.",
            [(value, value.argument) for value in statement.params],
        )
    if len(statement.columns) > 1:
        return _named_tuple(
            row_name(statement),
            f"A row of `{statement.function}`.",
            [(value, value.result) for value in statement.columns],
        )
    return ""


def _named_tuple(name: str, summary: str, fields: Iterable[tuple[Value, str]]) -> str:
    lines = [f"class {name}(NamedTuple):", f'    """{summary}"""', ""]
    lines.extend(f"    {value.python}: {annotation}" for value, annotation in fields)
    return "\n".join(lines)


def _constants(statement: Statement) -> str:
    text = copy_text(statement) if statement.command == ":copyfrom" else statement.text
    lines = [f"{statement.constant}: Final = {block(text)}"]
    if statement.columns:
        lines.append(_row_factory(statement))
    if statement.command == ":copyfrom":
        lines.append(_copy_encoder(statement))
    return "\n".join(lines[:1]) + ("\n" + lines[1] if len(lines) > 1 else "")


def _row_factory(statement: Statement) -> str:
    name = f"_{statement.constant}_ROWS"
    if len(statement.columns) == 1:
        column = statement.columns[0]
        annotation = f"_rows.Rows[{column.result}]"
        if not column.type.enum:
            return f"{name}: {annotation} = _rows.rows_of(_rows.first)"
        return _call(f"{name}: {annotation} = _rows.rows_of", [f"lambda v: {_decode(column, 0)}"])
    row = row_name(statement)
    if not any(column.type.enum for column in statement.columns):
        return f"{name} = _rows.rows_of({row}._make)"
    fields = [_decode(column, at) for at, column in enumerate(statement.columns)]
    inner = "".join(f"        {field},\n" for field in fields)
    return f"{name} = _rows.rows_of(\n    lambda v: {row}(\n{inner}    )\n)".replace(
        "        ", "        "
    )


def _decode(column: Value, at: int) -> str:
    if not column.type.enum:
        return f"v[{at}]"
    helper = "enum_list" if column.is_array else "enum_of"
    return f"_rows.{helper}({column.type.enum}, v[{at}])"


def _copy_encoder(statement: Statement) -> str:
    row = params_name(statement)
    lines = [
        "",
        "",
        f"def _{statement.function}_fields(row: {row}) -> tuple[str | None, ...]:",
        "    return (",
        *(f"        {_encoded(value, f'row.{value.python}')}," for value in statement.params),
        "    )",
    ]
    return "\n".join(lines)


def _encoded(value: Value, source: str) -> str:
    encoder = f"_encode.{value.type.encoder}"
    if value.is_array:
        quoted = "quoted_" if value.type.encoder in ("text", "bytea") else ""
        optional = "optional_" if value.nullable else ""
        return f"_encode.{optional}{quoted}array({encoder}, {source})"
    if value.nullable:
        return f"_encode.optional({encoder}, {source})"
    return f"{encoder}({source})"


def _function(statement: Statement, flavour: Flavour) -> str:
    name = async_name(statement) if flavour.suffix else statement.function
    if statement.command == ":copyfrom":
        arguments = [f"rows: Iterable[{params_name(statement)}]"]
    else:
        arguments = [f"{value.python}: {value.argument}" for value in statement.params]
    lines = _signature(
        flavour, name, arguments, returns(statement), keyword=statement.command != ":copyfrom"
    )
    lines.extend(docstring(_doc_lines(statement), "    "))
    lines.extend(_body(statement, flavour))
    return "\n".join(lines)


def _signature(
    flavour: Flavour, name: str, arguments: list[str], result: str, *, keyword: bool
) -> list[str]:
    conn = f"conn: {flavour.connection}"
    if not arguments:
        line = f"{flavour.define} {name}({conn}) -> {result}:"
        if len(line) <= WIDTH:
            return [line]
    star = ["    *,"] if keyword and arguments else []
    return [
        f"{flavour.define} {name}(",
        f"    {conn},",
        *star,
        *(f"    {argument}," for argument in arguments),
        f") -> {result}:",
    ]


def returns(statement: Statement) -> str:
    """The return annotation of the statement's functions."""
    if statement.command == ":exec":
        return "None"
    if statement.command in (":execrows", ":copyfrom"):
        return "int"
    row = row_name(statement) if len(statement.columns) > 1 else statement.columns[0].result
    if statement.command == ":many":
        return f"list[{row}]"
    return row if row.endswith("| None") else f"{row} | None"


def _body(statement: Statement, flavour: Flavour) -> list[str]:
    wait, enter = flavour.wait, flavour.enter
    factory = f", row_factory=_{statement.constant}_ROWS" if statement.columns else ""
    lines = [f"    {enter} {flavour.cursor}(conn{factory}) as cur:"]
    if statement.command == ":copyfrom":
        call = f"_copying.chunks(rows, _{statement.function}_fields)"
        lines += [
            f"        {enter} cur.copy({statement.constant}) as copy:",
            f"            for chunk in {call}:",
            f"                {wait}copy.write(chunk)",
            "        return cur.rowcount",
        ]
        return lines
    lines.extend(_execute(statement, f"        {wait}cur.execute"))
    if statement.command == ":many":
        lines.append(f"        return {wait}cur.fetchall()")
    elif statement.command == ":one":
        lines.append(f"        return {wait}cur.fetchone()")
    elif statement.command == ":execrows":
        lines.append("        return cur.rowcount")
    return lines


def _execute(statement: Statement, call: str) -> list[str]:
    if not statement.params:
        return [f"{call}({statement.constant})"]
    # RawCursor binds by position, and the position of `$n` is n.
    by_number = sorted(statement.params, key=lambda value: value.number)
    values = [_encoded(value, value.python) for value in by_number]
    if len(values) == 1:
        line = f"{call}({statement.constant}, ({values[0]},))"
        if len(line) <= WIDTH:
            return [line]
        values = [f"            ({values[0]},),"]
    else:
        values = [
            "            (",
            *(f"                {value}," for value in values),
            "            ),",
        ]
    return [f"{call}(", f"            {statement.constant},", *values, "        )"]


def _call(head: str, arguments: list[str]) -> str:
    line = f"{head}({', '.join(arguments)})"
    if len(line) <= WIDTH:
        return line
    return "\n".join([f"{head}(", *(f"    {argument}" for argument in arguments), ")"])


def _doc_lines(statement: Statement) -> list[str]:
    header = statement.header
    purpose = header["purpose"]
    lines = [*wrap(_sentence(purpose), "", ""), ""]
    lines += ["Args:", "    conn: Any psycopg connection of this flavour; nothing is committed."]
    if statement.command == ":copyfrom":
        lines.append(f"    rows: What to copy, read one by one; see `{params_name(statement)}`.")
    else:
        lines += [f"    {value.python}: {_argument_doc(value)}." for value in statement.params]
    lines += ["", "Returns:", *_returns_doc(statement), ""]
    if "errors" in header:
        lines += ["Raises:", *wrap(f"psycopg.Error: {header['errors']}", "    ", "        "), ""]
    for key in _HEADER_NOTES:
        if key in header:
            lines += wrap(f"{key.capitalize()}: {header[key]}", "", "    ")
    lines.append(f"Source: {statement.source}: {statement.name}")
    return lines


def _sentence(text: str) -> str:
    text = text[:1].upper() + text[1:]
    return text if text.endswith((".", "!", "?")) else f"{text}."


def _argument_doc(value: Value) -> str:
    parts = [f"`{value.sql}`"]
    if value.type.sql in ("json", "jsonb"):
        parts.append("as a document the caller serialised")
    if value.type.sql == "timestamptz":
        parts.append("with a time zone")
    if value.type.sql == "interval":
        parts.append("elapsed time")
    if value.is_array:
        parts.append("elements may be None" if value.null_elements else "no None in it")
    if value.nullable:
        parts.append("None is NULL")
    return ", ".join(parts)


def _returns_doc(statement: Statement) -> list[str]:
    shape = {
        ":one": "The first row, or None if there is none.",
        ":many": "All rows as a list, empty if there are none.",
        ":exec": "None.",
        ":execrows": "The number of rows the statement changed.",
        ":copyfrom": "The number of rows copied.",
    }[statement.command]
    if len(statement.columns) == 1:
        shape = {
            ":one": "The one column of the first row, or None if there is no row.",
            ":many": "The one column of all rows as a list, empty if there are none.",
        }[statement.command]
    lines = wrap(shape, "    ", "    ")
    if "rows" in statement.header:
        lines += wrap(_sentence(statement.header["rows"]), "    ", "    ")
    return lines


def _identifier(name: str) -> str:
    plain = re.fullmatch(r"[a-z_][a-z0-9_]*", name) and name not in _SQL_RESERVED
    return name if plain else '"' + name.replace('"', '""') + '"'


# What a column name must not be without quotes (PostgreSQL's reserved words).
_SQL_RESERVED = frozenset(
    "all analyse analyze and any array as asc asymmetric authorization binary both case cast check "
    "collate collation column concurrently constraint create cross current_catalog current_date "
    "current_role current_schema current_time current_timestamp current_user default deferrable "
    "desc distinct do else end except false fetch for foreign freeze from full grant group having "
    "ilike in initially inner intersect into is isnull join lateral leading left like limit "
    "localtime localtimestamp natural not notnull null offset on only or order outer overlaps "
    "placing primary references returning right select session_user similar some symmetric "
    "system_user table tablesample then to trailing true union unique user using variadic verbose "
    "when where window with".split()  # noqa: SIM905  (a list of a hundred strings reads worse)
)
