"""How many jobs of a key may run at the same time in the whole fleet, as a declaration says it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias, get_args

from jobs.callables import is_asynchronous, takes_one
from jobs.errors import DeclarationError
from jobs.payload import text_problem

MOST: Final = 10_000
"""The largest limit. Above it a limit of the fleet is one of its worker slots."""

KEY_LIMIT: Final = 1_024
"""Limit in bytes of UTF-8 of what a key function returns. With a name it fits into an index."""

WhenBusy: TypeAlias = Literal["wait", "fail"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Concurrency:
    """A limit on the jobs that run at the same time in the fleet, for each key.

    Attributes:
        limit: How many, from 1 to 10,000.
        key: A function of the input that returns what the limit is for, at most 1,024 bytes: an
            account, say. None for one limit over all jobs of the declaration.
        when_busy: ``"wait"``: a job that finds its key in full use waits for a slot, in order of
            priority and due time. ``"fail"``: it ends as refused without being run, and without
            using an attempt.
        shared: Whether the key is meant across declarations: jobs of all that return the same key
            with ``shared=True`` share its slots. By default each job name has keys of its own.

    Raises:
        DeclarationError: One of them is unusable.
    """

    limit: int
    key: Callable[[Any], str] | None = None
    when_busy: WhenBusy = "wait"
    shared: bool = False

    def __post_init__(self) -> None:
        if type(self.limit) is not int or not 1 <= self.limit <= MOST:
            raise DeclarationError(
                f"concurrency: the limit must be a whole number from 1 to {MOST:,}, and is "
                f"{self.limit!r:.200}"
            )
        if self.when_busy not in get_args(WhenBusy):
            raise DeclarationError(
                f"concurrency: when_busy must be 'wait' or 'fail', and is {self.when_busy!r:.200}"
            )
        if type(self.shared) is not bool:
            raise DeclarationError(
                f"concurrency: shared must be True or False, and is {self.shared!r:.200}"
            )
        if self.key is not None:
            _check_key(self.key)
        elif self.shared:
            raise DeclarationError(
                "concurrency: shared=True means nothing without a key",
                fix="Pass key=lambda input: ... with what the jobs share.",
            )

    def full_key(self, name: str, key: str | None) -> str:
        """The key as it is stored, which tells names, and shared keys from others, apart.

        Args:
            name: The name of the job.
            key: What the key function returned, None where there is none.
        """
        if key is None:
            return f"job:{name}"
        if self.shared:
            return f"shared:{key}"
        return f"key:{name.replace('%', '%25').replace(':', '%3A')}:{key}"

    def describe(self) -> dict[str, Any]:
        """What was declared as plain JSON values."""
        return {
            "limit": self.limit,
            "keyed": self.key is not None,
            "when_busy": self.when_busy,
            "shared": self.shared,
        }


def key_problem(value: object) -> str | None:
    """Say why what a key function returned cannot be a key, or None."""
    return text_problem(value, KEY_LIMIT)


def checked_concurrency(value: object) -> Concurrency | None:
    """What a declaration gave as ``concurrency``: a number is a limit over all its jobs.

    Raises DeclarationError.
    """
    if value is None or isinstance(value, Concurrency):
        return value
    if type(value) is int:
        return Concurrency(limit=value)
    raise DeclarationError(
        f"concurrency: must be a whole number or a jobs.Concurrency, and is a "
        f"{type(value).__qualname__}"
    )


def _check_key(key: object) -> None:
    if not callable(key):
        raise DeclarationError(
            f"concurrency: the key must be a function of the input, and is a "
            f"{type(key).__qualname__}"
        )
    if is_asynchronous(key):
        raise DeclarationError(
            "concurrency: the key must be a plain function, not an asynchronous one"
        )
    if not takes_one(key):
        raise DeclarationError("concurrency: the key must take the input as its one argument")
