"""
The driver's own conversions, whatever the owner of the connection registered there.

Applications and frameworks register loaders on their connections (jsonb as text, time stamps in a
class of theirs); a row type would be untrue on such a connection. A cursor has adapters of its
own, so that setting them here changes nothing for anyone else.
"""

from __future__ import annotations

from typing import Final

from psycopg.abc import Loader
from psycopg.adapt import AdaptersMap, PyFormat
from psycopg.postgres import register_default_adapters, register_default_types
from psycopg.pq import Format
from psycopg.types.array import register_all_arrays

_DEFAULT: Final = AdaptersMap()
register_default_types(_DEFAULT.types)
register_default_adapters(_DEFAULT)
register_all_arrays(_DEFAULT)
_STR: Final = _DEFAULT.get_dumper(str, PyFormat.AUTO)


def own(adapters: AdaptersMap, oids: tuple[int, ...]) -> None:
    """
    Give a cursor's adapters the driver's defaults for str and for the types of its result.

    `oids` are those of the result's columns. Costs two look-ups a type where nothing deviates.
    """
    if adapters.get_dumper(str, PyFormat.AUTO) is not _STR:
        adapters.register_dumper(str, _STR)
    for oid in oids:
        loader = _loader(_DEFAULT, oid)
        if loader is not None and _loader(adapters, oid) is not loader:
            adapters.register_loader(oid, loader)


def _loader(adapters: AdaptersMap, oid: int) -> type[Loader] | None:
    # What psycopg looks up: a type without a loader is read by the one of oid 0.
    return adapters.get_loader(oid, Format.TEXT) or adapters.get_loader(0, Format.TEXT)
