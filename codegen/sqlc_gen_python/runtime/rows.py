"""From the driver's values to rows: row factories, and what the driver leaves as text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any, Protocol, TypeVar

T = TypeVar("T")
E = TypeVar("E", bound=Enum)
T_co = TypeVar("T_co", covariant=True)


class Rows(Protocol[T_co]):
    """A psycopg row factory that serves the synchronous and the asynchronous cursor alike."""

    def __call__(self, cursor: Any, /) -> Callable[[Sequence[Any]], T_co]:
        """Return the function that makes a row of a sequence of values."""
        ...


def rows_of(make: Callable[[Sequence[Any]], T]) -> Rows[T]:
    """Return a row factory that builds each row with `make`."""

    def factory(_cursor: Any, /) -> Callable[[Sequence[Any]], T]:
        return make

    return factory


def first(values: Sequence[Any]) -> Any:
    """Make a row of a one-column result: the bare value."""
    return values[0]


def enums(kind: type[E], literal: str) -> list[E]:
    """Read an array literal of an enum type whose elements are never NULL."""
    return [kind(item) for item in split_array(literal)]


def enums_or_none(kind: type[E], literal: str) -> list[E | None]:
    """Read an array literal of an enum type; NULL elements are None."""
    return [None if item is None else kind(item) for item in split_array(literal)]


def split_array(literal: str) -> list[str | None]:
    """Split a one-dimensional array literal as the server prints it."""
    items: list[str | None] = []
    pos, end = literal.index("{") + 1, len(literal) - 1
    while pos < end:
        if literal[pos] == '"':
            pos += 1
            chars: list[str] = []
            while literal[pos] != '"':
                if literal[pos] == "\\":
                    pos += 1
                chars.append(literal[pos])
                pos += 1
            items.append("".join(chars))
            pos += 2
        else:
            comma = literal.find(",", pos)
            stop = end if comma < 0 else comma
            word = literal[pos:stop]
            items.append(None if word == "NULL" else word)
            pos = stop + 1
    return items
