"""Payloads come back equal from JSON, or are refused with the path of the value."""

from __future__ import annotations

import dataclasses
import enum
import json
import math
import uuid
from collections import OrderedDict, deque
from collections.abc import Sequence
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Literal
from zoneinfo import ZoneInfo

import pytest
from pydantic import (
    AfterValidator,
    AwareDatetime,
    BaseModel,
    Field,
    PrivateAttr,
    RootModel,
    SecretStr,
    ValidationInfo,
    computed_field,
    field_serializer,
    field_validator,
)

from jobs.errors import InvalidInput
from jobs.payload import Codec

ZURICH = ZoneInfo("Europe/Zurich")


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Word(enum.StrEnum):
    YES = "yes"


class Part(BaseModel):
    name: str
    amount: float = 0.0


class Order(BaseModel):
    items: list[Part] = []
    labels: dict[str, str] = {}
    note: str | None = None


class Loose(BaseModel):
    value: Any = None


@dataclasses.dataclass
class Point:
    x: int
    y: float


def dump(model: BaseModel) -> str:
    return Codec(type(model)).dump(model)


def refused(model: BaseModel) -> InvalidInput:
    with pytest.raises(InvalidInput) as caught:
        dump(model)
    return caught.value


def holding(annotation: Any, value: Any, **config: Any) -> BaseModel:
    """A model with one field of that type and value."""
    kind = type(
        "Holding",
        (BaseModel,),
        {
            "__annotations__": {"value": annotation},
            "__module__": __name__,
            "model_config": config,
        },
    )
    made = kind(value=value)
    assert isinstance(made, BaseModel)
    return made


# --- O-22: what PostgreSQL or UTF-8 cannot hold


@pytest.mark.parametrize(
    ("order", "path", "why"),
    [
        (Order(items=[Part(name="a"), Part(name="b\x00")]), "input.items[1].name", "NUL"),
        (Order(labels={"a\x00b": "v"}), "input.labels['a\\x00b']", "NUL"),
        (Order(labels={"k": "\x00"}), "input.labels.k", "NUL"),
        (Order(labels={"two words": "\x00"}), "input.labels['two words']", "NUL"),
        (Order(note="high \ud800"), "input.note", "surrogate"),
        (Order(note="low \udc00"), "input.note", "surrogate"),
        (Order(labels={"\ud800": "v"}), "input.labels['\\ud800']", "surrogate"),
        (Order(items=[Part(name="\udfff")]), "input.items[0].name", "surrogate"),
    ],
)
def test_o22_text_that_cannot_be_stored_is_refused_with_its_path(
    order: Order, path: str, why: str
) -> None:
    error = refused(order)
    assert error.field == path
    assert why in error.reason
    assert str(error).startswith(f"{path}: ")


@pytest.mark.parametrize(
    "text",
    [
        "\U0001f600",
        "\uffff",
        "\x01",
        "\x7f",
        "\u2028",
        "\\u0000",
        "\\\\u0000",
        '"\\',
        "NaN",
        "Infinity",
    ],
)
def test_o22_unusual_but_sound_text_passes_unchanged(text: str) -> None:
    order = Order(note=text, labels={text: text})
    assert Codec(Order).load(dump(order)) == order
    assert json.loads(dump(order))["note"] == text


def test_a_nul_that_a_serialiser_makes_is_found_too() -> None:
    class Sly(BaseModel):
        value: str

        @field_serializer("value")
        def spoil(self, value: str) -> str:
            return value + "\x00"

        @field_validator("value")
        @classmethod
        def mend(cls, value: str) -> str:
            return value.rstrip("\x00")

    assert refused(Sly(value="a")).field == "input.value"


# --- O-23: equal after the round trip, or refused


class Everything(BaseModel):
    decimal: Decimal = Decimal("0.10")
    power: Decimal = Decimal("1E+2")
    big: int = 2**70
    zero: float = -0.0
    third: float = 1 / 3
    aware: AwareDatetime = datetime(2026, 3, 8, 2, 30, 1, 5, tzinfo=ZURICH)
    day: date = date(2026, 2, 28)
    at: time = time(2, 30)
    span: timedelta = timedelta(days=-3, microseconds=1)
    raw: bytes = b"bytes"
    id: uuid.UUID = uuid.UUID(int=7)
    colour: Colour = Colour.RED
    level: Level = Level.HIGH
    pair: tuple[int, str] = (1, "a")
    members: set[int] = {3, 1}
    frozen: frozenset[str] = frozenset({"a"})
    numbered: dict[int, str] = {1: "a", 2: "b"}
    by_day: dict[date, float] = {date(2026, 1, 1): 1.5}
    point: Point = Point(1, 2.5)
    queue: deque[int] = deque([1, 2])
    choice: Literal["a", "b"] = "b"
    path: Path = Path("/tmp/x")
    either: int | str = "1"
    nested: Order = Order(items=[Part(name="x", amount=1.25)])


