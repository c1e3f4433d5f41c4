"""How hooks are called: bounded in tries, time and number, never raising."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest

import jobs
from jobs.declare import JobHandle
from jobs.hooks import checked_hook
from jobs.worker import hooks
from jobs.worker.hooks import Hooks
from jobs.worker.threads import Threads
from jobs_sql.claim import ClaimJobsRow
from tests.runtime.working import Input, job, logged, registry, until

Told = jobs.Settled[Input]


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hooks, "PAUSES", (0.0, 0.0))


def declared(hook: Callable[[Told], object], name: str = "hooked") -> JobHandle[Input]:
    """A job with this hook."""

    @job(name=name, on_settled=hook)
    async def hooked(_: Input) -> None: ...

    made: JobHandle[Input] = hooked
    return made


def row(name: str = "hooked", payload: str = '{"n": 7}') -> ClaimJobsRow:
    """A row as the claim answers it."""
    values: dict[str, Any] = {
        "verdict": "claimed",
        "id": jobs.uuid7(),
        "run_id": str(jobs.uuid7()),
        "queue": "q",
        "name": name,
        "tenant": "",
        "priority": 0,
        "attempt": 2,
        "max_attempts": 3,
        "claims": 5,
        "available_epoch": time.time(),
        "created_epoch": time.time(),
        "traceparent": None,
        "enqueued_by": "somebody",
        "input": payload,
    }
    return ClaimJobsRow._make(values.get(field) for field in ClaimJobsRow._fields)


class Caller:
    """The hooks of a worker that is not there."""

    def __init__(self, *handles: JobHandle[Any]) -> None:
        self.threads = Threads("jobs-hooks")
        self.failures = 0
        self.idles = 0
        self.hooks = Hooks(registry(*handles), self.threads, "me", self.failed, self.idle)

    def failed(self) -> None:
        self.failures += 1

    def idle(self) -> None:
        self.idles += 1

    async def ended(self) -> None:
        """Wait for all of them."""
        await until(lambda: not self.hooks.backlog, "the hooks")


@asynccontextmanager
async def calling(*handles: JobHandle[Any]) -> AsyncIterator[Caller]:
    """Hooks to call, ended with the block."""
    caller = Caller(*handles)
    try:
        yield caller
    finally:
        await caller.hooks.drain(0, asyncio.Event(), 5)
        caller.threads.close()


async def test_it_is_told_everything(caplog: pytest.LogCaptureFixture) -> None:
    heard: list[Told] = []

    async def note(told: Told) -> None:
        heard.append(told)

    async with calling(declared(note)) as caller:
        one = row()
        caller.hooks.tell(one, "dead", "terminal", "KeyError", "'x'")
        caller.hooks.tell(row(), "completed", result="[1]")
        await caller.ended()
    dead, completed = heard
    assert (dead.id, dead.run_id, dead.name, dead.queue) == (
        one.id,
        UUID(one.run_id),
        "hooked",
        "q",
    )
    assert (dead.outcome, dead.stop_reason) == ("dead", "terminal")
    assert (dead.error_type, dead.error_message) == ("KeyError", "'x'")
    assert (dead.attempt, dead.max_attempts, dead.tenant) == (2, 3, None)
    assert (dead.payload, dead.input) == ('{"n": 7}', Input(n=7))
    assert (dead.enqueued_by, dead.traceparent, dead.worker) == ("somebody", None, "me")
    assert dead.created_at == datetime.fromtimestamp(one.created_epoch, UTC)
    assert (completed.outcome, completed.stop_reason, completed.result) == (
        "completed",
        None,
        "[1]",
    )
    assert (caller.failures, caller.idles > 0, caplog.records) == (0, True, [])


async def test_one_that_is_not_asynchronous_runs_in_a_thread() -> None:
    where: list[str] = []

    def note(_: Told) -> None:
        where.append(threading.current_thread().name)

    async with calling(declared(note)) as caller:
        caller.hooks.tell(row(), "completed")
        await caller.ended()
    assert [name.startswith("jobs-hooks") for name in where] == [True]


async def test_jobs_without_one_and_unknown_names_cost_nothing() -> None:
    @job()
    async def plain(_: Input) -> None: ...

    async with calling(plain) as caller:
        caller.hooks.tell(row("plain"), "completed")
        caller.hooks.tell(row("unknown"), "completed")
        assert caller.hooks.backlog == 0


async def test_an_unreadable_payload_is_given_as_text() -> None:
    heard: list[object] = []

    async def note(told: Told) -> None:
        heard.append(told.payload)
        with pytest.raises(jobs.PayloadUnreadable):
            _ = told.input

    async with calling(declared(note)) as caller:
        caller.hooks.tell(row(payload='{"n": "x"}'), "dead", "exhausted")
        await caller.ended()
    assert (heard, caller.failures) == (['{"n": "x"}'], 0)


@pytest.mark.parametrize("kind", [ValueError, SystemExit, asyncio.CancelledError, KeyError])
@pytest.mark.parametrize("thread", [False, True], ids=["async", "thread"])
async def test_it_is_tried_three_times_then_named_and_given_up(
    kind: type[BaseException], thread: bool, caplog: pytest.LogCaptureFixture
) -> None:
    tries: list[object] = []

    async def fails(told: Told) -> None:
        tries.append(told)
        raise kind("on purpose")

    def fails_in_thread(told: Told) -> None:
        tries.append(told)
        raise kind("on purpose")

    async with calling(declared(fails_in_thread if thread else fails)) as caller:
        one = row()
        caller.hooks.tell(one, "completed")
        await caller.ended()
    assert len(tries) == 3
    assert caller.failures == 1
    assert len(logged(caplog, "jobs.hook.try_failed")) == 2
    (said,) = logged(caplog, "jobs.hook.failed")
    assert f"the hook of job {one.id} (hooked) failed in try 3 of 3, and is given up" in said
    levels = {record.levelno for record in caplog.records}
    assert levels == {logging.WARNING, logging.ERROR}


async def test_one_that_succeeds_later_has_not_failed() -> None:
    tries: list[int] = []

    async def second(_: Told) -> None:
        tries.append(1)
        if len(tries) < 2:
            raise ValueError("not yet")

    async with calling(declared(second)) as caller:
        caller.hooks.tell(row(), "completed")
        await caller.ended()
    assert (len(tries), caller.failures) == (2, 0)


async def test_one_that_hangs_is_ended(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(hooks, "TRY_SECONDS", 0.02)
    tries: list[int] = []

    async def hangs(_: Told) -> None:
        tries.append(1)
        await asyncio.sleep(3600)

    async with calling(declared(hangs)) as caller:
        caller.hooks.tell(row(), "completed")
        await caller.ended()
    assert (len(tries), caller.failures) == (3, 1)
    assert len(logged(caplog, "jobs.hook.failed")) == 1


async def test_one_that_hangs_in_a_thread_is_not_called_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(hooks, "TRY_SECONDS", 0.02)
    tries: list[int] = []
    gate = threading.Event()

    def hangs(_: Told) -> None:
        tries.append(1)
        gate.wait(30)

    async with calling(declared(hangs)) as caller:
        caller.hooks.tell(row(), "completed")
        await caller.ended()
        gate.set()
    assert (len(tries), caller.failures) == (1, 1)
    assert "in try 1 of 3, and is given up" in logged(caplog, "jobs.hook.failed")[0]


async def test_a_plain_function_that_returns_a_coroutine_has_failed() -> None:
    async def inner() -> None: ...

    async with calling(declared(lambda _: inner())) as caller:
        caller.hooks.tell(row(), "completed")
        await caller.ended()
    assert caller.failures == 1


async def test_so_many_at_once_and_the_others_after_them() -> None:
    gate = asyncio.Event()
    running: list[int] = []
    seen: list[int] = []

    async def waits(told: Told) -> None:
        running.append(told.input.n)
        seen.append(len(running))
        await gate.wait()
        running.remove(told.input.n)

    async with calling(declared(waits)) as caller:
        for number in range(35):
            caller.hooks.tell(row(payload=f'{{"n": {number}}}'), "completed")
        await until(lambda: len(running) == hooks.AT_ONCE, "the first ones")
        assert caller.hooks.backlog == 35
        gate.set()
        await caller.ended()
    assert (len(seen), max(seen)) == (35, hooks.AT_ONCE)


async def test_it_runs_in_the_tenant_of_the_job() -> None:
    """That of its input; where the input cannot be read, the one it was enqueued for."""
    seen: list[str | None] = []

    async def note(_: Told) -> None:
        seen.append(jobs.current_tenant())
        if len(seen) < 2:
            raise ValueError("again")

    @job(tenant=lambda input: f"tenant {input.n}", on_settled=note)
    async def hooked(_: Input) -> None: ...

    async with calling(hooked) as caller:
        caller.hooks.tell(row()._replace(tenant="enqueued"), "completed")
        await caller.ended()
        caller.hooks.tell(row(payload="{")._replace(tenant="enqueued"), "dead", "exhausted")
        await caller.ended()
    async with calling(declared(note)) as caller:
        caller.hooks.tell(row()._replace(tenant="enqueued"), "completed")
        await caller.ended()
    assert seen == ["tenant 7", "tenant 7", "enqueued", None]
    assert jobs.current_tenant() is None


@pytest.mark.parametrize("how", ["in time", "too late", "hurried"])
async def test_a_drain_waits_for_a_while_and_names_who_is_left(
    how: str, caplog: pytest.LogCaptureFixture
) -> None:
    ended: list[int] = []
    gate = asyncio.Event()

    async def slow(told: Told) -> None:
        await gate.wait()
        ended.append(told.input.n)

    caller = Caller(declared(slow))
    for number in range(12):
        caller.hooks.tell(row(payload=f'{{"n": {number}}}'), "completed")
    await asyncio.sleep(0)
    hurry = asyncio.Event()
    loop = asyncio.get_running_loop()
    if how == "in time":
        loop.call_later(0.05, gate.set)
    elif how == "hurried":
        hurry.set()
    await caller.hooks.drain(0.05 if how == "too late" else 30, hurry, 5)
    caller.threads.close()
    named = logged(caplog, "jobs.hook.abandoned")
    if how == "in time":
        assert (sorted(ended), named, caller.failures) == (list(range(12)), [], 0)
    else:
        assert (ended, len(named), caller.failures) == ([], 12, 12)
    caller.hooks.tell(row(), "completed")
    assert caller.hooks.backlog == 0, "nothing is taken on any more"


async def test_one_that_exits_when_it_is_ended_does_not_end_the_worker(
    caplog: pytest.LogCaptureFixture,
) -> None:
    begun = asyncio.Event()

    async def exits(_: Told) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            sys.exit(1)

    caller = Caller(declared(exits))
    caller.hooks.tell(row(), "completed")
    await begun.wait()
    await caller.hooks.drain(0, asyncio.Event(), 5)
    caller.threads.close()
    assert (len(logged(caplog, "jobs.hook.abandoned")), caller.hooks.backlog) == (1, 0)


# --- declaring


@pytest.mark.parametrize(
    ("hook", "says"),
    [
        ("x", "must be a function of a jobs.Settled, and is a str"),
        (dict, "must be a function"),
        (lambda: None, "must take the jobs.Settled as its one argument"),
        (lambda a, b: None, "must take the jobs.Settled as its one argument"),  # noqa: ARG005
    ],
    ids=["text", "type", "none", "two"],
)
def test_what_cannot_be_one_is_refused_at_the_declaration(hook: Any, says: str) -> None:
    with pytest.raises(jobs.DeclarationError, match=f"on_settled: {says}"):
        job(on_settled=hook)


def test_nor_can_a_generator() -> None:
    def generates(told: Told) -> Iterator[Told]:
        yield told

    with pytest.raises(jobs.DeclarationError, match="contains a yield"):
        job(on_settled=generates)


def test_objects_that_are_called_can() -> None:
    class Callable_:  # noqa: N801
        async def __call__(self, told: Told) -> None: ...

    one = Callable_()
    checked_hook(one)
    assert declared(one).on_settled is one
    assert declared(one).describe()["on_settled"] is True
