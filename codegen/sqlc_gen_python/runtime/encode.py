"""
Text for parameters: every value is sent as a literal whose type the statement's cast decides.

Each function takes a Python value and returns what PostgreSQL reads for the SQL type it is named
after. One spelling for a type means one prepared plan a statement, whatever the value's size, and
no dependence on what the connection's owner registered. A value of a wrong Python type raises
TypeError, one that the type cannot express ValueError; the server sees neither.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any, TypeAlias
from uuid import UUID

# Any: the functions of the modules carry the precise types.
Encoder: TypeAlias = Callable[[Any], str]

# Python allows offsets of up to a day, PostgreSQL reads them up to here.
_WIDEST_OFFSET = dt.timedelta(hours=15, minutes=59, seconds=59)

_MOST_EXACT_DAYS = 106_000_000


def optional(encoder: Encoder, value: Any) -> str | None:
    """Encode a value that may be None, which is sent as NULL."""
    return None if value is None else encoder(value)


def boolean(value: bool) -> str:
    """Encode a bool; other truthy values are refused."""
    if value is True:
        return "t"
    if value is False:
        return "f"
    raise TypeError(f"expected bool, got {type(value).__name__}")


def integer(value: int) -> str:
    """Encode an int for smallint, integer, bigint or oid; the server checks the range."""
    if isinstance(value, int):
        return f"{value:d}"
    raise TypeError(f"expected int, got {type(value).__name__}")


def double(value: float) -> str:
    """Encode a float (or an int) so that it reads back as the same float."""
    if isinstance(value, (float, int)):
        return repr(float(value))
    raise TypeError(f"expected float, got {type(value).__name__}")


def numeric(value: Decimal | int) -> str:
    """Encode a Decimal or an int exactly; a signalling NaN is refused."""
    if isinstance(value, Decimal):
        if value.is_snan():
            raise ValueError("PostgreSQL has no signalling NaN")
        return "NaN" if value.is_nan() else str(value)
    if isinstance(value, int):
        return f"{value:d}"
    raise TypeError(f"expected Decimal, got {type(value).__name__}")


def text(value: str) -> str:
    """Encode a str as it is (text, json documents, enum values)."""
    if type(value) is str:
        return value
    if isinstance(value, str):
        return str.__str__(value)
    raise TypeError(f"expected str, got {type(value).__name__}")


def uuid(value: UUID) -> str:
    """Encode a UUID."""
    if isinstance(value, UUID):
        return value.hex
    raise TypeError(f"expected UUID, got {type(value).__name__}")


def timestamptz(value: dt.datetime) -> str:
    """Encode a datetime; one without a time zone is refused, since its instant is unknown."""
    if not isinstance(value, dt.datetime):
        raise TypeError(f"expected datetime, got {type(value).__name__}")
    offset = value.utcoffset()
    if offset is None:
        raise ValueError(f"naive datetime {value!r}: give it a time zone")
    if offset.microseconds or abs(offset) > _WIDEST_OFFSET:
        value = value.astimezone(dt.UTC)
    return value.isoformat(" ")


def date(value: dt.date) -> str:
    """Encode a date; a datetime is refused, since its date depends on a time zone."""
    if isinstance(value, dt.date) and not isinstance(value, dt.datetime):
        return value.isoformat()
    raise TypeError(f"expected date, got {type(value).__name__}")


def interval(value: dt.timedelta) -> str:
    """
    Encode a timedelta as hours, minutes, seconds and microseconds.

    No day part: a timedelta is elapsed time, while a day in PostgreSQL is 23 or 25 hours where
    the clocks change. The one sign covers the whole value in every IntervalStyle. Only what does
    not fit into PostgreSQL's 64 bits of microseconds (292,000 years) is given in days.
    """
    if not isinstance(value, dt.timedelta):
        raise TypeError(f"expected timedelta, got {type(value).__name__}")
    sign = "-" if value.days < 0 else ""
    value = abs(value)
    minutes, seconds = divmod(value.seconds, 60)
    hours, minutes = divmod(minutes, 60)
    if value.days > _MOST_EXACT_DAYS:
        return (
            f"{sign}{value.days} days"
            f" {sign}{hours}:{minutes:02d}:{seconds:02d}.{value.microseconds:06d}"
        )
    return f"{sign}{value.days * 24 + hours}:{minutes:02d}:{seconds:02d}.{value.microseconds:06d}"


def bytea(value: bytes | bytearray | memoryview) -> str:
    """Encode bytes."""
    if isinstance(value, (bytes, bytearray, memoryview)):
        return "\\x" + value.hex()
    raise TypeError(f"expected bytes, got {type(value).__name__}")


def array(encoder: Encoder, values: Sequence[Any]) -> str:
    """
    Encode a sequence as an array literal; None elements are NULL, an empty one is `{}`.

    For types whose text never needs quotes in an array. A str or bytes is refused: as a sequence
    of characters it is always a mistake here.
    """
    items = _items(values)
    if _one_repeated(items):
        return "{" + ",".join([optional(encoder, items[0]) or "NULL"] * len(items)) + "}"
    return (
        "{" + ",".join(["NULL" if text is None else text for text in _texts(encoder, items)]) + "}"
    )


def optional_array(encoder: Encoder, values: Sequence[Any] | None) -> str | None:
    """Encode a sequence that may itself be None."""
    return None if values is None else array(encoder, values)


def quoted_array(encoder: Encoder, values: Sequence[Any]) -> str:
    """Encode a sequence as `array` does, for types whose text may hold anything."""
    items = _items(values)
    if _one_repeated(items):
        same = optional(encoder, items[0])
        return "{" + ",".join(["NULL" if same is None else _quote(same)] * len(items)) + "}"
    encoded = _texts(encoder, items)
    if not encoded:
        return "{}"
    plain = [text for text in encoded if text is not None]
    if len(plain) == len(encoded):
        # All are escaped at once. What stands between them is in none of them: no text of the
        # server's holds a NUL.
        whole = "\0".join(plain)
        if whole.count("\0") == len(plain) - 1:
            return "{" + _quote(whole).replace("\0", '","') + "}"
    return "{" + ",".join(["NULL" if text is None else _quote(text) for text in encoded]) + "}"


def optional_quoted_array(encoder: Encoder, values: Sequence[Any] | None) -> str | None:
    """Encode a sequence that may itself be None, for types whose text may hold anything."""
    return None if values is None else quoted_array(encoder, values)


def column(encoder: Encoder, values: Sequence[Any]) -> Sequence[str | None]:
    """Encode one column of many rows; None is refused as the encoder refuses it."""
    encoded = optional_column(encoder, values)
    if None in encoded:
        encoder(None)
    return encoded


def optional_column(encoder: Encoder, values: Sequence[Any]) -> Sequence[str | None]:
    """Encode one column of many rows, None as None."""
    if _one_repeated(values):
        return [optional(encoder, values[0])] * len(values)
    return _texts(encoder, values)


def _items(values: Sequence[Any]) -> Sequence[Any]:
    if isinstance(values, (str, bytes, bytearray, memoryview)):
        raise TypeError(f"expected a sequence of values, got {type(values).__name__}")
    return values if isinstance(values, (list, tuple)) else list(values)


def _texts(encoder: Encoder, items: Sequence[Any]) -> Sequence[str | None]:
    """Encode each item, None as None; what long columns hold most is done without a call each."""
    kinds = set(map(type, items))
    if encoder is uuid and kinds == {UUID}:
        return [f"{item.int:032x}" for item in items]
    if encoder is text and kinds == {str}:
        return items
    return [None if item is None else encoder(item) for item in items]


def _one_repeated(items: Sequence[Any]) -> bool:
    """Whether all are one and the same object, as in a column that says the same of every row."""
    return len(items) > 1 and items[0] is items[-1] and len(set(map(id, items))) == 1


def _quote(item: str) -> str:
    return '"' + item.replace("\\", "\\\\").replace('"', '\\"') + '"'