def test_o23_rich_values_come_back_equal_and_of_the_same_type() -> None:
    value = Everything()
    back = Codec(Everything).load(dump(value))
    assert back == value
    assert math.copysign(1, back.zero) == -1
    assert str(back.decimal) == "0.10"
    assert back.power.as_tuple() == value.power.as_tuple()
    assert back.aware.utcoffset() == timedelta(hours=1)
    for name in Everything.model_fields:
        if name != "path":
            assert type(getattr(back, name)) is type(getattr(value, name)), name


def test_o23_the_order_of_keys_is_kept() -> None:
    labels = {"b": "1", "a": "2", "c": "3"}
    assert list(json.loads(dump(Order(labels=labels)))["labels"]) == ["b", "a", "c"]


@pytest.mark.parametrize("number", [math.inf, -math.inf, math.nan])
@pytest.mark.parametrize("mode", ["null", "constants", "strings"])
def test_o23_non_finite_numbers_are_refused_however_the_model_writes_them(
    number: float, mode: str
) -> None:
    for annotation in (float, float | None, list[float], Any):
        value = [number] if annotation == list[float] else number
        error = refused(holding(annotation, value, ser_json_inf_nan=mode))
        assert error.field.startswith("input.value")
        assert "finite" in error.reason
    error = refused(Order(items=[Part(name="a"), Part(name="b", amount=number)]))
    assert error.field == "input.items[1].amount"


def test_o23_a_non_finite_decimal_is_refused() -> None:
    for text in ("NaN", "sNaN", "Infinity"):
        error = refused(holding(Any, Decimal(text)))
        assert error.field == "input.value"
        assert "finite" in error.reason


@pytest.mark.parametrize(
    ("value", "names"),
    [
        ((1, 2), ("tuple", "list")),
        ({1, 2}, ("set", "list")),
        (Decimal("1.5"), ("Decimal", "str")),
        (b"x", ("bytes", "str")),
        (uuid.UUID(int=1), ("UUID", "str")),
        (date(2026, 1, 1), ("date", "str")),
        (timedelta(1), ("timedelta", "str")),
        (Level.LOW, ("Level", "int")),
        (Word.YES, ("Word", "str")),
        (Colour.RED, ("Colour", "str")),
        (Part(name="a"), ("Part", "dict")),
        (Point(1, 2.0), ("Point", "dict")),
        (OrderedDict(a=1), ("OrderedDict", "dict")),
        ({1: "a"}, ("int", "str")),
        ({True: "a"}, ("bool", "str")),
    ],
)
def test_o23_a_value_that_json_would_turn_into_another_type_is_refused(
    value: object, names: tuple[str, str]
) -> None:
    error = refused(Loose(value=value))
    assert error.field.startswith("input.value")
    assert all(name in error.reason for name in names)


def test_o23_an_undeclared_type_deep_inside_is_named_by_its_path() -> None:
    error = refused(Loose(value={"rows": [{"at": 1}, {"at": Decimal(2)}]}))
    assert error.field == "input.value.rows[1].at"


def test_o23_keys_that_collide_in_json_are_refused() -> None:
    assert "key" in refused(Loose(value={1: "a", "1": "b"})).reason


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (Sequence[int], (1, 2)),
        (str | Word, Word.YES),
        (int | Level, Level.LOW),
        (SecretStr, "secret"),
    ],
)
def test_o23_declared_types_that_do_not_come_back_are_refused(
    annotation: Any, value: object
) -> None:
    error = refused(holding(annotation, value))
    assert error.field == "input.value"
    assert "secret" not in str(error)


def test_o23_fields_that_are_left_out_of_the_json_are_refused() -> None:
    class Partial(BaseModel):
        shown: int = 1
        hidden: int = Field(default=0, exclude=True)
        _private: int = PrivateAttr(default=0)

    assert Codec(Partial).load(dump(Partial())) == Partial()
    assert refused(Partial(hidden=2)).field == "input.hidden"
    secretive = Partial()
    secretive._private = 5
    assert refused(secretive).field == "input._private"


def test_o23_a_model_that_refuses_its_own_json_is_told_so() -> None:
    class Upper(BaseModel):
        word: str

        @field_validator("word")
        @classmethod
        def twice(cls, word: str, info: ValidationInfo) -> str:
            if info.mode == "json":
                raise ValueError("not from JSON")
            return word

    error = refused(Upper(word="a"))
    assert error.field == "input.word"
    assert "not from JSON" in error.reason

    class Growing(BaseModel):
        word: Annotated[str, AfterValidator(lambda word: word + "!")]

    assert refused(Growing(word="a")).field == "input.word"


