"""COPY text for `:copyfrom`: rows as lines, in chunks of a steady size."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeAlias, TypeVar

T = TypeVar("T")

# The encoded fields of one row; None is NULL.
Fields: TypeAlias = tuple[str | None, ...]

_CHUNK = 64 * 1024  # characters; large enough to hide the cost of a send, small enough to stream
_ESCAPES = str.maketrans({"\\": r"\\", "\t": r"\t", "\n": r"\n", "\r": r"\r"})


def line(fields: Fields) -> str:
    """Make one COPY line of a row's encoded fields."""
    return (
        "\t".join([r"\N" if field is None else field.translate(_ESCAPES) for field in fields])
        + "\n"
    )


def chunks(rows: Iterable[T], encode: Callable[[T], Fields]) -> Iterator[str]:
    """Yield the COPY text of the rows in chunks, reading them one by one."""
    lines: list[str] = []
    size = 0
    for row in rows:
        text = line(encode(row))
        lines.append(text)
        size += len(text)
        if size >= _CHUNK:
            yield "".join(lines)
            lines, size = [], 0
    if lines:
        yield "".join(lines)
