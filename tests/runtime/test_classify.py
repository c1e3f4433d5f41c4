"""What an error says about the next try."""

from __future__ import annotations

import logging
import math
import pickle
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest

import jobs
from jobs.classify import (
    UNCLASSIFIED,
    ErrorRules,
    Layer,
    Reading,
    Snoozed,
    checked_rules,
    described_rules,
    read_error,
    read_snooze,
)
from jobs.errors import LONGEST_DELAY
from jobs.run import Run
from tests.runtime.working import Input, job, logged, registry

MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)


class AppError(Exception):
    """The base of an application's errors, which knows nothing of jobs."""

    def __init__(self, number: int) -> None:
        super().__init__(f"number {number}")


class GoneError(AppError, jobs.Terminal):
    """One of them that is terminal."""


class Throttled(jobs.RetryAfter):
    """A derived class that brings its own constructor, and forgets the delay."""

    def __init__(self) -> None:
        Exception.__init__(self, "slow down")


def read(error: BaseException, *rules: ErrorRules) -> Reading:
    """Read an error by rules, the nearest first."""
    places = ("the job", "the registry")
    return read_error(error, *map(Layer, places, rules))


def kind_of(error: BaseException, *rules: ErrorRules) -> str:
    """Only the class of it."""
    return read(error, *rules).kind


@pytest.mark.parametrize(
    "error",
    [ValueError("x"), SystemExit(1), KeyboardInterrupt(), jobs.LeaseLost("x"), OSError()],
    ids=repr,
)
def test_an_error_that_nobody_classified_is_never_terminal(error: BaseException) -> None:
    assert read(error, {KeyError: "terminal"}, {}) == UNCLASSIFIED == Reading("retry")


def test_terminal_and_retry_after_speak_for_themselves() -> None:
    assert read(jobs.Terminal("closed")) == Reading("terminal", why="raised as Terminal")
    assert read(GoneError(3)) == Reading("terminal", why="raised as GoneError")
    assert str(GoneError(3)).startswith("number 3 [JOB_TERMINAL]")
    assert read(jobs.RetryAfter(90)) == Reading(
        "later", timedelta(seconds=90), "raised as RetryAfter"
    )
    assert kind_of(jobs.Terminal(), {Exception: "retry"}) == "terminal"
    assert read(jobs.RetryAfter(HOUR), {Exception: "terminal"}).delay == HOUR
    assert read(Throttled()) == UNCLASSIFIED


@pytest.mark.parametrize(
    ("given", "delay"),
    [
        (HOUR, HOUR),
        (1.5, timedelta(seconds=1.5)),
        (0, timedelta()),
        (-5, timedelta()),
        (-HOUR, timedelta()),
        (math.inf, LONGEST_DELAY),
        (10**30, LONGEST_DELAY),
        (timedelta.max, LONGEST_DELAY),
    ],
)
def test_a_delay_from_outside_is_bounded(given: Any, delay: timedelta) -> None:
    assert jobs.RetryAfter(given).delay == delay


@pytest.mark.parametrize("junk", [math.nan, "5", None, True], ids=repr)
def test_what_is_no_delay_is_refused(junk: Any) -> None:
    with pytest.raises(jobs.DelayInvalid, match="JOB_DELAY_INVALID"):
        jobs.RetryAfter(junk)


def test_derived_types_follow_and_the_most_specific_rule_wins() -> None:
    rules: ErrorRules = {
        LookupError: "terminal",
        KeyError: "retry",
        OSError: MINUTE,
        ConnectionError: "terminal",
    }
    assert kind_of(IndexError(), rules) == "terminal"
    assert kind_of(KeyError(), rules) == "retry"
    assert read(FileNotFoundError(), rules).delay == MINUTE
    assert kind_of(BrokenPipeError(), rules) == "terminal"
    assert kind_of(ValueError(), rules) == "retry"
    assert read(IndexError(), rules).why == "the rule of the job for LookupError"


def test_rules_of_the_job_go_before_those_of_the_registry() -> None:
    own: ErrorRules = {Exception: "retry"}
    common: ErrorRules = {KeyError: "terminal"}
    assert kind_of(KeyError(), own, common) == "retry"
    assert kind_of(KeyError(), {}, common) == "terminal"
    assert read(KeyError(), {}, common).why == "the rule of the registry for KeyError"


def test_a_function_decides_or_leaves_it_to_less_specific_rules() -> None:
    def by_number(error: OSError) -> Any:
        return {1: "terminal", 2: 2.5, 3: HOUR, 4: "retry"}.get(error.errno or 0)

    rules: ErrorRules = {OSError: by_number, Exception: MINUTE}
    assert kind_of(OSError(1, "x"), rules) == "terminal"
    assert read(OSError(2, "x"), rules).delay == timedelta(seconds=2.5)
    assert read(OSError(3, "x"), rules).delay == HOUR
    assert kind_of(OSError(4, "x"), rules) == "retry"
    assert read(OSError(5, "x"), rules).delay == MINUTE


