"""The base of the library's errors, which is all that `jobs.errors` builds on."""

from __future__ import annotations

from typing import Any, ClassVar


class JobsError(Exception):
    """Base of all errors of the library. They can be pickled.

    Attributes:
        code: Stable identifier, also the anchor in ``docs/errors.md``.
        cause: What went wrong, in one line.
        fix: What to do about it, in one sentence.
        index: Position of the bad item in a bulk call, else None.
    """

    code: ClassVar[str] = "JOBS_ERROR"
    cause: str
    fix: str = "See docs/errors.md."
    index: int | None = None

    def __init__(self, cause: str, *, fix: str | None = None) -> None:
        super().__init__(cause)
        self.cause = cause
        if fix is not None:
            self.fix = fix

    def __str__(self) -> str:
        return f"{self.cause} [{self.code}] Fix: {self.fix}"

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (type(self), self.args, self.__dict__)

    def at_item(self, index: int) -> None:
        """Note that the error is about the item at ``index`` of a bulk call."""
        self.index = index
        self.cause = f"item {index}: {self.cause}"
        self.args = (self.cause,)


def _restore(kind: type[JobsError], args: tuple[Any, ...], state: dict[str, Any]) -> JobsError:
    error = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(state)
    return error
