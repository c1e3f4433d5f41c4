"""What a value loses on its way through JSON, and where: the diagnosis behind refused payloads.

`find_flaw` looks at a value alone, `find_change` compares it with what came back. Both name the
path of the first problem and never show the value itself, which may be a secret.
"""

from __future__ import annotations

import dataclasses
import math
import typing
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, Final, NamedTuple
from uuid import UUID

from pydantic import BaseModel, RootModel
from pydantic_core import to_json


class Flaw(NamedTuple):
    """The path of a value that cannot be stored, and why."""

    path: str
    problem: str


_NUL: Final = "contains a NUL character (U+0000), which PostgreSQL cannot hold in a text"
_SURROGATE: Final = "contains a lone surrogate, which has no UTF-8 form"
_NOT_FINITE: Final = "is not a finite number, and JSON has none other"
_NAIVE: Final = "is a datetime without a time zone, so nobody can tell which instant it is"
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_DEEPEST: Final = 500  # pydantic gives up at about half of it

# Compared by type and value, nothing inside.
_PLAIN: Final = frozenset({str, int, float, bool, type(None), UUID, bytes})
_SEQUENCES: Final = (list, tuple, deque)
_SETS: Final = (set, frozenset)


def text_flaw(text: str) -> str | None:
    """Say why a text cannot be stored, or None."""
    if "\x00" in text:
        return _NUL
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            return _SURROGATE
    return None


def json_path(root: str, steps: Iterable[object]) -> str:
    """Write a path such as ``input.items[3].name``; unusual keys appear quoted in brackets."""
    return root + "".join([_step(step) for step in steps])


def _step(step: object) -> str:
    if isinstance(step, int) and not isinstance(step, bool):
        return f"[{step}]"
    if isinstance(step, str) and step.isidentifier():
        return f".{step}"
    return f"[{step!a:.80}]"


# -- a value alone --------------------------------------------------------------------------------


_Found = tuple[list[object], str]  # steps from the innermost outwards, problem
_Test = Callable[[object], str | None]


def find_flaw(value: object, root: str) -> Flaw | None:
    """Return the first NUL, lone surrogate, non-finite number or naive datetime in ``value``."""
    return _at(root, _flaw_in(value, _leaf_flaw, 0))


def find_unserialisable(value: object, root: str) -> Flaw | None:
    """Return the first value in ``value`` that has no JSON form by itself."""
    return _at(root, _flaw_in(value, _json_flaw, 0))


def _at(root: str, found: _Found | None) -> Flaw | None:
    return None if found is None else Flaw(json_path(root, reversed(found[0])), found[1])


def _flaw_in(value: object, test: _Test, depth: int) -> _Found | None:
    problem = test(value)
    if problem is not None:
        return [], problem
    if depth > _DEEPEST:
        return [], "is nested too deeply, or contains itself"
    for step, child in _children(value):
        if isinstance(step, str) and (problem := text_flaw(step)):
            return [step], f"the key {problem}"
        found = _flaw_in(child, test, depth + 1)
        if found is not None:
            if step is not None:
                found[0].append(step)
            return found
    return None


def _leaf_flaw(value: object) -> str | None:
    if isinstance(value, str):
        return text_flaw(value)
    if isinstance(value, float):
        return None if math.isfinite(value) else _NOT_FINITE
    if isinstance(value, Decimal):
        return None if value.is_finite() else _NOT_FINITE
    if isinstance(value, datetime):
        return None if value.utcoffset() is not None else _NAIVE
    return None


def _json_flaw(value: object) -> str | None:
    if any(True for _ in _children(value)):
        return None  # its parts tell
    try:
        to_json(value)
    except Exception as error:
        return f"is a {type(value).__qualname__} without a JSON form: {error}"
    return None


