"""Calling a task's function where it can hold up nobody: in a thread of its own, for so long.

And while it takes its time, the other schedules have theirs.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import threading
from collections.abc import Callable
from datetime import datetime
from typing import Final, NamedTuple, TypeVar, cast

from jobs.firing import Shot
from jobs.scheduler.plan import Plan
from jobs.texts import text_of
from jobs.timetable import Due

T = TypeVar("T")

# Seconds in which most functions return, so that nothing need go round for them.
_QUICK: Final = 0.05


class Caller:
    """Calls functions, one at a time for each name, and waits for them so many seconds."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._hanging: dict[str, threading.Thread] = {}

    async def call(self, name: str, fn: Callable[[], T]) -> T:
        """The result of ``fn()``, called in a daemon thread.

        Raises:
            TimeoutError: It does not return in time, or has not returned from an earlier call yet.
                Its thread is left to itself.
            Whatever the function raises.
        """
        before = self._hanging.get(name)
        if before is not None and before.is_alive():
            raise TimeoutError("the function has not returned from an earlier call")
        self._hanging.pop(name, None)
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        context = contextvars.copy_context()

        def settle(result: T | None, error: BaseException | None) -> None:
            if future.done():
                return
            if error is None:
                future.set_result(cast(T, result))
            elif isinstance(error, Exception) and not isinstance(error, StopIteration):
                future.set_exception(error)
            else:  # what a future cannot carry, or what would end the process
                future.set_exception(RuntimeError(f"{type(error).__name__}: {text_of(error)}"))

        def body() -> None:
            result, error = None, None
            try:
                result = context.run(fn)
            except BaseException as raised:
                error = raised
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits
                loop.call_soon_threadsafe(settle, result, error)

        thread = threading.Thread(target=body, name=f"jobs-task-{name}", daemon=True)
        thread.start()
        try:
            async with asyncio.timeout(self._seconds):
                return await future
        except TimeoutError:
            if not future.cancelled():
                raise  # the function's own
            self._hanging[name] = thread
            raise TimeoutError(f"the function did not return within {self._seconds:g} s") from None


class _Call(NamedTuple):
    revision: int
    watermark: datetime
    due: Due
    task: asyncio.Task[list[Shot]]


class Calls:
    """The functions that are being called, at most one call for each schedule."""

    def __init__(self, caller: Caller, ended: Callable[[], None]) -> None:
        """
        Args:
            caller: What calls them.
            ended: Called whenever a call ends, in the event loop.
        """
        self._caller = caller
        self._ended = ended
        self._calls: dict[str, _Call] = {}

    def pending(self, name: str) -> bool:
        """Whether a function is still at it."""
        call = self._calls.get(name)
        return call is not None and not call.task.done()

    async def made(self, one: Plan, due: Due) -> tuple[Due, list[Shot]] | None:
        """What the function of a schedule says is to be enqueued, and for which occurrence.

        Calls it for ``due``, or takes the result of an earlier call, whose occurrence may have been
        followed by others.

        Returns:
            None where there is no such result yet: it is being called, or the schedule has moved
            on since it was.

        Raises as `Caller.call`.
        """
        call = self._calls.get(one.name)
        if call is None:
            called = self._caller.call(one.name, lambda: one.aim(due.occurrence))
            task = asyncio.create_task(called, name=f"jobs:call {one.name}")
            task.add_done_callback(self._note)
            call = self._calls[one.name] = _Call(one.revision, one.watermark, due, task)
        await asyncio.wait({call.task}, timeout=_QUICK)
        if not call.task.done():
            return None
        del self._calls[one.name]
        if (call.revision, call.watermark) != (one.revision, one.watermark):
            return None
        return call.due, call.task.result()

    async def ended(self) -> None:
        """Wait for all of them."""
        if self._calls:
            await asyncio.wait([call.task for call in self._calls.values()])

    async def give_up(self) -> None:
        """Wait for none of them any more. Threads are left to themselves."""
        tasks = [call.task for call in self._calls.values()]
        self._calls.clear()
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def _note(self, task: asyncio.Task[list[Shot]]) -> None:
        if not task.cancelled():
            task.exception()  # looked at, should nobody want the result any more
        self._ended()
