"""
The contract: what the generated code says of a statement is what the server says of it.

sqlc types the statements without a server. Here each of them is prepared on a real one, and the
server's parameters and columns are held against the registry and the functions.
"""

from __future__ import annotations

import datetime as dt
import importlib
import inspect
import re
from decimal import Decimal
from typing import Any, NamedTuple, get_type_hints
from uuid import UUID

import psycopg
import pytest
from psycopg import Connection
from psycopg.pq import ExecStatus, Format

from codegen.sqlc_gen_python.nullability import Columns, doubts
from jobs_sql._registry import STATEMENTS, Parameter, Statement

pytestmark = pytest.mark.majors

SENT = [name for name, item in STATEMENTS.items() if item.command != ":copyfrom"]
COPIED = [name for name, item in STATEMENTS.items() if item.command == ":copyfrom"]


class Described(NamedTuple):
    """A result column as the server describes it; table 0 means an expression."""

    name: str
    type: int
    table: int
    position: int


def describe(conn: Connection[Any], text: str) -> tuple[list[int], list[Described]]:
    """Prepare a statement and return its parameter types and its result columns."""
    prepared = conn.pgconn.prepare(b"contract", text.encode())
    assert prepared.status == ExecStatus.COMMAND_OK, prepared.get_error_message()
    found = conn.pgconn.describe_prepared(b"contract")
    assert found.status == ExecStatus.COMMAND_OK, found.get_error_message()
    params = [found.param_type(at) for at in range(found.nparams)]
    columns = [
        Described(
            (found.fname(at) or b"").decode(),
            found.ftype(at),
            found.ftable(at),
            found.ftablecol(at),
        )
        for at in range(found.nfields)
    ]
    return params, columns


def oid(conn: Connection[Any], sql_type: str) -> int:
    """The server's number of a type."""
    row = conn.execute("select %s::pg_catalog.regtype::pg_catalog.oid", [sql_type]).fetchone()
    assert row is not None
    return int(row[0])


def function_of(item: Statement, *, asynchronous: bool = False) -> Any:
    """The generated function of a statement."""
    module = importlib.import_module(f"jobs_sql.{item.module}")
    return getattr(module, item.async_function if asynchronous else item.function)


def test_the_registry_is_not_empty() -> None:
    assert len(SENT) > 10


@pytest.mark.parametrize("name", SENT)
def test_parameters(conn: Connection[Any], name: str) -> None:
    item = STATEMENTS[name]
    types, _ = describe(conn, item.text)
    said = {param.number: oid(conn, param.sql_type) for param in item.params}
    assert said == dict(enumerate(types, 1))


@pytest.mark.parametrize("name", SENT)
def test_every_parameter_is_cast_wherever_it_appears(name: str) -> None:
    item = STATEMENTS[name]
    code = re.sub(r"'(?:[^']|'')*'|/\*.*?\*/|--[^\n]*", " ", item.text, flags=re.DOTALL)
    uses = re.findall(r"\$(\d+)(::)?", code)
    assert {int(number) for number, _ in uses} == {param.number for param in item.params}
    assert all(cast for _, cast in uses), f"{name} has a parameter without a cast"


@pytest.mark.parametrize("name", [name for name in SENT if STATEMENTS[name].columns])
def test_columns(conn: Connection[Any], name: str) -> None:
    item = STATEMENTS[name]
    _, columns = describe(conn, item.text)
    assert [(column.name, oid(conn, column.sql_type)) for column in item.columns] == [
        (column.name, column.type) for column in columns
    ]


@pytest.mark.parametrize("name", [name for name in SENT if STATEMENTS[name].columns])
def test_no_nullable_table_column_is_said_to_be_never_null(
    conn: Connection[Any], name: str
) -> None:
    item = STATEMENTS[name]
    excused = {part.strip() for part in item.header.get("nullable", "").split(",")}
    _, columns = describe(conn, item.text)
    for column, said in zip(columns, item.columns, strict=True):
        if column.table and not said.nullable and f"-{said.name}" not in excused:
            row = conn.execute(
                "select a.attnotnull from pg_catalog.pg_attribute as a "
                "where a.attrelid = %s and a.attnum = %s",
                [column.table, column.position],
            ).fetchone()
            assert row == (True,), f"{name}.{said.name} may be null"


