"""Payloads: from a pydantic model to JSON text that comes back as an equal model, or a refusal.

What JSON, pydantic or PostgreSQL would change in silence is refused with the path of the value.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping
from typing import Any, Final, Generic, TypeVar

import pydantic
from pydantic import BaseModel, ValidationError

from jobs.errors import InvalidInput, PayloadUnreadable
from jobs.roundtrip import (
    Flaw,
    equal,
    find_change,
    find_flaw,
    find_unserialisable,
    json_path,
    may_hold_anything,
    text_flaw,
)

M = TypeVar("M", bound=BaseModel)

PAYLOAD_LIMIT: Final = 128 * 1024 * 1024
"""Most characters of JSON text in one payload."""

# Accept field names and aliases alike on the way back: a model may have an alias for one direction
# only. Older versions of pydantic know aliases only, and refuse the arguments.
BOTH_NAMES: Final[Mapping[str, Any]] = (
    {"by_alias": True, "by_name": True}
    if tuple(int(part) for part in pydantic.VERSION.split(".")[:2]) >= (2, 11)
    else {}
)


class Codec(Generic[M]):
    """Turns the input of one job into the text that is stored, and back."""

    __slots__ = ("_direct", "_loose", "model")

    def __init__(self, model: type[M]) -> None:
        self.model = model
        # Whether the model writes and reads JSON as pydantic does, so that its serialiser and its
        # validator are called without the methods around them, which take as long.
        self._direct = _is(model, "model_dump_json") and _is(model, "model_validate_json")
        # Whether values of this model need a look one by one; found out at the first use, because
        # the model may refer to classes that are declared after the job.
        self._loose: bool | None = None

    def accept(self, value: object) -> M:
        """Return ``value`` as the model: itself, or what the model makes of it.

        Raises InvalidInput with the path of the first bad value.
        """
        if type(value) is self.model:
            return value
        if isinstance(value, BaseModel):
            raise InvalidInput(
                f"is a {type(value).__qualname__}, and the job takes a {self.model.__qualname__}",
                field="input",
            )
        try:
            return self.model.model_validate(value)
        except Exception as error:
            raise _invalid(error) from error

    def dump(self, value: M) -> str:
        """Return the JSON text of ``value``, proven to come back as an equal model.

        Raises InvalidInput naming the path of what would not: NUL, lone surrogates, non-finite
        numbers, naive datetimes, values of a type that JSON changes, excluded or masked fields.
        """
        try:
            if self._direct:
                written = value.__pydantic_serializer__.to_json(
                    value, by_alias=True, round_trip=True, warnings=False
                )
                text = written.decode()
            else:
                text = value.model_dump_json(by_alias=True, round_trip=True, warnings=False)
        except Exception as error:
            flaw = find_flaw(value, "input") or find_unserialisable(value, "input")
            flaw = flaw or Flaw("input", f"has no JSON form: {error}")
            raise _refusal(flaw) from error
        if "\\u0000" in text or "Infinity" in text:
            # Perhaps only the letters; a custom serialiser may also have made them. (NaN differs
            # from itself and so shows below.)
            flaw = find_flaw(value, "input") or find_flaw(_plain(text), "input")
            if flaw is not None:
                raise _refusal(flaw)
        if len(text) > PAYLOAD_LIMIT:
            raise InvalidInput(
                f"is {len(text):,} characters of JSON, and the limit is {PAYLOAD_LIMIT:,}",
                field="input",
                fix="Store the data elsewhere and enqueue a reference to it.",
            )
        if self._loose is None:
            self._loose = may_hold_anything(self.model)
        try:
            again = self._validate(text)
        except Exception as error:
            flaw = find_flaw(value, "input")
            raise (_refusal(flaw) if flaw else _not_accepted_back(error)) from error
        if self._loose or not (_same(value, again) or equal(value, again)):
            flaw = find_change(value, again, "input")
            if flaw is not None:
                raise _refusal(flaw)
        return text

    def load(self, text: str) -> M:
        """Return the model that a stored text holds.

        Raises PayloadUnreadable, with the path of the first bad value, where the text is not JSON
        or does not fit the model.
        """
        try:
            return self._validate(text)
        except Exception as error:
            refused = _invalid(error)
            raise PayloadUnreadable(
                f"the stored payload does not fit {self.model.__qualname__}: {refused.cause}"
            ) from error

    def _validate(self, text: str) -> M:
        if self._direct:
            model: M = self.model.__pydantic_validator__.validate_json(text, **BOTH_NAMES)
            return model
        return self.model.model_validate_json(text, **BOTH_NAMES)


def _is(model: type[BaseModel], method: str) -> bool:
    """Whether a method is the one of pydantic."""
    own = inspect.getattr_static(model, method)
    return own is inspect.getattr_static(BaseModel, method)


def _same(before: BaseModel, after: BaseModel) -> bool:
    """Whether two models are equal by their fields: the short way to what ``==`` says.

    For models that are not loose: those have neither extra fields nor private attributes.
    """
    try:
        return type(before) is type(after) and before.__dict__ == after.__dict__
    except Exception:
        return False


def text_problem(value: object, limit: int) -> str | None:
    """Say why ``value`` is no text of 1 to ``limit`` bytes of UTF-8 that can be stored, or None."""
    if not isinstance(value, str):
        return f"must be a str, and is a {type(value).__qualname__}"
    if not value:
        return "must not be empty"
    flaw = text_flaw(value)
    if flaw is not None:
        return flaw
    size = len(value) if value.isascii() else len(value.encode())
    return None if size <= limit else f"is {size:,} bytes of UTF-8, and the limit is {limit:,}"


def plain_text(value: object) -> str:
    """Return a text that has been checked as a plain str: of an enum the value, not its name."""
    return str.__str__(value) if isinstance(value, str) else str(value)


def _plain(text: str) -> object:
    try:
        return json.loads(text)
    except ValueError:
        return None


def _invalid(error: Exception) -> InvalidInput:
    """The refusal of a value that the model does not accept."""
    path, problem = first_problem(error, "input")
    return InvalidInput(problem, field=path)


def _not_accepted_back(error: Exception) -> InvalidInput:
    """The refusal of a model whose own JSON it does not accept."""
    path, problem = first_problem(error, "input")
    return InvalidInput(
        f"comes back from JSON as something the model refuses: {problem}",
        field=path,
        fix="Make the model accept its own JSON: every field included, nothing masked or renamed.",
    )


def first_problem(error: Exception, root: str) -> tuple[str, str]:
    """Return the path and the message of what a validation found first."""
    if not isinstance(error, ValidationError):
        return root, f"its validation raised {_described(error)}"
    problems = error.errors(include_url=False, include_context=False, include_input=False)
    first = problems[0]
    more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
    return json_path(root, first["loc"]), f"{first['msg']}{more}"


def _refusal(flaw: Flaw) -> InvalidInput:
    return InvalidInput(flaw.problem, field=flaw.path)


def _described(error: Exception) -> str:
    return f"{type(error).__qualname__}: {error}"
