"""Results come back equal from JSON, or are refused with type and path (O-23)."""

from __future__ import annotations

import dataclasses
import enum
import math
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from inspect import Signature
from typing import Annotated, Any, Literal, NamedTuple, Never
from uuid import UUID

import pytest
from pydantic import AfterValidator, BaseModel, Field, SecretStr
from typing_extensions import TypedDict

import jobs
from jobs.errors import DeclarationError
from jobs.faults import ResultInvalid, ResultUnreadable
from jobs.results import RESULT_LIMIT, ResultCodec
from tests.runtime.working import Input, job

NOW = datetime(2026, 11, 30, 12, tzinfo=UTC)


class Colour(enum.Enum):
    RED = "red"


class Part(BaseModel):
    name: str
    amount: float = 0.0


class Special(Part):
    extra: int = 1


@dataclasses.dataclass
class Point:
    x: int
    y: int = 0


class Pair(NamedTuple):
    left: int
    right: str


class NoForm:
    def __repr__(self) -> str:
        return "NoForm()"


class Entry(TypedDict):
    at: datetime


def codec(annotation: object) -> ResultCodec:
    return ResultCodec(annotation, lambda: annotation)


def refusal(annotation: object, value: object) -> ResultInvalid:
    with pytest.raises(ResultInvalid) as caught:
        codec(annotation).dump(value)
    return caught.value


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (int, 2**70),
        (float, -0.0),
        (str, "a\\u0000b Infinity \U0001f600"),
        (bytes, b"\x01abc"),
        (Decimal, Decimal("0.10")),
        (Decimal, Decimal("1E+2")),
        (datetime, NOW),
        (timedelta, timedelta(days=1, microseconds=1)),
        (UUID, UUID(int=5)),
        (Colour, Colour.RED),
        (tuple[int, str], (1, "a")),
        (set[int], {3, 1, 2}),
        (frozenset[str], frozenset({"a"})),
        (dict[int, str], {2: "b", 1: "a"}),
        (dict[str, Any], {"b": 1, "a": [None, True, {"c": 1.5}]}),
        (Part | None, Part(name="x", amount=1.5)),
        (list[Part], [Part(name="x"), Part(name="y")]),
        (Point, Point(1, 2)),
        (Pair, Pair(1, "a")),
        (list[Pair], [Pair(1, "a")]),
        (Entry, {"at": NOW}),
        (Literal["a", 1], 1),
        (Annotated[int, Field(ge=1)], 5),
        (int | str, "5"),
        (Any, {"a": [1, "b", None]}),
        (object, ["a"]),
        (Signature.empty, {"a": [1, "b", None]}),
    ],
    ids=repr,
)
def test_a_value_comes_back_equal(annotation: object, value: object) -> None:
    one = codec(annotation)
    text = one.dump(value)
    assert text is not None
    back = one.load(text)
    assert (type(back), back) == (type(value), value)
    assert math.copysign(1, back) == math.copysign(1, value) if value == 0.0 else True
    if isinstance(value, dict):
        assert list(back) == list(value)


@pytest.mark.parametrize(
    ("annotation", "value", "field", "problem"),
    [
        (float, math.inf, "result", "not a finite number"),
        (dict[str, list[float]], {"a": [1.0, math.nan]}, "result.a[1]", "not a finite number"),
        (Signature.empty, {"a": [math.nan]}, "result.a[0]", "not a finite number"),
        (list[Decimal], [Decimal("Infinity")], "result[0]", "finite"),
        (str, "a\x00b", "result", "NUL"),
        (Any, {"k\x00": 1}, "result['k\\x00']", "NUL"),
        (list[str], ["ok", "\ud800"], "result[1]", "surrogate"),
        (Part, Part(name="\ud800"), "result.name", "surrogate"),
        (datetime, datetime(2026, 1, 1), "result", "without a time zone"),
        (Entry, {"at": datetime(2026, 1, 1)}, "result.at", "without a time zone"),
        (int, "5", "result", "returned a str"),
        (list[int], (1, 2), "result", "returned a tuple"),
        (Part, {"name": "x"}, "result", "is changed by its validation as Part"),
        (Part, Special(name="x"), "result", "Special"),
        (float, 2**53 + 1, "result", "is changed"),
        (Any, {"at": NOW}, "result.at", "is a datetime that comes back from JSON as a str"),
        (Any, Part(name="x"), "result", "is a Part that comes back from JSON as a dict"),
        (Any, (1, 2), "result", "is a tuple that comes back from JSON as a list"),
        (Any, {1: "a"}, "result[1]", "is a int that comes back from JSON as a str"),
        (Signature.empty, {"a": NoForm()}, "result.a", "NoForm without a JSON form"),
        (Any, [1, {"f": len}], "result[1].f", "without a JSON form"),
        (dict[str, SecretStr], {"a": SecretStr("s")}, "result.a", "SecretStr"),
        (int, None, "result", "is None"),
    ],
    ids=repr,
)
def test_what_would_not_is_refused_with_type_and_path(
    annotation: object, value: object, field: str, problem: str
) -> None:
    refused = refusal(annotation, value)
    assert refused.field == field
    assert problem in refused.reason
    assert refused.code == "JOB_RESULT_INVALID"