@pytest.mark.parametrize(
    "answer", ["never", math.nan, True, ["terminal"]], ids=["text", "nan", "bool", "list"]
)
def test_a_function_that_answers_junk_is_passed_by_and_logged(
    answer: object, caplog: pytest.LogCaptureFixture
) -> None:
    rules: Any = {ValueError: lambda _: answer}
    assert read(ValueError(), rules, {ValueError: MINUTE}).delay == MINUTE
    (said,) = logged(caplog, "jobs.retry.rule_failed")
    assert "the rule of the job for ValueError returned" in said


def test_so_is_one_that_raises(caplog: pytest.LogCaptureFixture) -> None:
    def broken(error: ValueError) -> Any:
        raise KeyError(error)

    rules: Any = {ValueError: broken}
    assert read(ValueError(), rules) == UNCLASSIFIED
    (said,) = logged(caplog, "jobs.retry.rule_failed")
    assert "the rule of the job for ValueError raised" in said


def test_of_a_group_the_members_are_read() -> None:
    def group(*errors: Exception) -> ExceptionGroup[Exception]:
        return ExceptionGroup("outer", [OSError(), ExceptionGroup("inner", list(errors))])

    rules: ErrorRules = {KeyError: MINUTE, IndexError: HOUR, OSError: "retry"}
    assert kind_of(group(ValueError(), jobs.Terminal())) == "terminal"
    for errors in ([KeyError(), jobs.Terminal()], [jobs.Terminal(), KeyError()]):
        assert kind_of(group(*errors), rules) == "terminal", "whatever delays the others name"
    assert read(group(ValueError(), KeyError(), IndexError(), KeyError()), rules).delay == HOUR
    assert kind_of(group(ValueError())) == "retry"
    deep: Exception = jobs.Terminal()
    for _ in range(500):
        deep = ExceptionGroup("deeper", [deep])
    assert kind_of(deep) == "terminal"


def test_what_an_error_was_raised_from_does_not_decide() -> None:
    error = ValueError()
    error.__cause__ = jobs.Terminal()
    assert kind_of(error) == "retry"


@pytest.mark.parametrize(
    ("rules", "says"),
    [
        ([KeyError], "errors: must be a mapping from types of errors, and is a list"),
        ({"KeyError": "retry"}, "errors: 'KeyError' is no type of errors"),
        ({int: "retry"}, "is no type of errors"),
        ({KeyError: "fatal"}, "the rule of KeyError must be 'retry', 'terminal', a timedelta"),
        ({KeyError: 5}, "the rule of KeyError must be"),
        ({KeyError: -MINUTE}, "the delay of KeyError is negative"),
    ],
    ids=["list", "name", "type", "word", "number", "negative"],
)
def test_bad_rules_are_refused_where_they_are_given(rules: Any, says: str) -> None:
    with pytest.raises(jobs.DeclarationError) as at_the_job:
        job(errors=rules)
    with pytest.raises(jobs.DeclarationError) as at_the_registry:
        jobs.Registry.of(errors=rules)
    assert says in str(at_the_job.value)
    assert says in str(at_the_registry.value)


def test_an_asynchronous_rule_is_refused() -> None:
    async def ask(error: KeyError) -> Any: ...

    with pytest.raises(jobs.DeclarationError, match="a plain function, not an asynchronous one"):
        job(errors={KeyError: ask})


def test_rules_are_kept_as_they_were_declared_and_described() -> None:
    def decide(error: OSError) -> Any: ...

    given: dict[Any, Any] = {KeyError: "terminal", ValueError: MINUTE, OSError: decide}

    @job(errors=given)
    def declared(_: Input) -> None: ...

    given[TypeError] = "terminal"
    assert set(declared.errors) == {KeyError, ValueError, OSError}
    assert declared.describe()["errors"] == {
        "builtins.KeyError": "terminal",
        "builtins.ValueError": 60.0,
        "builtins.OSError": decide.__qualname__,
    }
    assert described_rules(checked_rules("errors", {})) == {}
    common: ErrorRules = {KeyError: "retry"}
    assert jobs.Registry.of(errors=common).errors == common
    assert registry(declared).errors == {}


# --- snooze


def a_run() -> Run:
    """One to call."""
    return Run(uuid4(), uuid4(), "n", "q", 1, 3, None, 1, "w", datetime.now(UTC))


def test_a_snooze_is_no_exception_and_crosses_processes() -> None:
    with pytest.raises(Snoozed) as caught:
        a_run().snooze(MINUTE)
    assert not isinstance(caught.value, Exception)
    assert pickle.loads(pickle.dumps(caught.value)).delay == MINUTE


@pytest.mark.parametrize("delay", [5, -MINUTE, timedelta.max, None], ids=repr)
def test_a_snooze_for_no_time_is_an_error(delay: Any) -> None:
    with pytest.raises(jobs.DelayInvalid, match="snoozes for"):
        a_run().snooze(delay)


def test_a_group_snoozes_where_all_of_it_does() -> None:
    group: Callable[..., Any] = BaseExceptionGroup
    assert read_snooze(Snoozed(MINUTE)) == MINUTE
    assert read_snooze(group("g", [Snoozed(MINUTE), group("h", [Snoozed(HOUR)])])) == HOUR
    assert read_snooze(group("g", [Snoozed(MINUTE), ValueError()])) is None
    assert read_snooze(ValueError()) is None


def test_nothing_is_logged_of_rules_that_work(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        read(KeyError(), {KeyError: lambda _: MINUTE})
    assert caplog.records == []