def _children(value: object) -> Iterator[tuple[object, object]]:
    """Yield what a container holds, each with its step of the path (None for no step)."""
    if isinstance(value, BaseModel):
        if isinstance(value, RootModel):
            yield None, value.root
            return
        yield from _fields_of(value).items()
    elif isinstance(value, Mapping):
        yield from value.items()
    elif isinstance(value, (*_SEQUENCES, *_SETS)):
        yield from enumerate(value)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for item in dataclasses.fields(value):
            yield item.name, getattr(value, item.name, None)


def _fields_of(model: BaseModel) -> dict[str, Any]:
    """Fields, extra fields and private attributes, cached properties left away."""
    values, known = model.__dict__, type(model).model_fields
    if not values.keys() <= known.keys():
        values = {name: item for name, item in values.items() if name in known}
    extra, private = model.__pydantic_extra__, model.__pydantic_private__
    return {**values, **(extra or {}), **(private or {})} if extra or private else values


# -- a value and what came back -------------------------------------------------------------------


def find_change(before: object, after: object, root: str) -> Flaw | None:
    """Return the first difference in type or value, or the first naive datetime.

    Aware datetimes are equal when they are the same instant: the offset is kept, the name of the
    zone is not.
    """
    return _at(root, _change(before, after))


def _change(before: object, after: object) -> _Found | None:
    kind = type(before)
    if kind in _PLAIN:
        return None if type(after) is kind and before == after else _differs(before, after)
    if kind is dict and type(after) is dict:
        return _mapping_change(typing.cast(Any, before), after)
    if kind is list and type(after) is list:
        return _sequence_change(typing.cast(Any, before), after)
    if isinstance(before, (datetime, date, time, timedelta)):
        return _time_change(before, after)
    if isinstance(before, BaseModel):
        return _model_change(before, after)
    if type(after) is not kind:
        return _differs(before, after)
    if isinstance(before, dict) and isinstance(after, dict):
        return _mapping_change(before, after)
    if isinstance(before, _SEQUENCES) and isinstance(after, _SEQUENCES):
        return _sequence_change(before, after)
    if isinstance(before, _SETS) and isinstance(after, _SETS):
        return _set_change(before, after)
    if dataclasses.is_dataclass(before) and not isinstance(before, type):
        parts = dict(_children(before))
        return _pairs_change(parts, parts.values(), [getattr(after, str(s), None) for s in parts])
    return None if _leaf_flaw(before) is None and equal(before, after) else _differs(before, after)


def _pairs_change(
    steps: Iterable[object], before: Iterable[object], after: Iterable[object]
) -> _Found | None:
    # All that large payloads pay for, so the usual values are compared without a further call.
    for step, old, new in zip(steps, before, after, strict=True):
        kind = type(old)
        if kind in _PLAIN and type(new) is kind and old == new:
            continue
        found = _change(old, new)
        if found is not None:
            found[0].append(step)
            return found
    return None


def _sequence_change(before: Sequence[Any], after: Sequence[Any]) -> _Found | None:
    if len(before) != len(after):
        return _differs(before, after)
    return _pairs_change(range(len(before)), before, after)


def _model_change(before: BaseModel, after: object) -> _Found | None:
    if not isinstance(after, BaseModel) or _origin(before) is not _origin(after):
        return _differs(before, after)
    if isinstance(before, RootModel) and isinstance(after, RootModel):
        return _change(before.root, after.root)
    old, new = _fields_of(before), _fields_of(after)
    if old.keys() != new.keys():
        for name in old:
            if name not in new:
                return [name], "is missing from what comes back"
        for name in new:
            if name not in old:
                return [name], "is not set, and has a value in what comes back"
    return _pairs_change(old, old.values(), [new[name] for name in old])


def _mapping_change(before: dict[Any, Any], after: dict[Any, Any]) -> _Found | None:
    if len(before) != len(after):
        return [], "has keys that are one and the same key in JSON"
    for old, new in zip(before, after, strict=True):  # keys keep their order
        if type(old) is not str or type(new) is not str or old != new:
            found = _change(old, new)
            if found is not None:
                found[0].append(old)
                return found
    return _pairs_change(before, before.values(), after.values())


