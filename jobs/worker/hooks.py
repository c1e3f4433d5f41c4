"""Call the hooks of jobs that have ended: after the settle, beside the work, within bounds.

Nothing of it is written down. A process that dies takes along what it had not called yet, so a hook
is called at most once, and never for a settle that did not land.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any, Final, cast
from uuid import UUID

from jobs.callables import is_asynchronous
from jobs.declare import JobHandle
from jobs.hooks import Hook, Settled, SettledOutcome, StopReason
from jobs.registry import Registry
from jobs.tenancy import tenant_scope
from jobs.worker.threads import Threads
from jobs_sql.claim import ClaimJobsRow

logger = logging.getLogger("jobs.worker")

TRIES: Final = 3
"""How often a hook is called at most."""

TRY_SECONDS: Final = 10.0
"""How long one call may take."""

PAUSES: Final = (0.5, 2.0)
"""Seconds before the second and the third call."""

AT_ONCE: Final = 10
"""Hooks that run at the same time in a worker."""

BACKLOG: Final = 2_000
"""Hooks that wait or run before the worker claims nothing more."""


class _OverrunError(Exception):
    """A call took too long. It is not made again where it may still be under way."""


class Hooks:
    """The hooks of one worker. Used in its event loop."""

    def __init__(
        self,
        registry: Registry,
        threads: Threads,
        worker: str,
        failed: Callable[[], None],
        idle: Callable[[], None],
    ) -> None:
        """
        Args:
            registry: The jobs this process knows.
            threads: Where hooks run that are not asynchronous.
            worker: Label of this process.
            failed: Called for each hook that is given up.
            idle: Called when no hook waits or runs any more.
        """
        self._handles = {h.name: h for h in registry if h.on_settled is not None}
        self._threads = threads
        self._worker = worker
        self._failed = failed
        self._on_idle = idle
        self._waiting: deque[Settled[Any]] = deque()
        self._running: dict[asyncio.Task[None], Settled[Any]] = {}
        self._idle = asyncio.Event()
        self._idle.set()
        self._ending = False

    @property
    def backlog(self) -> int:
        """Hooks that wait or run."""
        return len(self._waiting) + len(self._running)

    def tell(
        self,
        row: ClaimJobsRow,
        outcome: SettledOutcome,
        stop_reason: StopReason | None = None,
        error_type: str | None = None,
        error_message: str | None = None,
        result: str | None = None,
    ) -> None:
        """A job has ended: call its hook, if it has one, soon. Never raises, never blocks.

        Args:
            row: The job as it was claimed or buried.
            outcome: How it ended.
            stop_reason, error_type, error_message, result: As in `Settled`.
        """
        handle = self._handles.get(row.name)
        if handle is None or self._ending:
            return
        told: Settled[Any] = Settled(
            id=row.id,
            run_id=UUID(row.run_id),
            name=row.name,
            queue=row.queue,
            outcome=outcome,
            stop_reason=stop_reason,
            attempt=row.attempt,
            max_attempts=row.max_attempts,
            tenant=row.tenant or None,
            error_type=error_type,
            error_message=error_message,
            payload=row.input,
            result=result,
            created_at=datetime.fromtimestamp(row.created_epoch, UTC),
            traceparent=row.traceparent,
            enqueued_by=row.enqueued_by,
            worker=self._worker,
            _load=handle.parse,
        )
        self._idle.clear()
        self._waiting.append(told)
        self._next()

    async def drain(self, seconds: float, hurry: asyncio.Event, grace: float) -> None:
        """Wait for the hooks, then give up and name those that have not ended.

        Args:
            seconds: How long they are waited for.
            hurry: Ends that wait.
            grace: Seconds for those that are cancelled to end.
        """
        if self.backlog:
            waits = [
                asyncio.create_task(event.wait(), name="jobs:hooked")
                for event in (self._idle, hurry)
            ]
            try:
                await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for wait in waits:
                    wait.cancel()
        self._ending = True
        left = [*self._running.values(), *self._waiting]
        self._waiting.clear()
        for told in left:
            self._failed()
            logger.error(
                "the hook of job %s (%s) is given up: the worker stops",
                told.id,
                told.name,
                extra={"event": "jobs.hook.abandoned", "job": str(told.id)},
            )
        tasks = set(self._running)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=grace)

    def _next(self) -> None:
        while self._waiting and len(self._running) < AT_ONCE:
            told = self._waiting.popleft()
            task = asyncio.create_task(self._run(told), name=f"jobs:hook:{told.name}:{told.id}")
            self._running[task] = told
            task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        told = self._running.pop(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("calling the hook of job %s failed in the worker", told.id, exc_info=error)
        if not self._ending:
            self._next()
        if not self.backlog:
            self._idle.set()
            self._on_idle()

    async def _run(self, told: Settled[Any]) -> None:
        handle = self._handles[told.name]
        hook = handle.on_settled
        assert hook is not None
        for number in range(1, TRIES + 1):
            try:
                with tenant_scope(_tenant(handle, told)):
                    await self._call(hook, told)
            except BaseException as error:  # also SystemExit: a hook must not end the worker
                if self._ending:
                    if isinstance(error, asyncio.CancelledError):
                        raise
                    return  # whatever it makes of that: it is given up, and was named
                last = number == TRIES or isinstance(error, _OverrunError)
                self._report(told, number, error, last)
                if last:
                    self._failed()
                    return
            else:
                return
            await asyncio.sleep(PAUSES[number - 1])

    async def _call(self, hook: Hook, told: Settled[Any]) -> None:
        if is_asynchronous(hook):
            async with asyncio.timeout(TRY_SECONDS):
                await cast(Awaitable[object], hook(told))
            return
        future = self._threads.call(functools.partial(hook, told))
        done, _ = await asyncio.wait({future}, timeout=TRY_SECONDS)
        if not done:
            raise _OverrunError(f"it is still running in its thread after {TRY_SECONDS:g} s")
        result = future.result()
        if inspect.iscoroutine(result):
            result.close()
            raise TypeError("the hook is not declared async but returned a coroutine")

    def _report(self, told: Settled[Any], number: int, error: BaseException, last: bool) -> None:
        logger.log(
            logging.ERROR if last else logging.WARNING,
            "the hook of job %s (%s) failed in try %d of %d%s",
            told.id,
            told.name,
            number,
            TRIES,
            ", and is given up" if last else "",
            exc_info=error,
            extra={
                "event": "jobs.hook.failed" if last else "jobs.hook.try_failed",
                "job": str(told.id),
            },
        )


def _tenant(handle: JobHandle[Any], told: Settled[Any]) -> str | None:
    """The tenant of the run; where the input does not say, the one it was enqueued for."""
    try:
        return handle.derive_tenant(told.input)
    except Exception:  # whatever a function of the application raises: the hook runs all the same
        return told.tenant
