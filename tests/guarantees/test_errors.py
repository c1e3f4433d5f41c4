"""Errors: one family, a code each, one line of cause, a fix; and codes that users rely on."""

from __future__ import annotations

import inspect
import pickle
import re
from types import ModuleType
from uuid import uuid4

import pytest
from pydantic import BaseModel

import jobs
from jobs import errors, faults

EXTRA = {
    errors.InvalidInput: {"field": "input.items[3]"},
    errors.DuplicateJob: {"id": uuid4(), "run_id": uuid4()},
    errors.JobBusy: {"id": uuid4()},
    errors.JobNotCancellable: {"id": uuid4(), "state": "completed"},
    errors.JobNotRequeueable: {"id": uuid4(), "state": "dead", "holder": uuid4()},
    errors.ScheduleInvalid: {"field": "cron"},
    faults.ResultInvalid: {"field": "result.items[3]"},
    faults.ResultTimeout: {"id": uuid4(), "state": "running"},
    faults.ProcessDied: {"exit_code": -9},
}
ENDED = {"id": uuid4(), "state": "dead", "stop_reason": "exhausted", "last_error": None}
FAMILY = sorted(
    (
        kind
        for module in (errors, faults)
        for _, kind in inspect.getmembers(module, inspect.isclass)
        if issubclass(kind, jobs.JobsError)
        and (module is errors or kind.__module__ == faults.__name__)
    ),
    key=lambda kind: kind.__name__,
)


class Input(BaseModel):
    """Nothing."""


def make(kind: type[jobs.JobsError]) -> jobs.JobsError:
    if kind is errors.RetryAfter:
        return errors.RetryAfter(90, "it went wrong")
    if issubclass(kind, faults.ResultUnavailable):
        return kind("it went wrong", **ENDED)
    return kind("it went wrong", **EXTRA.get(kind, {}))


def declare(function: str, **changes: str) -> jobs.JobHandle[Input]:
    def fn(input: Input) -> None:
        """Does nothing."""

    fn.__name__ = fn.__qualname__ = function
    return jobs.job(tenant=jobs.NO_TENANT, idempotency_key=jobs.NO_KEY, **changes)(fn)  # type: ignore[arg-type]


def test_every_error_has_a_code_of_its_own() -> None:
    codes = [kind.code for kind in FAMILY]
    assert len(FAMILY) > 20
    assert len(set(codes)) == len(codes)
    assert [code for code in codes if not re.fullmatch(r"(JOBS?|OUTBOX)(_[A-Z]+)+", code)] == []


@pytest.mark.parametrize("kind", FAMILY, ids=lambda kind: kind.__name__)
def test_an_error_says_code_cause_and_fix_in_one_line(kind: type[jobs.JobsError]) -> None:
    error = make(kind)
    assert error.cause.endswith("it went wrong")
    assert re.fullmatch(r"[^\n]+\.", error.fix)
    assert str(error) == f"{error.cause} [{kind.code}] Fix: {error.fix}"
    assert "\n" not in str(error)


@pytest.mark.parametrize("kind", FAMILY, ids=lambda kind: kind.__name__)
def test_an_error_crosses_processes_whole(kind: type[jobs.JobsError]) -> None:
    error = make(kind)
    error.at_item(7)
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is kind
    assert (str(again), vars(again)) == (str(error), vars(error))
    assert again.index == 7


def test_every_error_is_exported() -> None:
    assert [kind for kind in FAMILY if vars(jobs).get(kind.__name__) is not kind] == []


def test_two_things_of_one_name_are_one_code_wherever_they_meet() -> None:
    stated = declare("one", name="the same name, stated")
    with pytest.raises(jobs.DeclarationError) as second_statement:
        declare("two", name=stated.name)
    app, other = ModuleType("app"), ModuleType("other")
    vars(app)["send"], vars(other)["send"] = declare("send"), declare("send")
    with pytest.raises(jobs.DeclarationError) as two_handles:
        jobs.Registry.of(app, other)
    vars(app)["alias"] = vars(app)["send"]
    with pytest.raises(jobs.DeclarationError) as one_handle_twice:
        jobs.Registry.of(app)
    refusals = [second_statement, two_handles, one_handle_twice]
    assert {refusal.value.code for refusal in refusals} == {"JOB_NAME_DUPLICATE"}
