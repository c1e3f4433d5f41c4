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


def test_copy_blocks_are_read_one_by_one() -> None:
    read = 0

    def feed() -> Any:
        nonlocal read
        for at in range(10):
            read = at + 1
            yield [at] * at

    chunks = copying.chunks(feed(), lambda rows: [["x"] * len(rows), [None] * len(rows)])
    assert next(chunks) == "x\t\\N\n"
    assert read == 2, "an empty block is nothing to send"
    assert "".join(chunks).count("x\t\\N\n") == sum(range(2, 10))
    assert list(copying.chunks([[], []], lambda rows: [rows])) == []


@pytest.mark.parametrize(
    "column",
    [
        ["a\tb\nc\rd\\e", None, "", r"\N", r"\."],
        ["\t", "a"],
        ["\n", "a"],
        ["\r", "a"],
        ["\\", "a"],
        ["\t"] * 3,
        [None] * 3,
        [None, "a"],
        ["a", "b"],
        [""],
        ["a", "x", "a"],
    ],
)
def test_copy_lines_escape_what_copy_reads_otherwise(column: list[str | None]) -> None:
    names = {"\\": r"\\", "\t": r"\t", "\n": r"\n", "\r": r"\r"}
    texts = [
        r"\N" if text is None else "".join(names.get(letter, letter) for letter in text)
        for text in column
    ]
    assert copying.lines([column, ["1"] * len(column)]) == "".join(f"{t}\t1\n" for t in texts)


def test_columns_of_copy() -> None:
    ids = [UUID(int=1), UUID(int=2)]
    assert encode.column(encode.uuid, ids) == [id.hex for id in ids]
    assert encode.column(encode.text, [_Word.X, "y"]) == ["x", "y"]
    assert encode.column(encode.integer, [7, 7]) == ["7", "7"]
    assert encode.optional_column(encode.uuid, [None, ids[0]]) == [None, ids[0].hex]
    for encoder, values in ((encode.text, ["a", None]), (encode.integer, [None, None])):
        assert encode.optional_column(encoder, values)[1] is None
        with pytest.raises(TypeError, match="NoneType"):
            encode.column(encoder, values)
    with pytest.raises(TypeError, match="expected UUID"):
        encode.column(encode.uuid, [ids[0], str(ids[1])])


class _Id(UUID):
    """As some drivers return them."""


def test_arrays_of_ids_and_texts_of_several_types() -> None:
    one, two = UUID(int=1), _Id(int=2**127)
    assert encode.array(encode.uuid, [one, two]) == f"{{{one.hex},{two.hex}}}"
    assert encode.array(encode.uuid, [two, None, one]) == f"{{{two.hex},NULL,{one.hex}}}"
    assert encode.quoted_array(encode.text, ["a", _Word.X]) == '{"a","x"}'
    with pytest.raises(TypeError, match="expected UUID"):
        encode.array(encode.uuid, [one, str(one)])
    with pytest.raises(TypeError, match="expected str"):
        encode.quoted_array(encode.text, ["a", b"b"])


def test_a_nul_in_a_text_moves_nothing_to_the_next_one() -> None:
    # The server refuses it; until then it is one text of its own.
    assert encode.quoted_array(encode.text, ["a\0b", "c"]) == '{"a\0b","c"}'