def _set_change(before: Iterable[object], after: Iterable[object]) -> _Found | None:
    found = {item: item for item in after}
    count = 0
    for index, item in enumerate(before):
        count += 1
        inner = _change(item, found[item]) if item in found else _differs(item, None)
        if inner is not None:
            inner[0].append(index)
            return inner
    return None if count == len(found) else ([], "comes back with more members")


def _time_change(before: date | time | timedelta, after: object) -> _Found | None:
    """Compare as values: a subclass (a frozen clock's, say) may come back as the plain class."""
    problem = _leaf_flaw(before)
    if problem is not None:
        return [], problem
    same = equal(before, after)
    if not same and isinstance(before, datetime) and isinstance(after, datetime):
        # Python calls a time in a repeated hour unequal to itself in another zone.
        same = before - _EPOCH == after - _EPOCH
    return None if same else _differs(before, after)


def _differs(before: object, after: object) -> _Found:
    old, new = type(before).__qualname__, type(after).__qualname__
    comes = f"a different {new}" if old == new else f"a {new}"
    return [], _leaf_flaw(before) or f"is a {old} that comes back from JSON as {comes}"


def _origin(model: BaseModel) -> type[Any]:
    return model.__pydantic_generic_metadata__["origin"] or type(model)


def equal(before: object, after: object) -> bool:
    """Whether the two are equal; a comparison that raises says no."""
    try:
        return bool(before == after)
    except Exception:
        return False


# -- a model --------------------------------------------------------------------------------------

# Kinds of pydantic schemas whose values have one Python type each, are compared by value and hold
# no naive datetime, so that `==` after the way through JSON proves everything.
_SETTLED: Final = frozenset(
    {"none", "bool", "int", "float", "decimal", "str", "bytes", "date", "time", "timedelta"}
    | {"uuid", "enum", "literal", "url", "multi-host-url", "complex", "json"}
    | {"list", "tuple", "set", "frozenset", "dict", "nullable", "tagged-union", "default"}
    | {"function-before", "definitions", "definition-ref", "computed-field"}
    | {"model", "model-fields", "model-field", "dataclass", "dataclass-args", "dataclass-field"}
    | {"typed-dict", "typed-dict-field"}
)
_NO_SCHEMA: Final = frozenset({"metadata", "serialization", "default", "config", "expected", "ref"})
_BRANCHES: Final = frozenset({"fields", "choices"})


def may_hold_anything(model: type[BaseModel]) -> bool:
    """Whether the model's values must be compared one by one, since ``==`` would not tell.

    True for datetimes that may be naive, ``Any``, unions, extra fields and whatever else is not
    known to be settled by its declared type alone.
    """
    try:
        stack: list[Mapping[str, Any]] = [model.__pydantic_core_schema__]
        while stack:
            schema = stack.pop()
            if not _is_settled(schema):
                return True
            stack.extend(_schemas_in(schema))
    except Exception:  # a schema of a shape unknown here only costs time
        return True
    return False


def _is_settled(schema: Mapping[str, Any]) -> bool:
    match schema["type"]:
        case "datetime":
            return schema.get("tz_constraint") == "aware"
        case "model":
            cls = schema["cls"]
            root = RootModel if issubclass(cls, RootModel) else BaseModel
            return not (
                schema.get("post_init")
                or schema.get("custom_init")
                or cls.model_config.get("extra") == "allow"
                or cls.__eq__ is not root.__eq__
            )
        case "model-fields" | "typed-dict" | "dataclass-args":
            return schema.get("extra_behavior") != "allow"
        case kind:
            return kind in _SETTLED


def _schemas_in(schema: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    for key, value in schema.items():
        if key in _NO_SCHEMA:
            continue
        if isinstance(value, dict):
            yield from value.values() if key in _BRANCHES else (value,)
        elif isinstance(value, list):
            yield from [item for item in value if isinstance(item, dict)]
