"""The header a reviewer reads: `-- key: text` lines directly under a statement's name line."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from .errors import GenerationError

KEYS = (
    "purpose",
    "callers",
    "tx",
    "locks",
    "index",
    "fence",
    "clock",
    "rows",
    "cost",
    "errors",
    "notify",
    "nullable",
)
REQUIRED = ("purpose", "callers", "locks", "index", "fence", "cost")

_NAME_LINE = re.compile(r"^--\s*name:\s*(\w+)")
_KEY_LINE = re.compile(r"^-- (\w+):\s*(.*?)\s*$")
_MORE_LINE = re.compile(r"^--  +(\S.*?)\s*$")


@dataclass(frozen=True, slots=True)
class Nullability:
    """
    What `nullable:` says. `columns` and `params` map a name to "may be null"; `elements` maps
    a name (a parameter's with its @) to "its array may hold nulls".
    """

    columns: Mapping[str, bool]
    params: Mapping[str, bool]
    elements: Mapping[str, bool]


def parse_source(source: str) -> dict[str, tuple[int, list[str]]]:
    """
    Find each statement's header lines in the text of a query file.

    Returns statement name -> (line number of the name line, the comment lines under it).
    The file is read instead of sqlc's `comments`, because those mix in comments of the
    statement's body and of its neighbours.
    """
    found: dict[str, tuple[int, list[str]]] = {}
    current: list[str] | None = None
    for number, line in enumerate(source.splitlines(), 1):
        if match := _NAME_LINE.match(line):
            current = []
            found[match[1]] = (number, current)
        elif current is not None and line.startswith("--"):
            current.append(line)
        else:
            current = None
    return found


def parse_header(where: str, lines: list[str]) -> dict[str, str]:
    """
    Read header lines into key -> text (continuations joined by one space), in KEYS order.

    Raises GenerationError for a line that is no key line, an unknown, repeated or empty key,
    and a required key that is missing.
    """
    fields: dict[str, list[str]] = {}
    key = ""
    for line in lines:
        if match := _KEY_LINE.match(line):
            key = match[1]
            if key not in KEYS:
                raise GenerationError(
                    where, f"unknown header key {key!r}", f"use one of {', '.join(KEYS)}"
                )
            if key in fields:
                raise GenerationError(
                    where, f"header key {key!r} appears twice", "join the two into one"
                )
            fields[key] = [match[2]] if match[2] else []
        elif (match := _MORE_LINE.match(line)) and key:
            fields[key].append(match[1])
        else:
            raise GenerationError(
                where,
                f"header line {line!r} is neither `-- key: text` nor a continuation",
                "write `-- key: text`; indent a continuation deeper than the key",
            )
    missing = [name for name in REQUIRED if not fields.get(name)]
    if missing:
        raise GenerationError(
            where,
            f"header key {', '.join(missing)} missing or empty",
            "say it directly under the `-- name:` line (`-- fence: none, <reason>` is legal)",
        )
    return {name: " ".join(fields[name]) for name in KEYS if fields.get(name)}


def parse_nullable(where: str, text: str) -> Nullability:
    """
    Read the value of `nullable:`, a comma-separated list: `col` may be null, `-col` may not,
    `@param` accepts None, `-@param` does not, and with `[]` behind the name the same about the
    elements of an array.
    """
    columns: dict[str, bool] = {}
    params: dict[str, bool] = {}
    elements: dict[str, bool] = {}
    for item in filter(None, (part.strip() for part in text.split(","))):
        match = re.fullmatch(r"(-?)(@?)([^\s@\[\]-][^\s\[\]]*)(\[\])?", item)
        if not match:
            raise GenerationError(
                where,
                f"cannot read {item!r} in `nullable:`",
                "write a comma-separated list of col, -col, @param, -@param, col[], -col[]",
            )
        minus, at, name, brackets = match.groups()
        target = elements if brackets else params if at else columns
        full = at + name if brackets else name
        if full in target:
            raise GenerationError(where, f"`nullable:` names {item!r} twice", "keep one")
        target[full] = not minus
    return Nullability(columns, params, elements)
