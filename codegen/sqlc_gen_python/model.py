"""One statement, checked and resolved: everything a renderer needs and nothing to decide."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from . import headers, naming, nullability, sqltext
from .errors import GenerationError
from .request import Column, Query
from .types import SqlType, TypeTable, spelled

COMMANDS = (":one", ":many", ":exec", ":execrows", ":copyfrom")


@dataclass(frozen=True, slots=True)
class Value:
    """A parameter or a result column. `name` is its SQL name, `python` its Python one."""

    name: str
    python: str
    type: SqlType
    is_array: bool
    nullable: bool
    null_elements: bool
    number: int = 0
    table_column: str = ""

    @property
    def sql(self) -> str:
        """The SQL type as written in docstrings and the registry."""
        return self.type.sql + ("[]" if self.is_array else "")

    @property
    def result(self) -> str:
        """The annotation of this column in a row type."""
        item = self.type.python
        if self.is_array:
            item = f"list[{_or_none(item, self.null_elements)}]"
        return _or_none(item, self.nullable)

    @property
    def argument(self) -> str:
        """The annotation of this parameter."""
        item = self.type.accepts
        if self.is_array:
            item = f"Sequence[{_or_none(item, self.null_elements)}]"
        return _or_none(item, self.nullable)


@dataclass(frozen=True, slots=True)
class CopyTarget:
    """Where a `:copyfrom` copies to; `columns` in the order of the statement's parameters."""

    schema: str
    table: str
    columns: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Statement:
    """A compiled statement; `params` in order of first appearance in the text."""

    name: str
    function: str
    module: str
    source: str
    command: str
    text: str
    header: Mapping[str, str]
    params: tuple[Value, ...]
    columns: tuple[Value, ...]
    copy: CopyTarget | None

    @property
    def constant(self) -> str:
        """The name of the module constant that holds the text."""
        return self.function.rstrip("_").upper()

    @property
    def async_function(self) -> str:
        """The name of the asynchronous function."""
        return f"{self.function.rstrip('_')}_async"

    @property
    def row_class(self) -> str:
        """The name of the row type: of the result, or of what `:copyfrom` takes."""
        return f"{self.name}Params" if self.copy else f"{self.name}Row"

    @property
    def public_names(self) -> list[str]:
        """Every public name the statement adds to its module."""
        names = [self.constant, self.function, self.async_function]
        return [*names, self.row_class] if self.copy or len(self.columns) > 1 else names

    @property
    def result_oids(self) -> tuple[int, ...]:
        """The oids whose loaders read the result; 0 stands for types without a fixed one."""
        oids: set[int] = set()
        for column in self.columns:
            oids.add(column.type.oid)
            if column.is_array:
                oids.add(column.type.array_oid)
        return tuple(sorted(oids))


def resolve(
    query: Query,
    header: Mapping[str, str],
    table: TypeTable,
    tables: Mapping[tuple[str, str], nullability.Columns],
    where: str,
) -> Statement:
    """
    Check one query and return its Statement.

    `tables` is what `nullability.doubts` asks for. Raises GenerationError for whatever the
    generated function could not keep its word on.
    """
    if query.command not in COMMANDS:
        raise GenerationError(
            where, f"unsupported command {query.command}", f"use one of {', '.join(COMMANDS)}"
        )
    if left := sqltext.leftovers(query.text):
        raise GenerationError(
            where,
            f"sqlc read @{left[0]} as an operator, not as a parameter",
            f"put a space before @{left[0]}",
        )
    null = headers.parse_nullable(where, header.get("nullable", ""))
    params = _params(query, table, where, null)
    columns: tuple[Value, ...] = ()
    if query.command in (":one", ":many"):
        columns = _columns(query, table, where, null)
        _doubt(query, columns, params, tables, where, null)
    _check_targets(where, null, params, columns)
    copy = None
    if query.command == ":copyfrom":
        if query.insert_into is None:
            raise GenerationError(
                where, ":copyfrom without an insert", "use insert into ... values"
            )
        copy = CopyTarget(*query.insert_into, tuple(value.table_column for value in params))
    return Statement(
        name=query.name,
        function=naming.safe(naming.snake(query.name)),
        module=query.filename.removesuffix(".sql"),
        source=f"queries/{query.filename}",
        command=query.command,
        text=query.text.strip(),
        header=header,
        params=params,
        columns=columns,
        copy=copy,
    )


