"""What an error says about the next try: nothing, not before some time, or that none will help."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from types import MappingProxyType
from typing import Any, Final, Literal, TypeAlias

from jobs.callables import is_asynchronous
from jobs.errors import DeclarationError, DelayInvalid, RetryAfter, Terminal, bounded_delay

logger = logging.getLogger("jobs")

ErrorClass: TypeAlias = Literal["retry", "terminal"] | timedelta
"""``"terminal"``: no further try can help, the job ends at once. A timedelta: the next try comes
after it. ``"retry"``: the next try comes after the delay of the curve, as without a rule."""

ErrorRule: TypeAlias = ErrorClass | Callable[[Any], ErrorClass | None]
"""A class, or a function of the error that returns one, or None for the next less specific rule."""

ErrorRules: TypeAlias = Mapping[type[BaseException], ErrorRule]
"""Rules by type of error. They hold for derived types too; the most specific type wins."""

NO_RULES: Final[ErrorRules] = MappingProxyType({})

# Groups in groups, and members, that are looked at.
_MOST_MEMBERS: Final = 1_000


class Snoozed(BaseException):
    """Carries `Run.snooze` out of a job function. No error, so that ``except Exception`` and what
    else looks for errors lets it pass.

    Attributes:
        delay: Until the job is due again.
    """

    def __init__(self, delay: timedelta) -> None:
        super().__init__(delay)
        self.delay = delay


@dataclass(frozen=True, slots=True)
class Reading:
    """What an error says.

    Attributes:
        kind: retry (on the curve), later (after ``delay``) or terminal.
        delay: The delay that the error names, for later.
        why: What told, for the log and the row; None where nobody classified the error.
    """

    kind: Literal["retry", "later", "terminal"]
    delay: timedelta = timedelta()
    why: str | None = None


UNCLASSIFIED: Final = Reading("retry")
"""The reading of an error that no rule knows. Never terminal."""


@dataclass(frozen=True, slots=True)
class Layer:
    """Rules of one place.

    Attributes:
        where: The place, for messages: ``"the job"`` or ``"the registry"``.
        rules: The rules.
    """

    where: str
    rules: ErrorRules


def checked_rules(where: str, rules: object) -> ErrorRules:
    """Return rules as they were given, unchangeable. Raises DeclarationError for what is none."""
    if not isinstance(rules, Mapping):
        raise DeclarationError(
            f"{where}: must be a mapping from types of errors, and is a {type(rules).__qualname__}"
        )
    for kind, rule in rules.items():
        if not (isinstance(kind, type) and issubclass(kind, BaseException)):
            raise DeclarationError(f"{where}: {kind!r:.200} is no type of errors")
        if callable(rule):
            if is_asynchronous(rule):
                raise DeclarationError(
                    f"{where}: the rule of {kind.__qualname__} must be a plain function, not an "
                    "asynchronous one"
                )
        elif isinstance(rule, timedelta):
            if rule < timedelta():
                raise DeclarationError(f"{where}: the delay of {kind.__qualname__} is negative")
        elif rule not in ("retry", "terminal"):
            raise DeclarationError(
                f"{where}: the rule of {kind.__qualname__} must be 'retry', 'terminal', a "
                f"timedelta or a function of the error, and is {rule!r:.200}"
            )
    return MappingProxyType(dict(rules)) if rules else NO_RULES


def described_rules(rules: ErrorRules) -> dict[str, str | float]:
    """Return rules as plain JSON values: delays in seconds, functions by name."""
    return {
        f"{kind.__module__}.{kind.__qualname__}": rule.total_seconds()
        if isinstance(rule, timedelta)
        else rule
        if isinstance(rule, str)
        else str(getattr(rule, "__qualname__", type(rule).__qualname__))
        for kind, rule in rules.items()
    }


def read_error(error: BaseException, *layers: Layer) -> Reading:
    """Say what an error means for the next try.

    `Terminal` and `RetryAfter` speak for themselves. Anything else is looked up in the layers, one
    after the other, and in each by its type and then the types that one derives from. Of an
    exception group the members are read: one that is terminal decides, then the longest delay. What
    an error was raised from is not looked at.

    Args:
        error: What left the job function.
        layers: The rules that hold, the nearest first.

    Never raises: a rule that does, or returns what is no class, is passed by, with a log record.
    """
    found = UNCLASSIFIED
    for member in _members(error):
        reading = _read_one(member, layers)
        if reading.kind == "terminal":
            return reading
        if (reading.kind == "later", reading.delay) > (found.kind == "later", found.delay) or (
            found.why is None
        ):
            found = reading
    return found


def read_snooze(error: BaseException) -> timedelta | None:
    """Return how long a job snoozes whose function raised this, None where it does not.

    A group is a snooze where all of its members are, and then the longest one.
    """
    delays = [member.delay if isinstance(member, Snoozed) else None for member in _members(error)]
    known = [delay for delay in delays if delay is not None]
    return max(known) if known and len(known) == len(delays) else None


def _members(error: BaseException) -> Iterator[BaseException]:
    """The error itself; of a group its members, at any depth."""
    if not isinstance(error, BaseExceptionGroup):
        yield error
        return
    waiting: list[BaseException] = [error]
    for _ in range(_MOST_MEMBERS):
        if not waiting:
            return
        one = waiting.pop()
        if isinstance(one, BaseExceptionGroup):
            waiting.extend(reversed(one.exceptions))
        else:
            yield one


def _read_one(error: BaseException, layers: tuple[Layer, ...]) -> Reading:
    if isinstance(error, Terminal):
        return Reading("terminal", why=f"raised as {type(error).__qualname__}")
    if isinstance(error, RetryAfter):
        # A derived class may have left our __init__ out.
        delay = getattr(error, "delay", None)
        if isinstance(delay, timedelta):
            return Reading(
                "later", max(delay, timedelta()), f"raised as {type(error).__qualname__}"
            )
        return UNCLASSIFIED
    for layer in layers:
        for kind in type(error).__mro__ if layer.rules else ():
            rule = layer.rules.get(kind)
            if rule is None:
                continue
            reading = _apply(rule, error, f"the rule of {layer.where} for {kind.__qualname__}")
            if reading is not None:
                return reading
    return UNCLASSIFIED


def _apply(rule: ErrorRule, error: BaseException, why: str) -> Reading | None:
    answer: object = rule
    if callable(rule):
        try:
            answer = rule(error)
        except BaseException:  # also SystemExit, which it may have been given: it must end nothing
            logger.exception(
                "%s raised and is passed by", why, extra={"event": "jobs.retry.rule_failed"}
            )
            return None
        if answer is None:
            return None
    if answer == "retry":
        return Reading("retry", why=why)
    if answer == "terminal":
        return Reading("terminal", why=why)
    try:
        return Reading("later", bounded_delay(answer), why)
    except DelayInvalid:
        logger.error(
            "%s returned %.200r, which is neither 'retry', 'terminal', a delay nor None, and is "
            "passed by",
            why,
            answer,
            extra={"event": "jobs.retry.rule_failed"},
        )
        return None
