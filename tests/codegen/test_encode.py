"""What the encoders refuse before anything reaches a server."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from decimal import Decimal
from enum import IntEnum, StrEnum
from typing import Any
from uuid import UUID

import pytest

from codegen.sqlc_gen_python.runtime import copying, encode, rows

AWARE = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)
NAIVE = dt.datetime(2024, 1, 1)


class _Word(StrEnum):
    X = "x"


class _Number(IntEnum):
    ONE = 1


@pytest.mark.parametrize(
    ("encoder", "wrong"),
    [
        (encode.boolean, [0, 1, "t", None, "", [True]]),
        (encode.integer, [1.0, "1", None, Decimal(1), b"1"]),
        (encode.double, ["1", None, Decimal(1)]),
        (encode.numeric, [1.0, "1", None]),
        (encode.text, [1, b"x", None, bytearray(b"x"), UUID(int=1)]),
        (encode.uuid, [str(UUID(int=1)), 1, None, 1.5]),
        (encode.timestamptz, ["2024-01-01", AWARE.date(), None, 0]),
        (encode.date, [AWARE, "2024-01-01", None]),
        (encode.interval, [1, 1.0, "1 day", None]),
        (encode.bytea, ["x", 5, None, [1, 2]]),
    ],
)
def test_wrong_types(encoder: Callable[[Any], str], wrong: list[Any]) -> None:
    for value in wrong:
        with pytest.raises(TypeError, match="expected"):
            encoder(value)
        with pytest.raises(TypeError, match="expected"):
            encode.array(encoder, [value] if value is not None else "text")


def test_values_without_an_instant_or_a_number() -> None:
    with pytest.raises(ValueError, match="naive datetime"):
        encode.timestamptz(NAIVE)
    with pytest.raises(ValueError, match="signalling NaN"):
        encode.numeric(Decimal("sNaN"))


@pytest.mark.parametrize("text", ["abc", b"abc", bytearray(b"abc"), memoryview(b"abc")])
def test_text_is_no_array(text: Any) -> None:
    for function in (encode.array, encode.quoted_array):
        with pytest.raises(TypeError, match="expected a sequence of values"):
            function(encode.text, text)


def test_subclasses_are_sent_as_their_base() -> None:
    assert encode.text(_Word.X) == "x"
    assert type(encode.text(_Word.X)) is str
    assert encode.integer(_Number.ONE) == "1"
    assert encode.integer(True) == "1"
    assert encode.double(1) == "1.0"


def test_none_is_null_only_where_it_may_be() -> None:
    assert encode.optional(encode.text, None) is None
    assert encode.optional(encode.text, "") == ""
    assert encode.optional_array(encode.integer, None) is None
    assert encode.optional_quoted_array(encode.text, None) is None
    assert encode.array(encode.integer, [None, 1]) == "{NULL,1}"
    assert encode.quoted_array(encode.text, [None, "NULL"]) == '{NULL,"NULL"}'
    assert encode.quoted_array(encode.text, iter(["a", "b"])) == '{"a","b"}'  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "values",
    [[], ["a"], [""], ["NULL", None], ['"', "\\", "{", "}", ",", " "], [None], ['a","b', 'c"'],
     ["\\", "x"], ['"'] * 3],
)  # fmt: skip
def test_array_text_reads_back(values: list[str | None]) -> None:
    assert rows.split_array(encode.quoted_array(encode.text, values)) == values


def test_what_is_the_same_object_throughout_is_encoded_once() -> None:
    calls: list[object] = []

    def noting(value: object) -> str:
        calls.append(value)
        return str(value)

    one = Decimal("1.00")
    assert encode.array(noting, [one] * 3) == "{1.00,1.00,1.00}"
    assert encode.quoted_array(noting, ('"',) * 2) == '{"\\"","\\""}'
    assert calls == [one, '"']
    assert encode.array(noting, [one, Decimal("1"), one]) == "{1.00,1,1.00}", "equal is not same"
    assert encode.array(encode.integer, [None, None]) == "{NULL,NULL}"
    assert encode.quoted_array(encode.text, [None, None]) == "{NULL,NULL}"
    assert encode.quoted_array(encode.text, ["", ""]) == '{"",""}'
    with pytest.raises(TypeError):
        encode.array(encode.integer, [1, 1.0, 1])


@pytest.mark.parametrize("literal", ["{}", "{a,NULL,b}", '{"NULL","a,b","\\"\\\\"}', '{""}'])
def test_array_literals_of_the_server(literal: str) -> None:
    expected = {
        "{}": [],
        "{a,NULL,b}": ["a", None, "b"],
        '{"NULL","a,b","\\"\\\\"}': ["NULL", "a,b", '"\\'],
        '{""}': [""],
    }
    assert rows.split_array(literal) == expected[literal]


def test_copy_lines_are_read_lazily_and_in_chunks() -> None:
    read = 0

    def feed() -> Any:
        nonlocal read
        for at in range(10):
            read = at + 1
            yield at

    chunks = copying.chunks(feed(), lambda _at: ("x" * 40_000, None))
    first = next(chunks)
    assert read == 2
    assert len(first) == 2 * 40_004
    assert "".join([first, *chunks]).count("\t\\N\n") == 10
    assert list(copying.chunks([], lambda at: (at,))) == []


def test_copy_line_escapes() -> None:
    assert copying.line(("a\tb\nc\rd\\e", None, "", r"\N", r"\.")) == (
        "a\\tb\\nc\\rd\\\\e\t\\N\t\t\\\\N\t\\\\.\n"
    )