def _params(
    query: Query, table: TypeTable, where: str, null: headers.Nullability
) -> tuple[Value, ...]:
    by_number = {param.number: param.column for param in query.params}
    copying = query.command == ":copyfrom"
    order = sqltext.placeholders(query.text)
    if sorted(order) != sorted(by_number):
        raise GenerationError(
            where,
            f"sqlc knows parameters {sorted(by_number)}, the text has {sorted(order)}",
            "write every parameter as @name::type or sqlc.narg('name')::type",
        )
    if not copying and (bare := sqltext.uncast(query.text)):
        name = by_number[bare[0]].name or f"${bare[0]}"
        raise GenerationError(
            where,
            f"parameter {name} has no cast, so its type would depend on the server's guess",
            f"write @{name}::type or sqlc.narg('{name}')::type wherever it appears; a second "
            "cast needs parentheses, (@name::type)::other, or sqlc swallows the first",
        )
    values = []
    for number in order:
        column = by_number[number]
        if not column.is_named:
            raise GenerationError(
                where, f"parameter ${number} has no name", "write @name::type instead of $n"
            )
        if column.is_slice:
            raise GenerationError(
                where,
                f"sqlc.slice({column.name}) rewrites the text at run time",
                f"write = any(@{column.name}::type[])",
            )
        kind = _kind(column, table, where, f"parameter {column.name}")
        if not kind.encoder:
            raise GenerationError(
                where, f"parameter {column.name} has type {kind.sql}", "no value can be sent as it"
            )
        values.append(
            Value(
                name=column.name,
                python=_python_name(column.name, where, f"parameter {column.name}"),
                type=kind,
                is_array=column.type.dims > 0,
                nullable=null.params.get(column.name, not column.not_null),
                null_elements=null.elements.get(f"@{column.name}", True),
                number=number,
                table_column=(column.original_name or column.name) if copying else "",
            )
        )
    _refuse_duplicates(values, where, "parameters")
    return tuple(values)


def _columns(
    query: Query, table: TypeTable, where: str, null: headers.Nullability
) -> tuple[Value, ...]:
    if not query.columns:
        raise GenerationError(
            where, f"{query.command} without a result", "use :exec, or add returning"
        )
    values = []
    single = len(query.columns) == 1
    for position, column in enumerate(query.columns, 1):
        what = f"result column {column.name or position}"
        if column.is_embed:
            raise GenerationError(where, f"sqlc.embed ({what})", "list the columns you use")
        kind = _kind(column, table, where, what)
        if kind.sql == "void":
            raise GenerationError(
                where, f"{what} is void", "use :exec, or keep the void call out of the result"
            )
        if not column.name or column.name == "?column?":
            raise GenerationError(where, f"{what} has no name", "name it: <expression> as name")
        if column.name in naming.TUPLE_METHODS and not single:
            raise GenerationError(
                where,
                f"{what} would hide the tuple method of that name",
                f"rename it: as job_{column.name}, say",
            )
        values.append(
            Value(
                name=column.name,
                python=_python_name(column.name, where, what),
                type=kind,
                is_array=column.type.dims > 0,
                nullable=null.columns.get(column.name, not column.not_null),
                null_elements=null.elements.get(column.name, True),
            )
        )
    _refuse_duplicates(values, where, "result columns")
    return tuple(values)


def _doubt(
    query: Query,
    columns: tuple[Value, ...],
    params: tuple[Value, ...],
    tables: Mapping[tuple[str, str], nullability.Columns],
    where: str,
    null: headers.Nullability,
) -> None:
    """Refuse a "never null" of sqlc that the text speaks against and the header does not settle."""
    nullable_params = frozenset(value.number for value in params if value.nullable)
    found = nullability.doubts(query.text, tables, nullable_params)
    if len(found) != len(columns):
        return
    for value, (_, why) in zip(columns, found, strict=True):
        if why and not value.nullable and value.name not in null.columns:
            raise GenerationError(
                where,
                f"sqlc says that {value.name} is never null, but: {why}",
                f"say `nullable: {value.name}` in the header, or `nullable: -{value.name}` if it "
                "cannot happen",
            )


def _kind(column: Column, table: TypeTable, where: str, what: str) -> SqlType:
    kind = table.find(column.type)
    if kind is None:
        raise GenerationError(
            where,
            f"{what} has the unsupported type {spelled(column.type)}",
            f"cast it to a supported type ({table.supported()}, enums of the schema)",
        )
    if column.type.dims > 1:
        raise GenerationError(
            where, f"{what} is an array of arrays", "use one dimension, or json text"
        )
    return kind


def _python_name(name: str, where: str, what: str) -> str:
    python = naming.field(name)
    if python is None:
        raise GenerationError(
            where, f"{what}: {name!r} makes no Python name", "rename it: as another_name"
        )
    return python


def _refuse_duplicates(values: list[Value], where: str, what: str) -> None:
    seen: dict[str, str] = {}
    for value in values:
        if value.python in seen:
            raise GenerationError(
                where,
                f"{what} {seen[value.python]!r} and {value.name!r} are both {value.python}",
                "rename one of them",
            )
        seen[value.python] = value.name


def _check_targets(
    where: str,
    null: headers.Nullability,
    params: tuple[Value, ...],
    columns: tuple[Value, ...],
) -> None:
    known_columns = {value.name for value in columns}
    known_params = {value.name for value in params}
    arrays = {value.name for value in columns if value.is_array}
    arrays |= {f"@{value.name}" for value in params if value.is_array}
    wrong = sorted(
        (set(null.columns) - known_columns)
        | {f"@{name}" for name in set(null.params) - known_params}
        | {f"{name}[]" for name in set(null.elements) - arrays}
    )
    if wrong:
        raise GenerationError(
            where,
            f"`nullable:` names {', '.join(wrong)}, which the statement does not have",
            "name a result column, @parameter, or array[] of it",
        )


def _or_none(annotation: str, nullable: bool) -> str:
    return f"{annotation} | None" if nullable and annotation != "None" else annotation
