"""Calling a task's function where it can hold up nobody: in a thread of its own, for so long."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import threading
from collections.abc import Callable
from typing import TypeVar, cast

from jobs.texts import text_of

T = TypeVar("T")


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