def test_o23_what_has_no_json_form_is_named() -> None:
    error = refused(Loose(value={"a": [1, object()]}))
    assert error.field == "input.value.a[1]"
    error = refused(holding(bytes, b"\xff"))
    assert error.field == "input.value"
    ring: list[object] = []
    ring.append(ring)
    assert refused(Loose(value=ring)).field.startswith("input")


def test_assigned_values_that_the_model_never_checked_are_caught() -> None:
    part = Part(name="a")
    part.name = 5  # type: ignore[assignment]
    assert refused(part).field == "input.name"
    order = Order()
    order.items = [{"name": "x"}]  # type: ignore[list-item]
    assert refused(order).field == "input.items[0]"


def test_a_model_that_compares_equal_to_everything_is_compared_field_by_field() -> None:
    class Agreeable(BaseModel):
        hidden: int = Field(default=0, exclude=True)

        def __eq__(self, other: object) -> bool:
            return True

    assert refused(Agreeable(hidden=3)).field == "input.hidden"


@pytest.mark.parametrize(
    "model",
    [
        RootModel[list[int]]([1, 2]),
        RootModel[dict[str, Any]]({"a": [1, None, {"b": True}]}),
        Loose(value={"a": [1, 2.5, "x", None, True, {"b": []}]}),
        holding(dict[str, Any], {"ä": 1}, extra="allow"),
    ],
)
def test_plain_json_in_open_models_passes(model: BaseModel) -> None:
    assert Codec(type(model)).load(dump(model)) == model


def test_paths_through_root_models_have_no_step_of_their_own() -> None:
    assert refused(RootModel[list[str]](["a", "\x00"])).field == "input[1]"


def test_names_and_aliases_in_either_direction() -> None:
    class Renamed(BaseModel):
        both: int = Field(alias="Both")
        read: int = Field(validation_alias="Read")
        write: int = Field(serialization_alias="Write")

    # An alias for writing only is unknown when reading.
    value = Renamed.model_validate({"Both": 1, "Read": 2, "write": 3})
    assert refused(value).field == "input.write"

    class Usual(BaseModel):
        both: int = Field(alias="Both")
        read: int = Field(validation_alias="Read")

        @computed_field
        def total(self) -> int:
            return self.both + self.read

    usual = Usual.model_validate({"Both": 1, "Read": 2})
    assert json.loads(dump(usual)) == {"Both": 1, "read": 2}
    assert Codec(Usual).load(dump(usual)) == usual


# --- O-24: naive times


@pytest.mark.parametrize(
    ("model", "path"),
    [
        (holding(datetime, datetime(2026, 3, 8, 2, 30)), "input.value"),
        (holding(datetime | None, datetime(2026, 11, 1, 1, 30)), "input.value"),
        (holding(list[datetime], [datetime.now(UTC), datetime(2026, 1, 1)]), "input.value[1]"),
        (holding(dict[str, datetime], {"a": datetime(2026, 1, 1)}), "input.value.a"),
        (holding(dict[datetime, int], {datetime(2026, 1, 1): 1}), "input.value"),
        (holding(set[datetime], {datetime(2026, 1, 1)}), "input.value[0]"),
        (holding(Any, datetime(2026, 1, 1)), "input.value"),
    ],
)
def test_o24_naive_datetimes_are_refused_wherever_they_are(model: BaseModel, path: str) -> None:
    error = refused(model)
    assert error.field.startswith(path)
    assert "time zone" in error.reason


def test_o24_a_naive_datetime_behind_a_converter_is_found() -> None:
    converted = Annotated[str, AfterValidator(datetime.fromisoformat)]
    assert "time zone" in refused(holding(converted, "2026-01-01T00:00:00")).reason


def test_o24_aware_datetimes_pass_also_in_a_repeated_hour() -> None:
    for fold in (0, 1):
        at = datetime(2026, 10, 25, 2, 30, tzinfo=ZURICH, fold=fold)
        for annotation in (datetime, AwareDatetime, list[AwareDatetime]):
            value = [at] if annotation == list[AwareDatetime] else at
            model = holding(annotation, value)
            back = Codec(type(model)).load(dump(model)).value  # type: ignore[attr-defined]
            same = back[0] if isinstance(back, list) else back
            assert same.astimezone(UTC) == at.astimezone(UTC)


def test_a_datetime_of_a_librarys_own_class_may_become_a_plain_one() -> None:
    class Frozen(datetime):
        pass

    at = Frozen(2026, 1, 1, tzinfo=timezone(timedelta(hours=2)))
    assert Codec(type(holding(datetime, at))).load(dump(holding(datetime, at)))