@pytest.fixture
def catalog(conn: Connection[Any]) -> dict[tuple[str, str], Columns]:
    """The columns of our tables as the server has them, with a reason where one may be null."""
    rows = conn.execute(
        "select c.relname, a.attname, a.attnotnull from pg_catalog.pg_attribute as a "
        "join pg_catalog.pg_class as c on c.oid = a.attrelid and c.relkind in ('r', 'p') "
        "where c.relnamespace = 'jobs'::pg_catalog.regnamespace and a.attnum > 0"
    ).fetchall()
    tables: dict[tuple[str, str], dict[str, str | None]] = {}
    for table, column, never_null in rows:
        reason = None if never_null else f"{table}.{column} may be null"
        tables.setdefault(("jobs", table), {})[column] = reason
    return {**tables}


@pytest.mark.parametrize("name", [name for name in SENT if STATEMENTS[name].columns])
def test_no_column_that_comes_from_a_nullable_one_is_said_to_be_never_null(
    catalog: dict[tuple[str, str], Columns], name: str
) -> None:
    """As above, through CTEs, subselects and casts, where the server names no table."""
    item = STATEMENTS[name]
    excused = {part.strip() for part in item.header.get("nullable", "").split(",")}
    found = doubts(item.text, catalog, frozenset(p.number for p in item.params if p.nullable))
    assert len(found) == len(item.columns), "the statement was not understood"
    for said, (_, why) in zip(item.columns, found, strict=True):
        assert said.nullable or not why or f"-{said.name}" in excused, f"{name}.{said.name}: {why}"


@pytest.mark.parametrize("name", [name for name in SENT if not STATEMENTS[name].columns])
def test_statements_without_a_result_type_return_nothing_of_use(
    conn: Connection[Any], name: str
) -> None:
    _, columns = describe(conn, STATEMENTS[name].text)
    if STATEMENTS[name].command == ":execrows":
        assert columns == []
    void = oid(conn, "void")
    assert STATEMENTS[name].text.startswith("select") or all(c.type == void for c in columns)


@pytest.mark.parametrize("name", COPIED)
def test_copied_columns(conn: Connection[Any], name: str) -> None:
    item = STATEMENTS[name]
    match = re.search(r"(\S+) \((.*)\) from stdin$", item.text)
    assert match
    columns = match[2].split(", ")
    assert len(columns) == len(item.params)
    for column, param in zip(columns, item.params, strict=True):
        row = conn.execute(
            "select a.atttypid, a.attnotnull from pg_catalog.pg_attribute as a "
            "where a.attrelid = %s::pg_catalog.regclass and a.attname = %s",
            [match[1], column.strip('"')],
        ).fetchone()
        assert row is not None, f"{match[1]} has no column {column}"
        assert row[0] == oid(conn, param.sql_type)
        assert not (param.nullable and row[1]), f"{column} takes no null"


@pytest.mark.parametrize("name", SENT)
def test_functions_take_what_the_registry_says(name: str) -> None:
    item = STATEMENTS[name]
    for asynchronous in (False, True):
        function = function_of(item, asynchronous=asynchronous)
        assert inspect.iscoroutinefunction(function) is asynchronous
        conn, *rest = inspect.signature(function).parameters.values()
        assert conn.name == "conn"
        assert [parameter.name for parameter in rest] == [param.argument for param in item.params]
        assert all(parameter.kind is parameter.KEYWORD_ONLY for parameter in rest)
        assert all(parameter.default is parameter.empty for parameter in rest)
        assert "return" in get_type_hints(function)


@pytest.mark.parametrize("name", SENT)
def test_arguments_are_written_in_order_of_first_appearance(name: str) -> None:
    item = STATEMENTS[name]
    seen = dict.fromkeys(int(number) for number in re.findall(r"\$(\d+)::", item.text))
    assert [param.number for param in item.params] == list(seen)


