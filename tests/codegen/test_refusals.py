"""What must not compile: each refusal names file, statement and fix."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from codegen import generate as cli
from codegen.sqlc_gen_python.errors import GenerationErrors
from codegen.sqlc_gen_python.plugin import generate
from codegen.sqlc_gen_python.request import parse
from tests.codegen.conftest import FIXTURE, PACKAGE

HEADER = ["purpose: p", "callers: c", "locks: l", "index: i", "fence: f", "cost: c"]


def column(name: str, kind: str = "int8", **over: Any) -> dict[str, Any]:
    """A column as sqlc describes it, not null."""
    return {"name": name, "not_null": True, "type": {"schema": "", "name": kind}, **over}


def param(number: int, name: str, kind: str = "int8", **over: Any) -> dict[str, Any]:
    """A parameter as sqlc describes it."""
    return {"number": number, "column": column(name, kind, is_named_param=True, **over)}


def query(**over: Any) -> dict[str, Any]:
    """A statement that compiles: `select t.id from s.t where t.id = $1::bigint`."""
    return {
        "name": "GetThing",
        "cmd": ":one",
        "filename": "things.sql",
        "text": "select t.id from s.t as t where t.id = $1::bigint",
        "params": [param(1, "id")],
        "columns": [column("id")],
        **over,
    }


def compiled(
    *queries: dict[str, Any], header: list[str] | None = None, enums: Any = (), tables: Any = ()
) -> dict[str, str]:
    """Compile statements whose files hold the same header lines for each."""
    lines = [f"-- {line}" for line in (HEADER if header is None else header)]
    sources: dict[str, bytes] = {}
    for item in queries:
        text = "\n".join([f"-- name: {item['name']} {item['cmd']}", *lines, item["text"] + ";", ""])
        sources[item["filename"]] = sources.get(item["filename"], b"") + text.encode()
    schema = {"name": "s", "enums": list(enums), "tables": list(tables)}
    raw = {"queries": list(queries), "catalog": {"schemas": [schema]}, "sqlc_version": "v0"}
    return generate(parse(raw), sources)


def refusal(*queries: dict[str, Any], **over: Any) -> str:
    """The message of a compilation that must fail."""
    with pytest.raises(GenerationErrors) as caught:
        compiled(*queries, **over)
    message = str(caught.value)
    assert "    fix: " in message
    return message


def test_the_base_case_compiles() -> None:
    assert "def get_thing(" in compiled(query())["things.py"]


def test_message_names_file_line_and_statement() -> None:
    other = query(name="Other", text="select 1 as id", params=[])
    message = refusal(other, query(cmd=":batchone"))
    assert message.startswith("queries/things.sql:9: GetThing: unsupported command :batchone")


def test_all_problems_are_told_at_once() -> None:
    message = refusal(query(cmd=":execresult"), query(name="B", columns=[column("x", "money")]))
    assert "unsupported command :execresult" in message
    assert "unsupported type money" in message


@pytest.mark.parametrize("kind", ["anyarray", "any", "money", "timestamp", "record", "s.nothing"])
def test_unknown_types(kind: str) -> None:
    assert f"unsupported type {kind}" in refusal(query(columns=[column("id", kind)]))
    bad = query(params=[param(1, "id", kind)])
    assert f"parameter id has the unsupported type {kind}" in refusal(bad)


def test_void_belongs_to_exec() -> None:
    assert "is void" in refusal(query(columns=[column("id", "void")]))
    done = compiled(query(cmd=":exec", columns=[column("id", "void")]))
    assert ") -> None:" in done["things.py"]
    assert "has type void" in refusal(query(params=[param(1, "id", "void")]))


@pytest.mark.parametrize("dims", [2, 3])
def test_arrays_of_arrays(dims: int) -> None:
    deep = query(columns=[column("id", is_array=True, array_dims=dims)])
    assert "array of arrays" in refusal(deep)


def test_arrays_without_a_dimension_count_are_arrays() -> None:
    done = compiled(query(columns=[column("id", is_array=True)]))
    assert "list[int | None] | None:" in done["things.py"]


@pytest.mark.parametrize(
    ("header", "said"),
    [
        ([], "purpose, callers, locks, index, fence, cost missing"),
        ([line for line in HEADER if not line.startswith("fence")], "header key fence missing"),
        ([*HEADER[:-1], "cost:"], "header key cost missing or empty"),
        ([*HEADER, "lock: x"], "unknown header key 'lock'"),
        ([*HEADER, "cost: again"], "header key 'cost' appears twice"),
        (["prose first", *HEADER], "neither `-- key: text` nor a continuation"),
        (["  continued: nothing", *HEADER], "neither `-- key: text` nor a continuation"),
        ([*HEADER, "nullable: i d"], "cannot read 'i d' in `nullable:`"),
        ([*HEADER, "nullable: id, -id"], "names '-id' twice"),
        ([*HEADER, "nullable: ghost"], "names ghost, which the statement does not have"),
        ([*HEADER, "nullable: @ghost"], "names @ghost, which"),
        ([*HEADER, "nullable: id[]"], "names id[], which"),
        ([*HEADER, "nullable: @id[]"], "names @id[], which"),
    ],
)
def test_headers(header: list[str], said: str) -> None:
    assert said in refusal(query(), header=header)


def test_nullable_corrects_both_ways() -> None:
    text = "select t.id, t.n, t.a from s.t as t where t.id = $1::bigint and t.a = $2::int8[]"
    maybe = query(
        text=text,
        params=[param(1, "id"), param(2, "a", is_array=True, not_null=False)],
        columns=[column("id"), column("n", not_null=False), column("a", is_array=True)],
    )
    header = [*HEADER, "nullable: id, -n, a,", "    -a[], @id, -@a, -@a[]"]
    source = compiled(maybe, header=header)["things.py"]
    assert "    id: int | None\n    n: int\n    a: list[int] | None\n" in source
    assert "    id: int | None,\n    a: Sequence[int],\n" in source


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("select t.id from s.t as t where t.id = $1", "parameter id has no cast"),
        ("select $1::bigint as id where $1 > 0", "parameter id has no cast"),
        ("select t.id from s.t as t where t.id=@id and t.id = $1::bigint", "as an operator"),
        ("select t.id from s.t as t", "sqlc knows parameters [1], the text has []"),
    ],
)
def test_parameters_without_a_type(text: str, said: str) -> None:
    assert said in refusal(query(text=text))


@pytest.mark.parametrize(
    "text",
    [
        "select '$2' as id, $1::bigint /* $3 and @x */ as more",
        'select "$2".id, $1 :: bigint as "@odd" from s.t as "$2"',
        "select $1::bigint, t.x @> t.y, @ t.z, t.p <@ t.q, $q$ $7 @name $q$, E'\\' $8' as id",
    ],
)
def test_placeholders_in_strings_names_and_comments_are_none(text: str) -> None:
    assert compiled(query(text=text))


def test_parameter_without_a_name() -> None:
    bad = query(params=[{"number": 1, "column": column("id", is_named_param=False)}])
    assert "has no name" in refusal(bad)


def test_slices_and_embeds() -> None:
    assert "sqlc.slice" in refusal(query(params=[param(1, "id", is_sqlc_slice=True)]))
    embedded = column("t", "", embed_table={"schema": "s", "name": "t"})
    assert "sqlc.embed" in refusal(query(columns=[embedded, column("id")]))


@pytest.mark.parametrize("name", ["count", "index"])
def test_columns_that_would_hide_a_tuple_method(name: str) -> None:
    two = query(columns=[column(name), column("id")])
    assert f"result column {name} would hide the tuple method" in refusal(two)
    assert compiled(query(columns=[column(name)]))


@pytest.mark.parametrize("name", ["", "?column?", "_private", "a+b", "ﬁeld", "a.b", "#", "__"])
def test_columns_that_make_no_python_name(name: str) -> None:
    message = refusal(query(columns=[column(name), column("id")]))
    assert "has no name" in message or "makes no Python name" in message


def test_columns_that_make_the_same_python_name() -> None:
    two = query(columns=[column("a b"), column("a_b")])
    assert "'a b' and 'a_b' are both a_b" in refusal(two)
    assert "are both from_" in refusal(query(columns=[column("from"), column("from_")]))


def test_parameters_that_make_the_same_python_name() -> None:
    text = "select t.id from s.t as t where t.id = $1::bigint and t.id = $2::bigint"
    two = query(text=text, params=[param(1, "class"), param(2, "class_")])
    assert "parameters 'class' and 'class_' are both class_" in refusal(two)


@pytest.mark.parametrize(
    ("one", "two"),
    [("GetThing", "GETThing"), ("GetHTTPThing", "GetHttpThing"), ("Get", "GetAsync")],
)
def test_duplicate_function_names(one: str, two: str) -> None:
    message = refusal(query(name=one), query(name=two, filename="more.sql"))
    assert "makes the Python name" in message
    assert f"queries/things.sql: {one}" in message


def test_a_row_type_must_be_unique_too() -> None:
    wide = [column("id"), column("n")]
    clash = refusal(
        query(name="Thing", columns=wide),
        query(name="THING", columns=wide),
    )
    assert "makes the Python name THING" in clash


@pytest.mark.parametrize("stem", ["class", "enums", "schema", "2nd", "with-dash", "_x", "int"])
def test_query_files_that_cannot_be_modules(stem: str) -> None:
    assert "cannot be a module name" in refusal(query(filename=f"{stem}.sql"))


@pytest.mark.parametrize("name", ["Uuid", "_Hidden", "getThing", "Get_Thing"])
def test_statement_names_that_clash_with_the_module(name: str) -> None:
    assert "cannot be a statement name" in refusal(query(name=name))


def test_results_where_none_come() -> None:
    assert "without a result" in refusal(query(columns=[]))


def test_copyfrom_needs_an_insert() -> None:
    copying = query(cmd=":copyfrom", text="insert into s.t (id) values ($1)", columns=[])
    assert ":copyfrom without an insert" in refusal(copying)
    done = compiled({**copying, "insert_into_table": {"schema": "s", "name": "t"}})
    assert "copy s.t (id) from stdin" in done["things.py"]


def test_two_enums_of_one_class_name() -> None:
    kinds = [
        {"name": "job_state", "vals": ["a"]},
        {"name": "jobState", "vals": ["a"]},
    ]
    assert "makes the class JobState" in refusal(query(), enums=kinds)
    assert "makes no class name" in refusal(query(), enums=[{"name": "2nd", "vals": ["a"]}])


def test_a_never_null_that_the_text_speaks_against() -> None:
    table = {
        "rel": {"schema": "s", "name": "t"},
        "columns": [column("id"), column("note", "text", not_null=False)],
    }
    text = "select t.note::text as note from s.t as t where t.id = $1::bigint"
    cast = query(text=text, columns=[column("note", "text")])
    message = refusal(cast, tables=[table])
    assert "sqlc says that note is never null, but: s.t.note may be null" in message
    for said, result in (("note", "str | None"), ("-note", "str | None")):
        assert (
            result
            in compiled(cast, tables=[table], header=[*HEADER, f"nullable: {said}"])["things.py"]
        )


def test_what_sqlc_itself_does_to_traps(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Through the real sqlc: its own errors arrive, its silent rewrites are refused."""
    (tmp_path / "queries").mkdir()
    (tmp_path / "schema").mkdir()
    (tmp_path / "sqlc.yaml").write_bytes((FIXTURE / "sqlc.yaml").read_bytes())
    (tmp_path / "schema" / "0001.sql").write_text("create table public.t (id bigint not null);\n")
    head = "\n".join(f"-- {line}" for line in HEADER)
    file = tmp_path / "queries" / "traps.sql"
    file.write_text(
        f"-- name: Chained :one\n{head}\nselect @id::bigint::text as id;\n\n"
        f"-- name: Glued :one\n{head}\nselect t.id from public.t as t where t.id=@id::bigint;\n"
    )
    assert cli.main(["--root", str(tmp_path), "--package", str(PACKAGE)]) == 1
    said = capfd.readouterr().err
    assert "queries/traps.sql:1: Chained: parameter" in said
    assert "a second cast needs parentheses" in said
    assert "queries/traps.sql:10: Glued: sqlc read @id as an operator" in said
    assert said.count("Glued") == 1
    file.write_text(f"-- name: Wrong :one\n{head}\nselect t.nope from public.t as t;\n")
    assert cli.main(["--root", str(tmp_path), "--package", str(PACKAGE)]) == 1
    assert 'column "nope" does not exist' in capfd.readouterr().err
    assert not (tmp_path / "generated").exists()
