"""
The driver's own conversions, whatever the owner of the connection registered or set there.

Applications and frameworks register loaders on their connections (jsonb as text, time stamps in a
class of theirs); a row type would be untrue on such a connection. A cursor has adapters of its
own, so that setting them here changes nothing for anyone else. Settings of the session, of its
role or of its database are a second way to change what comes back.
"""

from __future__ import annotations

from typing import Any, Final

from psycopg import AsyncCursor, Cursor
from psycopg.abc import Buffer, Loader
from psycopg.adapt import AdaptersMap, PyFormat
from psycopg.adapt import Loader as LoaderBase
from psycopg.postgres import register_default_adapters, register_default_types
from psycopg.pq import Format
from psycopg.types.array import register_all_arrays

_DEFAULT: Final = AdaptersMap()
register_default_types(_DEFAULT.types)
register_default_adapters(_DEFAULT)
register_all_arrays(_DEFAULT)
_STR: Final = _DEFAULT.get_dumper(str, PyFormat.AUTO)
_TEXT: Final = 25
# date, timestamp, timestamptz, interval and their arrays: read from text in one spelling only.
_TIMES: Final = frozenset({1082, 1114, 1184, 1186, 1182, 1115, 1185, 1187})


def own(cur: Cursor[Any] | AsyncCursor[Any], oids: tuple[int, ...]) -> None:
    """
    Give a cursor the driver's defaults for str and for the types of its result.

    `oids` are those of the result's columns. Costs two look-ups a type where nothing deviates.
    """
    adapters = cur.adapters
    if adapters.get_dumper(str, PyFormat.AUTO) is not _STR:
        adapters.register_dumper(str, _STR)
    setting = cur.connection.pgconn.parameter_status
    if not _TIMES.isdisjoint(oids) and _is_foreign(
        setting(b"DateStyle"), setting(b"IntervalStyle")
    ):
        cur.format = Format.BINARY
    for oid in oids:
        loader = _loader(_DEFAULT, oid, cur.format)
        if loader is not None and _loader(adapters, oid, cur.format) is not loader:
            adapters.register_loader(oid, loader)
    if _TEXT in oids and setting(b"client_encoding") == b"SQL_ASCII":
        adapters.register_loader(_TEXT, _Utf8 if cur.format == Format.TEXT else _Utf8Binary)


def _is_foreign(date_style: bytes | None, interval_style: bytes | None) -> bool:
    """Whether times come in a spelling that the driver cannot read, so that bytes must do."""
    if date_style is not None and not date_style.startswith(b"ISO"):
        return True
    return interval_style is not None and interval_style != b"postgres"


def _loader(adapters: AdaptersMap, oid: int, format: Format) -> type[Loader] | None:
    # What psycopg looks up: a type without a loader is read by the one of oid 0.
    return adapters.get_loader(oid, format) or adapters.get_loader(0, format)


class _Utf8(LoaderBase):
    """Text of a session without an encoding, which the driver hands out as bytes."""

    format = Format.TEXT

    def load(self, data: Buffer) -> str:
        return bytes(data).decode("utf-8", "replace")


class _Utf8Binary(_Utf8):
    format = Format.BINARY
