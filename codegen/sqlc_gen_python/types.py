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
    the runtime module `_encode` that turns it into text; `enum` the enum class, if it is one.
    """

    sql: str
    python: str
    accepts: str
    encoder: str
    enum: str = ""


def _scalar(sql: str, python: str, encoder: str, accepts: str = "") -> SqlType:
    return SqlType(sql, python, accepts or python, encoder)


_TYPES: tuple[tuple[SqlType, tuple[str, ...]], ...] = (
    (_scalar("boolean", "bool", "boolean"), ("bool",)),
    (_scalar("smallint", "int", "integer"), ("int2",)),
    (_scalar("integer", "int", "integer"), ("int", "int4")),
    (_scalar("bigint", "int", "integer"), ("int8",)),
    (_scalar("oid", "int", "integer"), ()),
    (_scalar("real", "float", "double"), ("float4",)),
    (_scalar("double precision", "float", "double"), ("float", "float8")),
    (_scalar("numeric", "Decimal", "numeric", "Decimal | int"), ("decimal",)),
    (_scalar("text", "str", "text"), ("string",)),
    (_scalar("character varying", "str", "text"), ("varchar",)),
    (_scalar("name", "str", "text"), ()),
    (_scalar("tid", "str", "text"), ()),
    (_scalar("xid", "str", "text"), ()),
    (_scalar("xid8", "str", "text"), ()),
    (_scalar("pg_lsn", "str", "text"), ()),
    (_scalar("uuid", "UUID", "uuid"), ()),
    (_scalar("timestamptz", "dt.datetime", "timestamptz"), ("timestamp with time zone",)),
    (_scalar("date", "dt.date", "date"), ()),
    (_scalar("interval", "dt.timedelta", "interval"), ()),
    (_scalar("bytea", "bytes", "bytea", "bytes | bytearray | memoryview"), ()),
    (_scalar("json", "Json", "text", "str"), ()),
    (_scalar("jsonb", "Json", "text", "str"), ()),
    (_scalar("void", "None", ""), ()),
)
BY_SPELLING: Mapping[str, SqlType] = {
    spelling: kind for kind, aliases in _TYPES for spelling in (kind.sql, *aliases)
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
