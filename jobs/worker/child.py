"""A process that runs job functions for a worker, one at a time. Never imported by the worker.

It ends when the worker does, however that ends: the kernel kills it with its parent where it can do
that (Linux), and everywhere the end of the socket between the two is the end of this process.
"""

from __future__ import annotations

import contextlib
import contextvars
import ctypes
import importlib
import inspect
import os
import pickle
import queue
import select
import signal
import socket
import sys
import threading
import time
from typing import Any, Final

from jobs.declare import JobHandle
from jobs.faults import RunFeatureUnavailable
from jobs.run import Desk, Run
from jobs.scoped import RunConnection
from jobs.tenancy import tenant_scope
from jobs.texts import text_of, trace_of
from jobs.worker.frames import Wire, Work
from jobs_sql.settle import SettleJobsRow

# Seconds between two points of progress that are told to the worker.
_TELL_EVERY: Final = 0.2
_SET_PARENT_DEATH_SIGNAL: Final = 1


class ProcessRun(Run):
    """The run as a function in a process sees it."""

    __slots__ = ("_wire",)

    def connection(self) -> RunConnection:
        """Raise RunFeatureUnavailable: a pool stays in the process that opened it."""
        raise RunFeatureUnavailable("run.connection() is not there in a process")

    def _settlement(self, result: str | None) -> dict[str, Any]:
        self._wire: Wire
        self._wire.send("asked", result)
        return super()._settlement(result)

    def _landed(self, rows: list[SettleJobsRow]) -> bool:
        landed = super()._landed(rows)
        if landed:
            self._wire.send("landed")
        return landed


def main(end: int, parent: int) -> None:
    """Serve until the worker is gone.

    Args:
        end: File descriptor of this end of the pair.
        parent: Id of the worker's process.
    """
    _end_with(parent)
    for number in (signal.SIGINT, signal.SIGTERM):
        # For the worker, which drains and tells. A handler, which programs started here do not
        # inherit as they would a signal that is ignored.
        signal.signal(number, lambda _number, _frame: None)
    ours = socket.socket(fileno=end)
    ours.set_inheritable(False)
    wire = Wire(ours)
    post = _Post(wire)
    threading.Thread(target=post.serve, name="jobs-post", daemon=True).start()
    while (work := post.inbox.get()) is not None:
        # In a context of its own: what it sets there the next one does not see.
        post.answer(contextvars.copy_context().run(_attempt, work, post))


class _Post:
    """Hears what the worker says while the function computes."""

    def __init__(self, wire: Wire) -> None:
        self.wire = wire
        self.inbox: queue.SimpleQueue[Work | None] = queue.SimpleQueue()
        self.run: ProcessRun | None = None
        self._told_at = float("-inf")
        self._untold = False

    def serve(self) -> None:
        """Take frames until there are no more, then end this process."""
        while True:
            if not self._readable(_TELL_EVERY if self.run is not None else None):
                self._tell_late()
                continue
            frame = self.wire.receive()
            if frame is None:
                break
            if frame[0] == "job":
                self.run = self._run_of(frame[1])
                self.inbox.put(frame[1])
            elif self.run is not None and self.run.claims == frame[1]:
                self.run._cancel()
        if self.run is not None:
            os._exit(1)  # in the middle of a function, for which nobody waits any more
        self.inbox.put(None)

    def answer(self, frame: tuple[Any, ...]) -> None:
        """Say how the function ended."""
        self.run = None
        with contextlib.suppress(OSError):
            self.wire.send(*frame)

    def changed(self, run: Run) -> None:
        """Tell the worker of a new point, unless it has just heard one; never wait for that.

        A run that has ended, of which a thread is left, says nothing any more.
        """
        if run is not self.run:
            return
        now = time.monotonic()
        room = select.select([], [self.wire.socket], [], 0)[1]
        if now - self._told_at < _TELL_EVERY or not room:
            self._untold = True
            return
        self._told_at, self._untold = now, False
        with contextlib.suppress(OSError):
            self.wire.send("progress", run._point)

    def _tell_late(self) -> None:
        run = self.run
        if run is not None and self._untold:
            self.changed(run)

    def _readable(self, seconds: float | None) -> bool:
        return bool(select.select([self.wire.socket], [], [], seconds)[0])

    def _run_of(self, work: Work) -> ProcessRun:
        fields: dict[str, Any] = work.run
        run = ProcessRun(**fields)
        run._wire = self.wire
        run._desk = Desk(self.changed)
        run._derived_tenant = work.tenant
        return run


def _attempt(work: Work, post: _Post) -> tuple[Any, ...]:
    """Run the function; return the frame that says how it ended."""
    run = post.run
    assert run is not None
    post.wire.send("began")
    began = time.monotonic()
    if work.seconds is not None:
        run._limit(work.seconds)
    try:
        handle = _handle_of(work)
        run._results = handle.results
        value = handle.parse(work.input)
        with tenant_scope(work.tenant):
            result = handle.fn(value, run) if handle.takes_run else handle.fn(value)
        seconds = time.monotonic() - began
        if inspect.iscoroutine(result):
            result.close()
            raise TypeError("the job function returned a coroutine, which nobody ran")
        return "done", handle.results.dump(result), seconds, run._point
    except BaseException as error:
        seconds = time.monotonic() - began
        return "failed", *_described(error), seconds, run._point


def _handle_of(work: Work) -> JobHandle[Any]:
    found: Any = importlib.import_module(work.module)
    for part in work.qualname.split("."):
        found = getattr(found, part)
    if not isinstance(found, JobHandle):
        raise TypeError(f"{work.module}.{work.qualname} is a {type(found).__qualname__} and no job")
    return found


def _described(error: BaseException) -> tuple[bytes | None, str, str, str]:
    """The error for another process: pickled if it can be, and its type, text and traceback."""
    pickled = None
    with contextlib.suppress(BaseException):
        copy = pickle.dumps(error)
        pickle.loads(copy)  # tried here, where it costs this process at worst
        pickled = copy
    return pickled, type(error).__qualname__, text_of(error), trace_of(error)


def _end_with(parent: int) -> None:
    """Be killed by the kernel when the thread of the worker that started this process ends."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)
        if os.getppid() != parent:  # it was gone before
            os._exit(1)
    return
