"""One module a query file: constants, row types, functions in both flavours."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from . import render_docstring
from .copytext import copy_text
from .literals import WIDTH, block, docstring
from .model import Statement, Value

_NOQA = "# ruff: noqa: E501  (SQL keeps the width of its file)"


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


def module(banner: str, statements: Sequence[Statement]) -> str:
    """The source of the module for one query file."""
    stem = statements[0].module
    body = "\n\n\n".join(_statement(statement) for statement in statements)
    names = sorted(
        (name for statement in statements for name in statement.public_names), key=_sort_key
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
    if "partial" in used:
        lines.append("from functools import partial")
    typing = [name for name in ("Any", "Final", "NamedTuple") if name in used]
    lines.append(f"from typing import {', '.join(typing)}")
    if "UUID" in used:
        lines.append("from uuid import UUID")
    local = [name for name in ("_adapt", "_copying", "_encode", "_rows") if name in used]
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
    parts = [
        _types(statement),
        _decoder(statement),
        _constants(statement),
        _copy_encoder(statement) if statement.copy else "",
        _function(statement, SYNC),
        _function(statement, ASYNC),
    ]
    return "\n\n\n".join(part for part in parts if part)


def _types(statement: Statement) -> str:
    if statement.copy:
        return _named_tuple(
            statement.row_class,
            f"One row for `{statement.function}`.",
            [(value, value.argument) for value in statement.params],
        )
    if len(statement.columns) > 1:
        return _named_tuple(
            statement.row_class,
            f"A row of `{statement.function}`.",
            [(value, value.result) for value in statement.columns],
        )
    return ""


def _named_tuple(name: str, summary: str, fields: Iterable[tuple[Value, str]]) -> str:
    lines = [f"class {name}(NamedTuple):", f'    """{summary}"""', ""]
    lines.extend(f"    {value.python}: {annotation}" for value, annotation in fields)
    return "\n".join(lines)


def _constants(statement: Statement) -> str:
    text = copy_text(statement.copy, statement.text) if statement.copy else statement.text
    lines = [f"{statement.constant}: Final = {block(text)}"]
    if statement.columns:
        lines.append(_oids(statement))
        lines.append(_row_factory(statement))
    return "\n".join(lines)


def _row_factory(statement: Statement) -> str:
    if _has_enums(statement):
        make = f"_{statement.function}_row"
    elif len(statement.columns) == 1:
        make = "_rows.first"
    else:
        make = f"{statement.row_class}._make"
    name = f"_{statement.constant}_ROWS: _rows.Rows[{_row_type(statement)}]"
    line = f"{name} = _rows.rows_of({make})"
    return line if len(line) <= WIDTH else f"{name} = _rows.rows_of(\n    {make}\n)"


def _has_enums(statement: Statement) -> bool:
    return any(column.type.enum for column in statement.columns)


def _row_type(statement: Statement) -> str:
    return statement.row_class if len(statement.columns) > 1 else statement.columns[0].result


def _decoder(statement: Statement) -> str:
    """The function that makes a row where the driver's values need a conversion."""
    if not _has_enums(statement):
        return ""
    values = [_decode(column, f"v[{at}]") for at, column in enumerate(statement.columns)]
    head = f"def _{statement.function}_row(v: Sequence[Any]) -> {_row_type(statement)}:"
    if len(values) == 1:
        return f"{head}\n    return {values[0]}"
    return "\n".join(
        [
            head,
            f"    return {statement.row_class}(",
            *(f"        {value}," for value in values),
            "    )",
        ]
    )


def _decode(column: Value, source: str) -> str:
    if not column.type.enum:
        return source
    if column.is_array:
        helper = "enums_or_none" if column.null_elements else "enums"
        value = f"_rows.{helper}({column.type.enum}, {source})"
    else:
        value = f"{column.type.enum}({source})"
    return f"None if {source} is None else {value}" if column.nullable else value


def _copy_encoder(statement: Statement) -> str:
    return "\n".join(
        [
            f"def _{statement.function}_columns(",
            f"    rows: Sequence[{statement.row_class}],",
            ") -> list[_copying.Column]:",
            "    columns = zip(*rows, strict=True)",
            "    return [",
            *(f"        {_encoded_column(value)}," for value in statement.params),
            "    ]",
        ]
    )


def _encoded_column(value: Value) -> str:
    encode = "_encode.optional_column" if value.nullable else "_encode.column"
    encoder = f"_encode.{value.type.encoder}"
    if value.is_array:
        array = "quoted_array" if value.type.encoder in ("text", "bytea") else "array"
        encoder = f"partial(_encode.{array}, {encoder})"
    return f"{encode}({encoder}, next(columns))"


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
    name = statement.async_function if flavour.suffix else statement.function
    if statement.copy:
        arguments = [f"blocks: Iterable[Sequence[{statement.row_class}]]"]
    else:
        arguments = [f"{value.python}: {value.argument}" for value in statement.params]
    lines = _signature(flavour, name, arguments, returns(statement), keyword=not statement.copy)
    lines.extend(docstring(render_docstring.lines_of(statement), "    "))
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
    row = _row_type(statement)
    if statement.command == ":many":
        return f"list[{row}]"
    return row if row.endswith("| None") else f"{row} | None"


def _body(statement: Statement, flavour: Flavour) -> list[str]:
    wait, enter = flavour.wait, flavour.enter
    factory = f", row_factory=_{statement.constant}_ROWS" if statement.columns else ""
    lines = [f"    {enter} {flavour.cursor}(conn{factory}) as cur:"]
    if statement.copy:
        call = f"_copying.chunks(blocks, _{statement.function}_columns)"
        lines += [
            f"        {enter} cur.copy({statement.constant}) as copy:",
            f"            for chunk in {call}:",
            f"                {wait}copy.write(chunk)",
            "        return cur.rowcount",
        ]
        return lines
    if statement.params or statement.columns:
        oids = f"_{statement.constant}_OIDS" if statement.columns else "()"
        lines.append(f"        _adapt.own(cur, {oids})")
    lines.extend(_execute(statement, f"        {wait}cur.execute"))
    if statement.command == ":many":
        lines.append(f"        return {wait}cur.fetchall()")
    elif statement.command == ":one":
        lines.append(f"        return {wait}cur.fetchone()")
    elif statement.command == ":execrows":
        lines += [
            "        if cur.rowcount < 0:  # pipeline mode: the count comes with a sync",
            f"            {enter} conn.pipeline():",
            "                pass",
            "        return cur.rowcount",
        ]
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


def _oids(statement: Statement) -> str:
    name, oids = f"_{statement.constant}_OIDS: Final", [str(oid) for oid in statement.result_oids]
    line = f"{name} = ({', '.join(oids)}{',' if len(oids) == 1 else ''})"
    if len(line) <= WIDTH:
        return line
    return "\n".join([f"{name} = (", *(f"    {oid}," for oid in oids), ")"])
