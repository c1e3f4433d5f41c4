"""The part of sqlc's request that we use, as plain records. Everything else is ignored."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

SYSTEM_SCHEMAS = frozenset({"pg_catalog", "information_schema", "pg_temp"})


@dataclass(frozen=True, slots=True)
class TypeRef:
    """A type as sqlc spells it: the spelling varies with the context (see `types`)."""

    schema: str
    name: str
    dims: int


@dataclass(frozen=True, slots=True)
class Column:
    """A result column, a parameter or a table column."""

    name: str
    original_name: str
    type: TypeRef
    not_null: bool
    is_named: bool
    is_embed: bool
    is_slice: bool
    table: str
    comment: str


@dataclass(frozen=True, slots=True)
class Param:
    """A placeholder: `number` is the n of `$n`, which follows no textual order."""

    number: int
    column: Column


@dataclass(frozen=True, slots=True)
class Query:
    """One statement with what sqlc inferred about it."""

    name: str
    command: str
    filename: str
    text: str
    params: tuple[Param, ...]
    columns: tuple[Column, ...]
    insert_into: tuple[str, str] | None


@dataclass(frozen=True, slots=True)
class Enum:
    """An enum type of the schema, values in their sort order."""

    schema: str
    name: str
    values: tuple[str, ...]
    comment: str


@dataclass(frozen=True, slots=True)
class Request:
    """One run: everything the generator may look at, apart from the query files themselves."""

    queries: tuple[Query, ...]
    enums: tuple[Enum, ...]
    tables: Mapping[tuple[str, str], tuple[Column, ...]]
    query_paths: tuple[str, ...]
    options: Mapping[str, Any]
    sqlc_version: str


def parse(raw: Mapping[str, Any]) -> Request:
    """
    Build a Request from sqlc's JSON object.

    Fields that are empty may be absent or null in other sqlc versions; both read as empty.
    """
    settings = raw.get("settings") or {}
    schemas = [
        schema
        for schema in (raw.get("catalog") or {}).get("schemas") or []
        if schema["name"] not in SYSTEM_SCHEMAS
    ]
    options = raw.get("plugin_options") or ""
    return Request(
        queries=tuple(_query(item) for item in raw.get("queries") or []),
        enums=tuple(
            Enum(schema["name"], item["name"], tuple(item["vals"]), item.get("comment") or "")
            for schema in schemas
            for item in schema.get("enums") or []
        ),
        tables={
            (schema["name"], table["rel"]["name"]): tuple(
                _column(column) for column in table.get("columns") or []
            )
            for schema in schemas
            for table in schema.get("tables") or []
        },
        query_paths=tuple(settings.get("queries") or []),
        options=json.loads(base64.b64decode(options) or b"{}"),
        sqlc_version=raw.get("sqlc_version") or "",
    )


def _query(raw: Mapping[str, Any]) -> Query:
    target = raw.get("insert_into_table")
    return Query(
        name=raw["name"],
        command=raw["cmd"],
        filename=raw["filename"],
        text=raw["text"],
        params=tuple(
            Param(item["number"], _column(item["column"])) for item in raw.get("params") or []
        ),
        columns=tuple(_column(item) for item in raw.get("columns") or []),
        insert_into=(target.get("schema") or "public", target["name"]) if target else None,
    )


def _column(raw: Mapping[str, Any]) -> Column:
    kind = raw.get("type") or {}
    dims = raw.get("array_dims") or 0
    return Column(
        name=raw.get("name") or "",
        original_name=raw.get("original_name") or "",
        type=TypeRef(
            schema=kind.get("schema") or "",
            name=kind.get("name") or "",
            dims=max(dims, 1) if raw.get("is_array") else dims,
        ),
        not_null=bool(raw.get("not_null")),
        is_named=bool(raw.get("is_named_param")),
        is_embed=bool(raw.get("embed_table")),
        is_slice=bool(raw.get("is_sqlc_slice")),
        table=(raw.get("table") or {}).get("name") or "",
        comment=raw.get("comment") or "",
    )