def test_a_whole_number_may_stand_for_a_float_as_type_checkers_say() -> None:
    one = codec(list[float])
    text = one.dump([1, 2.5])
    assert one.load(text) == [1.0, 2.5]


def test_a_result_has_a_bound_in_bytes() -> None:
    one = codec(str)
    fits = "x" * (RESULT_LIMIT - 2)
    assert one.load(one.dump(fits)) == fits
    assert "1,048,577 bytes of JSON, and the limit is 1,048,576" in refusal(str, fits + "x").reason
    assert "limit" in refusal(str, "\u00e9" * (RESULT_LIMIT // 2)).reason


@pytest.mark.parametrize("annotation", [None, type(None), Never], ids=repr)
def test_a_function_annotated_with_none_stores_nothing(annotation: object) -> None:
    one = codec(annotation)
    assert (one.keeps, one.dump(object()), one.load(None)) == (False, None, None)
    with pytest.raises(ResultUnreadable, match="something is stored"):
        one.load("1")


def test_none_is_stored_as_nothing_where_it_is_allowed() -> None:
    for annotation in (int | None, Any, Signature.empty, object):
        one = codec(annotation)
        assert one.dump(None) is None
        assert one.load(None) is None
    with pytest.raises(ResultUnreadable, match="nothing is stored, and the function returns int"):
        codec(int).load(None)


def test_a_stored_result_that_does_not_fit_any_more_says_where() -> None:
    with pytest.raises(ResultUnreadable, match=r"does not fit Part: result\.name: .*string"):
        codec(Part).load('{"name": 5}')
    with pytest.raises(ResultUnreadable, match="does not fit int"):
        codec(int).load("{")


def test_a_validator_of_the_application_may_refuse() -> None:
    def odd(value: int) -> int:
        if value % 2 == 0:
            raise ValueError("must be odd")
        return value

    annotation = Annotated[int, AfterValidator(odd)]
    assert codec(annotation).dump(3) == "3"
    assert "must be odd" in refusal(annotation, 4).reason


def test_a_type_without_a_json_form_is_refused_where_the_job_is_declared() -> None:
    def search(input: Input) -> Callable[[], int]:
        raise AssertionError(input)

    class Handle:
        pass

    def other(input: Input) -> Handle:
        raise AssertionError(input)

    with pytest.raises(DeclarationError, match=r"job function 'other': result: .*Handle"):
        job()(other)
    # A callable has a schema, and no value of it has a JSON form.
    handle: jobs.JobHandle[Input] = job()(search)
    with pytest.raises(ResultInvalid, match="JSON"):
        handle.results.dump(len)


def test_an_annotation_that_is_known_later_is_evaluated_at_the_first_use() -> None:
    handle = job()(later)
    globals()["Late"] = Point
    try:
        assert handle.results.load(handle.results.dump(Point(1))) == Point(1)
    finally:
        del globals()["Late"]


def test_one_for_type_checkers_only_says_as_little_as_none() -> None:
    handle = job()(never_known)
    assert handle.results.load(handle.results.dump({"a": 1})) == {"a": 1}
    with pytest.raises(ResultInvalid, match="result: is a Point"):
        handle.results.dump(Point(1))


def later(input: Input) -> Late:  # type: ignore[name-defined]  # noqa: F821
    raise AssertionError(input)


def never_known(input: Input) -> Nowhere:  # type: ignore[name-defined]  # noqa: F821
    raise AssertionError(input)
