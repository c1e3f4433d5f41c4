"""What commands print: aligned tables for people, one JSON document for programs."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple
from uuid import UUID

ABSENT = "-"

_CONTROL: Final = re.compile(r"[\x00-\x08\x0a-\x1f\x7f-\x9f\u2028\u2029]")


def add_json(parser: argparse.ArgumentParser) -> None:
    """Give a command the option --json."""
    parser.add_argument(
        "--json", action="store_true", help="print one JSON document, times with their offset"
    )


def print_json(document: object) -> None:
    """Print a document of mappings, sequences, named tuples and values that rows hold."""
    json.dump(plain(document), sys.stdout, indent=2, ensure_ascii=True)
    sys.stdout.write("\n")


def plain(value: object) -> Any:
    """A value as JSON knows it: ids and times as text, durations in seconds."""
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return {key: plain(item) for key, item in value._asdict().items()}
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    return str(value) if isinstance(value, UUID) else value


def print_rows(rows: Sequence[NamedTuple | Mapping[str, Any]], columns: Mapping[str, str]) -> None:
    """Print rows as an aligned table.

    Args:
        rows: What to print; nothing at all where there is none.
        columns: Attribute or key of the rows, and the heading of its column.
    """
    if not rows:
        return
    values = [row if isinstance(row, Mapping) else row._asdict() for row in rows]
    texts = [[*columns.values()], *([shown(row[key]) for key in columns] for row in values)]
    numeric = [all(isinstance(row[key], int | None) for row in values) for key in columns]
    widths = [max(len(line[at]) for line in texts) for at in range(len(columns))]
    for line in texts:
        cells = (
            text.rjust(width) if right else text.ljust(width)
            for text, width, right in zip(line, widths, numeric, strict=True)
        )
        print("  ".join(cells).rstrip())


def print_fields(fields: Iterable[tuple[str, object]]) -> None:
    """Print names and values below each other, aligned."""
    lines = [(name, shown(value)) for name, value in fields]
    width = max(len(name) for name, _ in lines)
    for name, text in lines:
        print(f"{name.ljust(width)}  {text}".rstrip())


def one_line(text: str) -> str:
    """A text without what breaks lines or commands a terminal, for standard error."""
    return _CONTROL.sub(lambda found: ascii(found[0])[1:-1], text)


def shown(value: object) -> str:
    """A value in one line that a terminal takes: times of this machine's zone, with the offset."""
    if value is None or value == "":
        return ABSENT
    if isinstance(value, datetime):
        return value.astimezone().isoformat(sep=" ", timespec="seconds")
    if isinstance(value, timedelta):
        return f"{value.total_seconds():.1f} s"
    text = value if isinstance(value, str) else str(value)
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    printable = "".join(one if one.isprintable() else ascii(one)[1:-1] for one in text)
    return printable.encode(encoding, "backslashreplace").decode(encoding)
