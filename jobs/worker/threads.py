"""Threads for synchronous job functions.

Not concurrent.futures: its threads keep the interpreter from exiting, so one function that never
returns would wedge the shutdown of the whole process. These are daemon threads, made when needed
and reused.
"""

from __future__ import annotations

import asyncio
import contextvars
import queue
import threading
from collections.abc import Callable
from typing import Any

_Work = tuple[
    asyncio.AbstractEventLoop, "asyncio.Future[Any]", contextvars.Context, Callable[[], Any]
]


class Threads:
    """As many daemon threads as calls that run at the same time."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._work: queue.SimpleQueue[_Work | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._idle = 0
        self._count = 0
        self._closed = False

    def call(self, fn: Callable[[], Any]) -> asyncio.Future[Any]:
        """Run ``fn`` in a thread, in a copy of the caller's context.

        Returns:
            A future of the running event loop with its result or exception. Cancelling the future
            does not stop the thread.

        Raises:
            RuntimeError: The system has no thread left.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        future.add_done_callback(_look_at)
        with self._lock:
            if self._idle:
                self._idle -= 1
            else:
                self._count += 1
                threading.Thread(
                    target=self._serve, name=f"{self._name}-{self._count}", daemon=True
                ).start()
        self._work.put((loop, future, contextvars.copy_context(), fn))
        return future

    def close(self) -> None:
        """Let idle threads end now, and others when their call has ended."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, 0
        for _ in range(idle):
            self._work.put(None)

    def _serve(self) -> None:
        while (work := self._work.get()) is not None:
            loop, future, context, fn = work
            del work
            result, error = None, None
            try:
                result = context.run(fn)
            except BaseException as raised:  # SystemExit of a job must not end a thread silently
                error = raised
            with self._lock:
                closed = self._closed
                self._idle += not closed
            try:
                loop.call_soon_threadsafe(_deliver, future, result, error)
            except RuntimeError:
                return  # the loop is closed: the worker has gone, nobody waits for the result
            del future, context, fn, result, error
            if closed:
                return


def _look_at(future: asyncio.Future[Any]) -> None:
    """Look at the exception of a call that nobody may be waiting for any more."""
    if not future.cancelled():
        future.exception()


def _deliver(future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(result)
    elif isinstance(error, StopIteration):
        # A future refuses StopIteration, which would otherwise look like the end of a generator.
        wrapped = RuntimeError("the job function raised StopIteration")
        wrapped.__cause__ = error
        future.set_exception(wrapped)
    else:
        future.set_exception(error)
