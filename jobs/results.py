"""Results: from what a job function returned to JSON text that comes back equal, or a refusal.

The annotation of the function says what is stored. Without one it is what JSON holds by itself:
texts, numbers, booleans, None, and lists and dicts of them.
"""

from __future__ import annotations

import inspect
import json
import types
from collections.abc import Callable
from typing import Any, Final, ForwardRef, Never, NoReturn

from pydantic import PydanticUndefinedAnnotation, TypeAdapter
from pydantic.errors import PydanticUserError

from jobs.errors import DeclarationError
from jobs.faults import ResultInvalid, ResultUnreadable
from jobs.payload import BOTH_NAMES, first_problem
from jobs.roundtrip import Flaw, equal, find_change, find_flaw, find_unserialisable

RESULT_LIMIT: Final = 1024 * 1024
"""Most bytes of JSON text in one result. It is kept for as long as the finished job is."""

_NOTHING: Final = (None, types.NoneType, Never, NoReturn)


class ResultCodec:
    """Turns what one job function returns into the text that is stored, and back.

    Attributes:
        annotation: What the function says it returns; may be text that cannot be evaluated yet.
        keeps: Whether anything is stored: not where the annotation is None.
    """

    __slots__ = ("_adapter", "_none", "_resolve", "annotation", "keeps")

    def __init__(self, annotation: object, resolve: Callable[[], object]) -> None:
        """
        Args:
            annotation: The return annotation, `inspect.Signature.empty` for none.
            resolve: Evaluates it again, at the first use, where it is still text.

        Raises:
            DeclarationError: It names a type that has no JSON form.
        """
        self.annotation = annotation
        self._resolve = resolve
        self._adapter: TypeAdapter[Any] | None = None
        self._none: bool | None = None
        self.keeps = all(annotation is not nothing for nothing in _NOTHING)
        if self.keeps and not isinstance(annotation, str | ForwardRef):
            self._adapter = _adapter_of(annotation)

    def dump(self, value: object) -> str | None:
        """Return the JSON text of ``value``, proven to come back equal; None to store nothing.

        None is stored as nothing, and nothing is read as None, where the annotation allows it. A
        function annotated with None stores nothing whatever it returns.

        Raises ResultInvalid naming the path of what would not come back, or the size.
        """
        if not self.keeps:
            return None
        if value is None:
            if not self._takes_none():
                raise ResultInvalid(f"is None, and the function returns {self}", field="result")
            return None
        adapter = self._typed()
        value = self._as_typed(adapter, value)
        try:
            text = adapter.dump_json(value, by_alias=True, round_trip=True, warnings=False).decode()
        except Exception as error:
            flaw = find_flaw(value, "result") or find_unserialisable(value, "result")
            raise _refusal(flaw or Flaw("result", f"has no JSON form: {error}")) from error
        size = len(text) if text.isascii() else len(text.encode())
        if size > RESULT_LIMIT:
            raise ResultInvalid(
                f"is {size:,} bytes of JSON, and the limit is {RESULT_LIMIT:,}",
                field="result",
                fix="Store the data elsewhere and return a reference to it.",
            )
        if "\\u0000" in text or "Infinity" in text:
            # Perhaps only the letters; a custom serialiser may also have made them.
            flaw = find_flaw(value, "result") or find_flaw(_plain(text), "result")
            if flaw is not None:
                raise _refusal(flaw)
        try:
            again = adapter.validate_json(text, **BOTH_NAMES)
        except Exception as error:
            flaw = find_flaw(value, "result")
            path, problem = first_problem(error, "result")
            refused = ResultInvalid(
                f"comes back from JSON as something {self} does not accept: {problem}", field=path
            )
            raise (_refusal(flaw) if flaw else refused) from error
        flaw = find_change(value, again, "result")
        if flaw is not None:
            raise _refusal(flaw)
        return text

    def load(self, text: str | None) -> Any:
        """Return the value that a stored text holds.

        Raises ResultUnreadable, with the path of the first bad value, where it does not fit the
        annotation.
        """
        if text is None:
            if self.keeps and not self._takes_none():
                raise ResultUnreadable(f"nothing is stored, and the function returns {self}")
            return None
        if not self.keeps:
            raise ResultUnreadable("something is stored, and the function returns nothing")
        try:
            return self._typed().validate_json(text, **BOTH_NAMES)
        except Exception as error:
            path, problem = first_problem(error, "result")
            raise ResultUnreadable(
                f"the stored result does not fit {self}: {path}: {problem}"
            ) from error

    def __str__(self) -> str:
        annotation = self.annotation
        if annotation is inspect.Signature.empty:
            return "a value of plain JSON"
        if isinstance(annotation, type):
            return annotation.__qualname__
        return str(annotation)

    def _typed(self) -> TypeAdapter[Any]:
        if self._adapter is None:
            found = self._resolve()
            # One that only a type checker can evaluate says as little as none.
            known = not isinstance(found, str | ForwardRef)
            self._adapter = _adapter_of(found if known else inspect.Signature.empty)
        return self._adapter

    def _as_typed(self, adapter: TypeAdapter[Any], value: object) -> object:
        """The value as its annotation has it: an int that stands for a float is one."""
        try:
            typed = adapter.validate_python(value, strict=True)
        except Exception as error:
            flaw = find_flaw(value, "result")
            if flaw is not None:
                raise _refusal(flaw) from error
            path, problem = first_problem(error, "result")
            raise ResultInvalid(
                f"the function returns {self}, and returned a {type(value).__qualname__}: "
                f"{problem}",
                field=path,
            ) from error
        if typed is not value and not equal(value, typed) and find_flaw(value, "result") is None:
            raise ResultInvalid(f"is changed by its validation as {self}", field="result")
        return typed

    def _takes_none(self) -> bool:
        if self._none is None:
            try:
                self._none = self._typed().validate_json("null") is None
            except Exception:
                self._none = False
        return self._none


def _adapter_of(annotation: object) -> TypeAdapter[Any]:
    kind: Any = Any if annotation is inspect.Signature.empty else annotation
    try:
        return TypeAdapter(kind)
    except (PydanticUserError, PydanticUndefinedAnnotation, TypeError) as error:
        raise DeclarationError(
            f"result: {str(error).splitlines()[0]:.300}",
            fix="Annotate the function with what pydantic can turn into JSON and back, or None.",
        ) from error


def _plain(text: str) -> object:
    try:
        return json.loads(text)
    except ValueError:
        return None


def _refusal(flaw: Flaw) -> ResultInvalid:
    return ResultInvalid(flaw.problem, field=flaw.path)
