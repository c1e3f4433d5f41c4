"""SQL types: one entry a type, whatever the spelling sqlc chose, and what it is in Python."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from .request import Enum, TypeRef


@dataclass(frozen=True, slots=True)
class SqlType:
    """
    A supported type.

    `sql` is the spelling used in messages, docstrings and the registry; `python` the annotation
    of a value read from the server; `accepts` that of a value sent; `encoder` the function of
    the runtime module `_encode` that turns it into text; `oid` and `array_oid` the server's fixed
    numbers (0: none); `enum` the enum class, if it is one.
    """

    sql: str
    python: str
    accepts: str
    encoder: str
    oid: int = 0
    array_oid: int = 0
    enum: str = ""


# One line a type: SQL spelling, other spellings, Python (read), Python (sent, if wider), encoder,
# oid, oid of its array.
_TYPES: tuple[tuple[str, tuple[str, ...], str, str, str, int, int], ...] = (
    ("boolean", ("bool",), "bool", "", "boolean", 16, 1000),
    ("smallint", ("int2",), "int", "", "integer", 21, 1005),
    ("integer", ("int", "int4"), "int", "", "integer", 23, 1007),
    ("bigint", ("int8",), "int", "", "integer", 20, 1016),
    ("oid", (), "int", "", "integer", 26, 1028),
    ("real", ("float4",), "float", "", "double", 700, 1021),
    ("double precision", ("float", "float8"), "float", "", "double", 701, 1022),
    ("numeric", ("decimal",), "Decimal", "Decimal | int", "numeric", 1700, 1231),
    ("text", ("string",), "str", "", "text", 25, 1009),
    ("character varying", ("varchar",), "str", "", "text", 1043, 1015),
    ("name", (), "str", "", "text", 19, 1003),
    ("tid", (), "str", "", "text", 27, 1010),
    ("xid", (), "str", "", "text", 28, 1011),
    ("xid8", (), "str", "", "text", 5069, 271),
    ("pg_lsn", (), "str", "", "text", 3220, 3221),
    ("uuid", (), "UUID", "", "uuid", 2950, 2951),
    ("timestamptz", ("timestamp with time zone",), "dt.datetime", "", "timestamptz", 1184, 1185),
    ("date", (), "dt.date", "", "date", 1082, 1182),
    ("interval", (), "dt.timedelta", "", "interval", 1186, 1187),
    ("bytea", (), "bytes", "bytes | bytearray | memoryview", "bytea", 17, 1001),
    ("json", (), "Json", "str", "text", 114, 199),
    ("jsonb", (), "Json", "str", "text", 3802, 3807),
    ("void", (), "None", "", "", 2278, 0),
)
BY_SPELLING: Mapping[str, SqlType] = {
    spelling: SqlType(sql, python, accepts or python, encoder, oid, array_oid)
    for sql, aliases, python, accepts, encoder, oid, array_oid in _TYPES
    for spelling in (sql, *aliases)
}


class TypeTable:
    """Looks types up by sqlc's spelling: the built-in ones above and the enums of the schema."""

    def __init__(self, enums: Mapping[Enum, str]) -> None:
        self._enums = {
            (enum.schema, enum.name): SqlType(
                sql=f"{enum.schema}.{enum.name}",
                python=python,
                accepts=python,
                encoder="text",
                enum=python,
            )
            for enum, python in enums.items()
        }

    def find(self, ref: TypeRef) -> SqlType | None:
        """Return the entry for sqlc's type (arrays: of its element), None if unsupported."""
        schema, name = ref.schema, ref.name
        if not schema and "." in name:
            schema, name = name.split(".", 1)
        if (schema or "public", name) in self._enums:
            return self._enums[schema or "public", name]
        if schema in ("", "pg_catalog"):
            return BY_SPELLING.get(name.removesuffix("[]"))
        return None

    def supported(self) -> str:
        """Every supported spelling, for messages."""
        return ", ".join(sorted({kind.sql for kind in BY_SPELLING.values()}))


def spelled(ref: TypeRef) -> str:
    """sqlc's own spelling of the type, for messages."""
    name = f"{ref.schema}.{ref.name}" if ref.schema else ref.name
    return (name or "(none)") + "[]" * ref.dims