def sample(param: Parameter, at: int) -> Any:
    """A value for a parameter, another one for each position."""
    values: dict[str, Any] = {
        "boolean": at % 2 == 0,
        "smallint": at + 1,
        "integer": at + 1,
        "bigint": at + 1,
        "oid": at + 1,
        "double precision": at + 0.5,
        "real": at + 0.5,
        "numeric": Decimal(at),
        "uuid": UUID(int=at),
        "timestamptz": dt.datetime(2000, 1, 1, tzinfo=dt.UTC) + dt.timedelta(days=at),
        "date": dt.date(2000, 1, 1) + dt.timedelta(days=at),
        "interval": dt.timedelta(seconds=at),
        "bytea": bytes([at]),
        "json": f"[{at}]",
        "jsonb": f"[{at}]",
    }
    value = values.get(param.sql_type.removesuffix("[]"), f"text {at}")
    return [value] if param.sql_type.endswith("[]") else value


class Recorder:
    """Stands in for a cursor and keeps what would be sent."""

    def __init__(self, conn: list[Recorder], **_: object) -> None:
        self.adapters = psycopg.adapters
        self.connection = self.pgconn = self
        self.format = Format.TEXT
        self.rowcount = 0
        conn.append(self)

    def parameter_status(self, _name: bytes) -> None:
        return None

    def __enter__(self) -> Recorder:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def execute(self, text: str, values: tuple[Any, ...] = ()) -> None:
        self.text, self.values = text, values

    def fetchall(self) -> list[Any]:
        return []

    def fetchone(self) -> None:
        return None


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> list[Recorder]:
    """The cursors that generated functions opened instead of real ones."""
    for item in STATEMENTS.values():
        module = importlib.import_module(f"jobs_sql.{item.module}")
        monkeypatch.setattr(module, "RawCursor", Recorder)
    return []


@pytest.mark.parametrize("name", SENT)
def test_each_argument_is_sent_as_text_in_the_place_of_its_number(
    recorded: list[Recorder], name: str
) -> None:
    item = STATEMENTS[name]
    given = {param.argument: sample(param, at) for at, param in enumerate(item.params)}
    function_of(item)(recorded, **given)
    sent = recorded[0]
    assert sent.text == item.text
    assert all(type(value) is str for value in sent.values)
    for at, param in enumerate(item.params):
        # One argument at a time gets another value: only its own place may change.
        other = sample(param, at + 41)  # an odd step, so that booleans change too
        recorded.clear()
        function_of(item)(recorded, **{**given, param.argument: other})
        changed = [
            place
            for place, (one, two) in enumerate(zip(sent.values, recorded[0].values, strict=True), 1)
            if one != two
        ]
        assert changed == [param.number], param.name


@pytest.mark.parametrize("name", [name for name in SENT if STATEMENTS[name].params])
def test_none_is_taken_where_the_registry_says_so(recorded: list[Recorder], name: str) -> None:
    item = STATEMENTS[name]
    given = {param.argument: sample(param, at) for at, param in enumerate(item.params)}
    for param in item.params:
        recorded.clear()
        alone = {**given, param.argument: None}
        if param.nullable:
            function_of(item)(recorded, **alone)
            assert recorded[0].values[param.number - 1] is None
        else:
            with pytest.raises(TypeError):
                function_of(item)(recorded, **alone)


def test_one_plan_a_statement_whatever_the_size_of_the_numbers(conn: Connection[Any]) -> None:
    conn.prepare_threshold = 0
    numbers_of = {
        name: [p for p in item.params if p.sql_type.removesuffix("[]") == "bigint"]
        for name, item in STATEMENTS.items()
        if item.command == ":many"
    }
    # The smallest statement that takes a bigint.
    name = min(
        (name for name, numbers in numbers_of.items() if numbers),
        key=lambda name: len(STATEMENTS[name].params),
    )
    item, numbers = STATEMENTS[name], numbers_of[name]
    base = {param.argument: sample(param, at) for at, param in enumerate(item.params)}
    for value in (1, 2**14, 2**30, 2**62):
        sized = {p.argument: [value] if p.sql_type.endswith("[]") else value for p in numbers}
        function_of(item)(conn, **{**base, **sized})
    found = conn.execute(
        "select s.statement from pg_catalog.pg_prepared_statements as s"
    ).fetchall()
    assert [text for (text,) in found].count(item.text) == 1
