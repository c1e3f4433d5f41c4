"""Processes for job functions that compute: as many as run at the same time, one job in each.

Not concurrent.futures: there a process that dies breaks the pool for all others, and none can be
ended by itself. See docs/decisions/0013-processes.md.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import pickle
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from jobs.declare import JobHandle
from jobs.errors import ConfigError, JobTimeout
from jobs.faults import ProcessDied
from jobs.progress import Point
from jobs.registry import Registry
from jobs.run import Run
from jobs.worker.frames import Frame, Work, packed, read_frame

logger = logging.getLogger("jobs.worker")

MOST: Final = 1_000
"""Processes of one worker."""

KILL_GRACE: Final = 1.0
"""Seconds from telling a function that it should stop until its process is killed."""

# Seconds for a killed process to be gone, and for one without work to end by itself.
_GONE: Final = 1.0
# Seconds between two looks whether a process is there that has not said that it ends.
_LOOK: Final = 0.5
# Seconds for a new process to be ready.
_READY: Final = 60.0
_BOOT: Final = (
    "import sys; end, parent = map(int, sys.argv[1:3]); sys.path[:] = sys.argv[3:]; "
    "from jobs.worker.child import main; main(end, parent)"
)
_FIELDS: Final = (
    *("id", "run_id", "name", "queue", "attempt", "max_attempts", "tenant", "claims", "worker"),
    *("created_at", "traceparent", "enqueued_by"),
)


@dataclass(frozen=True, slots=True)
class Answer:
    """How a function ended in its process.

    Attributes:
        result: What it returned, as JSON text; None for nothing.
        error: What it raised, None where it returned.
        seconds: How long it took.
    """

    result: str | None
    error: BaseException | None
    seconds: float


class Processes:
    """Processes that are started when needed and kept for the next job."""

    def __init__(self, most: int) -> None:
        """
        Args:
            most: How many there are at the same time. Further jobs wait for one.
        """
        self._room = asyncio.Semaphore(most)
        self._idle: list[_Child] = []
        self._all: set[_Child] = set()
        self._closed = False

    async def run(
        self, handle: JobHandle[Any], text: str, run: Run, seconds: float | None
    ) -> str | None:
        """Run a job function in a process, and return the JSON text of its result.

        A cancellation tells the function, and ends its process `KILL_GRACE` later unless it has
        ended by then; another one ends the process at once.

        Args:
            handle: The job.
            text: Its input as stored.
            run: The run; its progress and completion are kept up to date.
            seconds: Longest duration, counted from when a process has taken the job.

        Raises:
            JobTimeout: The time was up.
            ProcessDied: The process ended by itself, or none could be started.
            BaseException: What the function raised, with its traceback as the cause.
        """
        work = Work(
            module=handle.__module__,
            qualname=_qualname(handle),
            input=text,
            tenant=run._derived_tenant,
            seconds=seconds,
            run={name: getattr(run, name) for name in _FIELDS},
        )
        async with self._room:
            child = await self._take(work)
            try:
                return await _Attempt(child, run, seconds).finish()
            finally:
                if child.usable and not self._closed:
                    self._idle.append(child)
                else:
                    await self._end(child)

    async def close(self) -> None:
        """End all processes, at once those that are busy. Bounded in time."""
        self._closed = True
        for child in self._idle:
            child.dismiss()
        deadline = time.monotonic() + _GONE
        while any(each.alive for each in self._idle) and time.monotonic() < deadline:  # noqa: ASYNC110 (no event tells)
            await asyncio.sleep(0.01)
        self._idle.clear()
        for child in list(self._all):
            await self._end(child)

    async def _take(self, work: Work) -> _Child:
        """Hand the job to a process that is alive. Raises ProcessDied."""
        while True:
            fresh = not self._idle
            child = await self._start(work) if fresh else self._idle.pop()
            try:
                if not child.alive:
                    raise ConnectionResetError  # it died with nothing to do
                child.send("job", work)
                async with asyncio.timeout(_READY):
                    await child.began()
            except (ConnectionError, asyncio.IncompleteReadError, TimeoutError):
                # Nothing of the job has begun, so it costs no attempt to hand it to another one.
                await self._end(child)
                if fresh:
                    raise _died(work.run, await child.exit_code()) from None
            except BaseException:
                await self._end(child)
                raise
            else:
                return child

    async def _start(self, work: Work) -> _Child:
        try:
            child = await _Child.start()
        except OSError as error:
            raise ProcessDied(
                f"no process could be started for job {work.run['id']}: {error}", exit_code=None
            ) from error
        self._all.add(child)
        return child

    async def _end(self, child: _Child) -> None:
        child.kill()
        await child.exit_code()
        self._all.discard(child)


class _Child:
    """One process and this end of the socket pair."""

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        self._process = process
        self._reader = reader
        self._writer = writer
        #: Whether the next job may go to it.
        self.usable = True

    @classmethod
    async def start(cls) -> _Child:
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                # From the thread of the event loop: the kernel ends the process with this thread.
                process = subprocess.Popen(  # noqa: ASYNC220 (takes a millisecond)
                    [
                        *(sys.executable, "-c", _BOOT, str(theirs.fileno()), str(os.getpid())),
                        *sys.path,
                    ],
                    pass_fds=(theirs.fileno(),),
                    stdin=subprocess.DEVNULL,
                    # Ctrl-C is for the worker, and what a function starts can be ended with it.
                    process_group=0,
                )
        except BaseException:
            ours.close()
            raise
        reader, writer = await asyncio.open_connection(sock=ours)
        return cls(process, reader, writer)

    @property
    def alive(self) -> bool:
        return not self.ended and not self._reader.at_eof()

    @property
    def ended(self) -> bool:
        """Whether the process has ended.

        It is left unwaited for, so that its group keeps its number until what it has started is
        killed.
        """
        if self._process.returncode is not None:
            return True
        if not hasattr(os, "waitid"):
            return self._process.poll() is not None
        how = os.WEXITED | os.WNOHANG | os.WNOWAIT
        try:
            return os.waitid(os.P_PID, self._process.pid, how) is not None
        except ChildProcessError:  # waited for by somebody else, or SIGCHLD is ignored
            return self._process.poll() is not None

    def send(self, *frame: Any) -> None:
        """Send a frame without waiting; what cannot be sent is found out by reading."""
        self._writer.write(packed(frame))

    async def began(self) -> None:
        """Wait until the process has taken the job."""
        while (await self.hear())[0] != "began":
            pass  # of the job before, from a thread that it has left behind

    async def hear(self) -> Frame:
        """Return the next frame. Raises IncompleteReadError or ConnectionError at the end."""
        return await read_frame(self._reader)

    def dismiss(self) -> None:
        """Let a process without work end by itself."""
        self._writer.close()

    def kill(self) -> None:
        """End the process and what it has started, at once."""
        self.usable = False
        if self._process.returncode is None:
            # Its number stays taken until it has been waited for, so this cannot hit a stranger.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)

    async def exit_code(self) -> int | None:
        """Wait a moment for the end of the process; None where it does not come."""
        self._writer.close()
        deadline = time.monotonic() + _GONE
        while (code := self._process.poll()) is None and time.monotonic() < deadline:  # noqa: ASYNC110 (no event tells)
            await asyncio.sleep(0.005)
        return code


class _Attempt:
    """A job in a process, from when that has taken it."""

    def __init__(self, child: _Child, run: Run, seconds: float | None) -> None:
        self._child = child
        self._run = run
        self._seconds = seconds
        self._overdue = False
        self._interrupted = False

    async def finish(self) -> str | None:
        """Wait for the end; see `Processes.run`."""
        loop = asyncio.get_running_loop()
        reading = asyncio.create_task(self._read(), name="jobs:process")
        timers: list[asyncio.TimerHandle] = []
        if self._seconds is not None:
            timers.append(loop.call_later(self._seconds, self._expire))
            timers.append(loop.call_later(self._seconds + KILL_GRACE, self._child.kill))
        try:
            while not reading.done():
                try:
                    gone = self._child.ended
                    await asyncio.wait({reading}, timeout=_LOOK)
                    if gone and not reading.done():
                        # It has ended, and what it had forked keeps its socket open.
                        self._child.kill()
                        reading.cancel()
                        await asyncio.wait({reading})
                except asyncio.CancelledError:
                    if self._interrupted:
                        self._child.kill()
                    else:
                        self._interrupted = True
                        self._tell()
                        timers.append(loop.call_later(KILL_GRACE, self._child.kill))
        finally:
            for timer in timers:
                timer.cancel()
        answer = None if reading.cancelled() else reading.result()
        if answer is None:
            raise await self._lost()
        if self._seconds is not None and answer.seconds > self._seconds:
            raise self._timeout() from answer.error
        if answer.error is not None:
            raise answer.error
        return answer.result

    async def _read(self) -> Answer | None:
        """Hear the process out; None where it ends without an answer."""
        while True:
            try:
                frame = await self._child.hear()
            except (ConnectionError, asyncio.IncompleteReadError):
                return None
            match frame:
                case ("progress", Point() as point):
                    self._progress(point)
                case ("asked", result):
                    self._run._completion_asked, self._run._completion_result = True, result
                case ("landed",):
                    self._run._completion_landed = True
                case ("done", result, seconds, point):
                    self._progress(point)
                    return Answer(result, None, seconds)
                case ("failed", pickled, kind, text, trace, seconds, point):
                    self._progress(point)
                    return Answer(None, _restored(pickled, kind, text, trace), seconds)

    async def _lost(self) -> BaseException:
        """What is raised where the process has ended without an answer."""
        self._child.usable = False
        code = await self._child.exit_code()
        if self._overdue:
            return self._timeout()
        if self._interrupted:
            return asyncio.CancelledError()
        return _died({name: getattr(self._run, name) for name in ("id", "name")}, code)

    def _progress(self, point: Point | None) -> None:
        if point is not None and point != self._run._point:
            self._run._point = point
            if self._run._desk is not None:
                self._run._desk.changed(self._run)

    def _expire(self) -> None:
        self._overdue = True
        self._tell()

    def _tell(self) -> None:
        """Tell the function that it should stop."""
        self._run._cancel()
        self._child.send("cancel", self._run.claims)

    def _timeout(self) -> JobTimeout:
        return JobTimeout(f"the attempt took longer than {timedelta(seconds=self._seconds or 0)}")


class _RemoteTraceback(Exception):  # noqa: N818 (a cause that is shown, never raised)
    """The traceback of an error that was raised in another process."""

    def __init__(self, trace: str) -> None:
        self._trace = trace

    def __str__(self) -> str:
        return f"\n{self._trace}"


def _restored(pickled: bytes | None, kind: str, text: str, trace: str) -> BaseException:
    """The error that a function raised in its process, or one of its name where it has no copy."""
    error: BaseException | None = None
    if pickled is not None:
        with contextlib.suppress(Exception):
            found = pickle.loads(pickled)
            # One that ends coroutines would end the wrong one here.
            if isinstance(found, BaseException) and not isinstance(found, GeneratorExit):
                error = found
    if error is None:
        error = type(kind, (Exception,), {"__module__": "jobs.worker.child"})(text)
    error.__cause__ = _RemoteTraceback(trace)
    return error


def _died(run: dict[str, Any], code: int | None) -> ProcessDied:
    how = "did not say how it ended"
    if code is not None and code < 0:
        with contextlib.suppress(ValueError):
            how = f"was killed by {signal.Signals(-code).name}"
    elif code is not None:
        how = f"ended with the exit status {code}"
    return ProcessDied(f"the process of job {run['id']} ({run['name']}) {how}", exit_code=code)


def checked_processes(most: object, registry: Registry) -> int:
    """Return how many processes a worker may have.

    Raises ConfigError for what is no such number, and for a job that a process would not find.
    """
    if most is None:
        most = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    if isinstance(most, bool) or not isinstance(most, int) or not 1 <= most <= MOST:
        raise ConfigError(f"processes is {most!r:.200}, expected a whole number from 1 to {MOST}")
    for handle in registry:
        if handle.executor == "process":
            _check_importable(handle)
    return most


def _check_importable(handle: JobHandle[Any]) -> None:
    found: Any = sys.modules.get(handle.__module__)
    for part in _qualname(handle).split("."):
        found = getattr(found, part, None)
    if found is not handle:
        raise ConfigError(
            f"job {handle.name!r} runs in a process, and {handle.__module__}.{_qualname(handle)} "
            "is not its handle",
            fix="Export it under the name of its function: decorate that where it is defined.",
        )


def _qualname(handle: JobHandle[Any]) -> str:
    return str(handle.__reduce__())
