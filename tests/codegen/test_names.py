"""Python names of SQL names."""

from __future__ import annotations

import keyword

import pytest

from codegen.sqlc_gen_python import naming
from codegen.sqlc_gen_python.render_package import enums
from codegen.sqlc_gen_python.request import Enum


@pytest.mark.parametrize(
    ("camel", "snake"),
    [
        ("ClaimJobs", "claim_jobs"),
        ("GetHTTPJob", "get_http_job"),
        ("A", "a"),
        ("Get2Things", "get2_things"),
        ("RetryJobsIfHeld", "retry_jobs_if_held"),
    ],
)
def test_snake(camel: str, snake: str) -> None:
    assert naming.snake(camel) == snake


@pytest.mark.parametrize(
    ("name", "field"),
    [
        ("id", "id"),
        ("class", "class_"),
        ("from", "from_"),
        ("import", "import_"),
        ("None", "None_"),
        ("type", "type"),
        ("order", "order"),
        ("match", "match"),
        ("int", "int_"),
        ("list", "list_"),
        ("conn", "conn_"),
        ("date", "date"),
        ("2nd", "column_2nd"),
        ("two words", "two_words"),
        ("in-progress", "in_progress"),
        ("größe", "größe"),
    ],
)
def test_fields(name: str, field: str) -> None:
    assert naming.field(name) == field


@pytest.mark.parametrize(
    ("value", "member"),
    [
        ("done", "DONE"),
        ("in-progress", "IN_PROGRESS"),
        ("=", "EQ"),
        ("<=", "LT_EQ"),
        ("<>", "LT_GT"),
        ("a<b", "A_LT_B"),
        ("2nd", "VALUE_2ND"),
        ("", "EMPTY"),
        (" ", "EMPTY"),
        ("None", "NONE_"),
        ("True", "TRUE_"),
        ("class", "CLASS"),
        ("_x", "X"),
        ("☃", "U2603"),
        ("größer", "GRÖSSER"),
        ("x.y", "X_Y"),
        ("ª", "VALUE_U00AA"),
    ],
)
def test_enum_members(value: str, member: str) -> None:
    assert naming.enum_member(value) == member
    assert naming.is_plain(member)
    assert not keyword.iskeyword(member)


def test_enum_values_that_spell_alike_stay_apart() -> None:
    values = ("a-b", "a_b", "a b", "A_B", "ab", "AB", "a.b", "", " ", "  ")
    source = enums("# banner", {Enum("s", "odd", values, ""): "Odd"})
    scope: dict[str, object] = {}
    exec(compile(source, "enums.py", "exec"), scope)
    odd = scope["Odd"]
    assert tuple(str(member) for member in odd) == values  # type: ignore[attr-defined]
    assert [member.name for member in odd][:4] == [  # type: ignore[attr-defined]
        "A_B",
        "A_B_U005F",
        "A_B_U0020",
        "VALUE_U0041_U005F_U0042",
    ]
