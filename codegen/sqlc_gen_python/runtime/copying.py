"""COPY text for `:copyfrom`: a block of rows becomes a block of lines, column by column."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeAlias, TypeVar

T = TypeVar("T")

# The encoded fields of many rows in one column; None is NULL.
Column: TypeAlias = Sequence[str | None]

_NULL = r"\N"
_SPECIAL = "\\\t\n\r"
_ESCAPES = str.maketrans({"\\": r"\\", "\t": r"\t", "\n": r"\n", "\r": r"\r"})


def lines(columns: Iterable[Column]) -> str:
    """Make the COPY lines of rows that are given by their columns."""
    rows = zip(*[_escaped(column) for column in columns], strict=True)
    return "\n".join(map("\t".join, rows)) + "\n"


def chunks(
    blocks: Iterable[Sequence[T]], encode: Callable[[Sequence[T]], Iterable[Column]]
) -> Iterator[str]:
    """Yield the COPY text of each block of rows, reading the blocks one by one."""
    for rows in blocks:
        if rows:
            yield lines(encode(rows))


def _escaped(column: Column) -> Sequence[str]:
    first = column[0]
    if first is column[-1] and column.count(first) == len(column):
        return [_escape(first)] * len(column)
    texts = [text for text in column if text is not None]
    if len(texts) == len(column):
        # Most columns hold nothing to escape: one look at the joined text instead of one each.
        whole = "".join(texts)
        if not any(mark in whole for mark in _SPECIAL):
            return texts
    return [_escape(text) for text in column]


def _escape(text: str | None) -> str:
    return _NULL if text is None else text.translate(_ESCAPES)
