"""Notice from outside that an event loop stands still, and say what stops it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
import time
import traceback

logger = logging.getLogger("jobs.worker")

_BLOCKED_SECONDS = 1.0
# More than this between two looks says that this whole process stood still, not the loop alone.
_LONGEST_LOOK_SECONDS = 0.5


class LoopWatch:
    """Asks a loop for signs of life and warns when they stay out.

    `look` is called again and again from another thread.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, thread_id: int) -> None:
        self._loop = loop
        self._thread_id = thread_id
        self._asked = False
        self._looked_at = time.monotonic()
        self._silent = 0.0
        self._warned_at: float | None = None

    def look(self) -> None:
        """Ask the loop for a sign of life, and warn when it has not answered the last one."""
        now = time.monotonic()
        since, self._looked_at = now - self._looked_at, now
        if not self._asked:
            self._asked, self._silent = True, 0.0
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._answer)
            return
        self._silent += min(since, _LONGEST_LOOK_SECONDS)
        if self._warned_at is None and self._silent > _BLOCKED_SECONDS:
            self._warned_at = now - self._silent
            logger.warning(
                "the event loop has stood still for %.1f s in %s; job functions that block belong "
                "into a plain def, which runs in a thread\n%s",
                self._silent,
                self._task_name(),
                self._stack(),
                extra={"event": "jobs.worker.loop_blocked"},
            )

    def _answer(self) -> None:
        warned_at, self._warned_at = self._warned_at, None
        self._asked = False
        if warned_at is not None:
            logger.warning(
                "the event loop moves again after %.1f s",
                time.monotonic() - warned_at,
                extra={"event": "jobs.worker.loop_unblocked"},
            )

    def _task_name(self) -> str:
        with contextlib.suppress(Exception):  # of a task class of the application
            task = asyncio.current_task(self._loop)
            if task is not None:
                return f"task {task.get_name()}"
        return "some task"

    def _stack(self) -> str:
        with contextlib.suppress(Exception):  # of a loader that is asked for the source
            if (frame := sys._current_frames().get(self._thread_id)) is not None:
                return "".join(traceback.format_stack(frame, 12))
        return ""
