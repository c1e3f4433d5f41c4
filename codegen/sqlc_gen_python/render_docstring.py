"""Docstrings of generated functions, made of the statement's header and types."""

from __future__ import annotations

from .literals import wrap
from .model import Statement, Value

_HEADER_NOTES = ("locks", "index", "fence", "clock", "cost", "tx", "notify")


def lines_of(statement: Statement) -> list[str]:
    header = statement.header
    purpose = header["purpose"]
    lines = [*wrap(_sentence(purpose), "", ""), ""]
    lines += ["Args:", "    conn: Any psycopg connection of this flavour; nothing is committed."]
    if statement.command == ":copyfrom":
        lines.append(
            f"    blocks: What to copy, lists of `{statement.row_class}` that are read one by"
        )
        lines.append("        one and sent as a whole each.")
    else:
        lines += [f"    {value.python}: {_argument_doc(value)}." for value in statement.params]
    lines += ["", "Returns:", *_returns_doc(statement), ""]
    if not header.get("errors", "none").startswith("none"):
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
