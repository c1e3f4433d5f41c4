"""How often a failed job is tried again, and after how long."""

from __future__ import annotations

import logging
import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, Literal, TypeAlias

from jobs.callables import is_asynchronous
from jobs.errors import LONGEST_DELAY, DeclarationError

logger = logging.getLogger("jobs")

Curve: TypeAlias = Literal["exponential", "linear", "fixed"]
Backoff: TypeAlias = Curve | Callable[[int], "timedelta | float"]

LONGEST: Final = LONGEST_DELAY
"""The longest delay, timeout or ceiling that is accepted anywhere: ten years."""

MOST_ATTEMPTS: Final = 2**31 - 1

_CURVES: Final = ("exponential", "linear", "fixed")
_MICROSECOND: Final = timedelta(microseconds=1)
# 2^62 times even a microsecond is far above any ceiling.
_MOST_DOUBLINGS: Final = 62


def is_final(attempt: int, attempts: int) -> bool:
    """Whether a failure of an attempt ends the job, whatever the error.

    The statement that settles compares the same two columns of the row.

    Args:
        attempt: Number of the attempt, from 1.
        attempts: How often the job is tried at most.
    """
    return attempt >= attempts


@dataclass(frozen=True, kw_only=True, slots=True)
class Retry:
    """What happens to a job whose attempt failed.

    Attributes:
        attempts: How often the job is tried at most, the first time included.
        backoff: How the delay grows: ``"exponential"`` doubles it after each attempt, ``"linear"``
            adds ``delay`` each time, ``"fixed"`` keeps it. Or a function of the number of the
            failed attempt (from 1) that returns a timedelta or seconds, taken as it is up to
            ``max_delay``; if it raises or returns junk the exponential curve is used, with a log
            record.
        delay: The first delay.
        max_delay: The ceiling of all delays.
        jitter: Spread the delays of a curve: half of each is kept, half is random.
        dead_letter: Whether a job that used up its attempts ends as ``dead``, for an operator to
            look at, or as ``failed``.

    Raises DeclarationError, naming the argument, for a value that could only fail later.
    """

    attempts: int = 3
    backoff: Backoff = "exponential"
    delay: timedelta = timedelta(seconds=1)
    max_delay: timedelta = timedelta(hours=1)
    jitter: bool = True
    dead_letter: bool = True

    def __post_init__(self) -> None:
        if type(self.attempts) is not int or not 1 <= self.attempts <= MOST_ATTEMPTS:
            raise _bad("attempts", f"a whole number from 1 to {MOST_ATTEMPTS}", self.attempts)
        if callable(self.backoff):
            if is_asynchronous(self.backoff):
                raise _bad("backoff", "a plain function, not an asynchronous one", self.backoff)
        elif self.backoff not in _CURVES:
            raise _bad("backoff", f"one of {', '.join(_CURVES)}, or a function", self.backoff)
        _check_delay("delay", self.delay)
        _check_delay("max_delay", self.max_delay)
        if self.delay > self.max_delay:
            raise _bad("delay", f"at most max_delay, which is {self.max_delay}", self.delay)
        for name in ("jitter", "dead_letter"):
            if not isinstance(getattr(self, name), bool):
                raise _bad(name, "True or False", getattr(self, name))

    def final(self, attempt: int) -> bool:
        """Whether a failure of this attempt (counted from 1) ends the job."""
        return is_final(attempt, self.attempts)

    def delay_for(self, attempt: int, rng: random.Random | None = None) -> timedelta:
        """Return how long the job waits after the failure of an attempt.

        Args:
            attempt: Number of the failed attempt, from 1; anything lower counts as 1.
            rng: Source of the jitter, by default the shared one of the random module.

        Never raises; the delay is finite, never negative and at most ``max_delay``.
        """
        if callable(self.backoff):
            own = self._own_delay(self.backoff, attempt)
            if own is not None:
                return own
        whole = self._curve(attempt) // _MICROSECOND
        if not self.jitter:
            return whole * _MICROSECOND
        half = whole // 2
        return (whole - half + int((rng or random).random() * half)) * _MICROSECOND

    def schedule(self, limit: int = 100) -> list[timedelta]:
        """Return the delays after the first, second, ... failed attempt, without jitter.

        The list ends with the last attempt that is followed by another one, or after ``limit``
        delays.
        """
        plain = self if callable(self.backoff) else _without_jitter(self)
        return [plain.delay_for(n) for n in range(1, min(self.attempts - 1, limit) + 1)]

    def describe(self) -> dict[str, Any]:
        """Return the settings as plain JSON values, durations in seconds."""
        name = self.backoff if isinstance(self.backoff, str) else _name_of(self.backoff)
        return {
            "attempts": self.attempts,
            "backoff": name,
            "delay": self.delay.total_seconds(),
            "max_delay": self.max_delay.total_seconds(),
            "jitter": self.jitter,
            "dead_letter": self.dead_letter,
        }

    def _curve(self, attempt: int) -> timedelta:
        steps = max(attempt, 1)
        first, most = self.delay // _MICROSECOND, self.max_delay // _MICROSECOND
        match self.backoff:
            case "fixed":
                delay = first
            case "linear":
                delay = first * steps
            case _:
                delay = first << min(steps - 1, _MOST_DOUBLINGS)
        return min(delay, most) * _MICROSECOND

    def _own_delay(
        self, backoff: Callable[[int], timedelta | float], attempt: int
    ) -> timedelta | None:
        """Ask the user's function; None, with a log record, if the answer is of no use."""
        try:
            answer = backoff(attempt)
            if isinstance(answer, timedelta):
                if answer >= timedelta():
                    return min(answer, self.max_delay)
            elif (
                isinstance(answer, (int, float))
                and not isinstance(answer, bool)
                and answer >= 0
                and answer != math.inf
            ):
                return timedelta(seconds=min(answer, self.max_delay.total_seconds()))
        except Exception:
            logger.exception(
                "the backoff function %s raised for attempt %d; the exponential curve is used",
                _name_of(backoff),
                attempt,
                extra={"event": "jobs.retry.backoff_failed"},
            )
            return None
        logger.error(
            "the backoff function %s returned %.200r for attempt %d, which is neither a timedelta "
            "nor seconds from 0 up; the exponential curve is used",
            _name_of(backoff),
            answer,
            attempt,
            extra={"event": "jobs.retry.backoff_failed"},
        )
        return None


def _without_jitter(retry: Retry) -> Retry:
    return Retry(
        attempts=retry.attempts,
        backoff=retry.backoff,
        delay=retry.delay,
        max_delay=retry.max_delay,
        jitter=False,
    )


def _name_of(function: object) -> str:
    return str(getattr(function, "__qualname__", None) or type(function).__qualname__)


def _check_delay(name: str, value: object) -> None:
    if not isinstance(value, timedelta):
        raise _bad(name, "a timedelta, for example timedelta(seconds=5)", value)
    if not timedelta() <= value <= LONGEST:
        raise _bad(name, f"from 0 to {LONGEST.days} days", value)


def _bad(name: str, wanted: str, value: object) -> DeclarationError:
    return DeclarationError(f"retry: {name} must be {wanted}; it is {value!r:.200}")
