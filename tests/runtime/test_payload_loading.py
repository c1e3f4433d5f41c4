"""Which payloads are looked at value by value, and how stored ones are read back."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from decimal import Decimal
from typing import Annotated, Any

import pytest
from pydantic import (
    AfterValidator,
    AwareDatetime,
    BaseModel,
    Field,
    field_validator,
)

from jobs.errors import InvalidInput, PayloadUnreadable
from jobs.payload import Codec, text_problem
from jobs.roundtrip import may_hold_anything
from tests.runtime.test_payload import Order, Part, Point, dump, refused

# --- which models need a look at each value


@pytest.mark.parametrize(
    ("annotation", "loose"),
    [
        (list[Part], False),
        (dict[str, tuple[int, Decimal]], False),
        (Point | None, False),
        (AwareDatetime, False),
        (Annotated[int, Field(gt=1)], False),
        (datetime, True),
        (Any, True),
        (list[Any], True),
        (int | str, True),
        (Mapping[str, Any], True),
        (Annotated[str, AfterValidator(str.upper)], True),
    ],
)
def test_only_models_whose_types_leave_doubt_are_walked(annotation: Any, loose: bool) -> None:
    kind = type("Kind", (BaseModel,), {"__annotations__": {"value": annotation}})
    assert may_hold_anything(kind) is loose


def test_models_with_fields_named_like_schema_words_are_read_right() -> None:
    kind = type("Kind", (BaseModel,), {"__annotations__": {"default": datetime, "type": int}})
    assert may_hold_anything(kind)


def test_a_model_completed_after_its_job_works() -> None:
    class Node(BaseModel):
        children: list[Node] = []
        late: Later | None = None

    codec = Codec(Node)

    class Later(BaseModel):
        at: datetime

    Node.model_rebuild(_types_namespace={"Node": Node, "Later": Later})
    assert codec.load(codec.dump(Node(children=[Node()]))) == Node(children=[Node()])
    with pytest.raises(InvalidInput, match=r"input\.children\[0\]\.late\.at"):
        codec.dump(Node(children=[Node(late=Later(at=datetime(2026, 1, 1)))]))


# --- accepting and loading


def test_mappings_are_validated_and_models_taken_as_they_are() -> None:
    codec = Codec(Order)
    order = Order()
    assert codec.accept(order) is order
    assert codec.accept({"items": [{"name": "a"}]}) == Order(items=[Part(name="a")])
    with pytest.raises(InvalidInput) as caught:
        codec.accept({"items": [{"name": "a"}, {"name": []}]})
    assert caught.value.field == "input.items[1].name"
    with pytest.raises(InvalidInput, match=r"takes a Order"):
        codec.accept(Part(name="a"))

    class More(Order):
        extra: int = 1

    with pytest.raises(InvalidInput, match="More"):
        codec.accept(More())


def test_a_validator_that_raises_something_else_is_a_refusal_too() -> None:
    class Broken(BaseModel):
        value: int

        @field_validator("value")
        @classmethod
        def fail(cls, value: int) -> int:
            raise LookupError(f"no such row as {value}")

    with pytest.raises(InvalidInput, match="LookupError: no such row as 1"):
        Codec(Broken).accept({"value": 1})
    with pytest.raises(PayloadUnreadable, match="LookupError"):
        Codec(Broken).load('{"value": 1}')


@pytest.mark.parametrize(
    ("text", "needle"),
    [
        ("{", "JSON"),
        ("null", "input"),
        ('{"items": [{"nome": "a"}]}', "input.items[0].name"),
        ('{"note": "\\ud800"}', "JSON"),
    ],
)
def test_a_stored_text_that_does_not_fit_says_where(text: str, needle: str) -> None:
    with pytest.raises(PayloadUnreadable) as caught:
        Codec(Order).load(text)
    assert needle in str(caught.value)
    assert "JOB_PAYLOAD_UNREADABLE" in str(caught.value)


def test_a_payload_beyond_the_limit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jobs.payload.PAYLOAD_LIMIT", 1_000)
    assert dump(Order(note="x" * 900))
    assert "limit is 1,000" in refused(Order(note="x" * 1_000)).reason


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ("", "empty"),
        (None, "NoneType"),
        (b"x", "bytes"),
        ("a\x00", "NUL"),
        ("\ud800", "surrogate"),
        ("é" * 128, "256 bytes"),
        ("a" * 256, "256 bytes"),
        ("\U0001f600" * 64, "256 bytes"),
    ],
)
def test_o17_texts_are_measured_in_bytes(value: object, problem: str) -> None:
    assert problem in (text_problem(value, 255) or "")
    assert text_problem("é" * 127, 255) is None
    assert text_problem("a" * 255, 255) is None
