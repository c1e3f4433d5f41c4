"""Renew the leases of all held jobs from a thread of its own.

A job function that blocks the event loop stops everything there, but not this thread and its own
connection, so its neighbours keep their leases. The same thread notices that the loop stands still
and says which task stops it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
import threading
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import psycopg

from jobs.errors import JobsError
from jobs.worker.held import Held, Holding
from jobs.worker.link import Target, connect, cut
from jobs_sql.lease import renew_leases

logger = logging.getLogger("jobs.worker")

MAX_BATCH = 1_000
_TICK = 0.25
_BLOCKED_AFTER = 1.0


class Renewer:
    """A daemon thread that renews every third of a lease while anything is held.

    What it finds lost it reports through ``lost``, called in the event loop with the job and the
    reason. Besides the database's answer, a job counts as lost when no renewal of it has landed for
    a whole lease by this process's monotonic clock: nobody can know then who holds it.
    """

    def __init__(
        self,
        target: Target,
        holding: Holding,
        worker: str,
        lease: timedelta,
        lost: Callable[[Held, str], None],
    ) -> None:
        self._target = target
        self._holding = holding
        self._worker = worker
        self._lease = lease
        self._lease_seconds = lease.total_seconds()
        self._every = self._lease_seconds / 3
        self._lost = lost
        self._loop = asyncio.get_running_loop()
        self._watch = LoopWatch(self._loop, threading.get_ident())
        self._conn: psycopg.Connection[Any] | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="jobs-renewer", daemon=True)

    def start(self) -> None:
        self._thread.start()

    async def stop(self, timeout: float = 2.0) -> None:
        """End the thread, cutting a renewal that does not answer within ``timeout`` seconds."""
        self._stop.set()
        await asyncio.to_thread(self._thread.join, timeout)
        if self._thread.is_alive():
            conn = self._conn
            if conn is not None:
                cut(conn)
            await asyncio.to_thread(self._thread.join, timeout)

    def _serve(self) -> None:
        due = time.monotonic() + self._every
        tick = min(_TICK, self._every / 4)
        while not self._stop.wait(tick):
            self._watch.look()
            if time.monotonic() < due:
                continue
            try:
                landed = self._renew(self._holding.snapshot())
            except Exception:
                logger.exception("renewing leases failed unexpectedly")
                landed = False
            due = time.monotonic() + (self._every if landed else min(1.0, self._every / 4))
        self._drop()

    def _renew(self, held: list[Held]) -> bool:
        landed = True
        for start in range(0, len(held), MAX_BATCH):
            landed &= self._renew_batch(held[start : start + MAX_BATCH])
        now = time.monotonic()
        for job in held:
            if now - job.renewed_at > self._lease_seconds:
                self._report(job, "no renewal landed for a whole lease")
        return landed

    def _renew_batch(self, batch: list[Held]) -> bool:
        asked_at = time.monotonic()
        try:
            rows = self._send(batch)
        except (psycopg.Error, OSError, JobsError) as error:
            self._drop()
            logger.warning(
                "renewing %d leases failed: %s",
                len(batch),
                error,
                extra={"event": "jobs.worker.renewal_failed", "jobs": len(batch)},
            )
            return False
        jobs = {(job.id, job.claims): job for job in batch}
        for row in rows:
            job = jobs[(row.id, row.claims)]
            if row.verdict == "renewed":
                job.renewed_at = asked_at
            elif row.verdict == "lost":
                self._report(job, "the database has given it to another worker or ended it")
            elif job.run._completing:
                job.renewed_at = asked_at  # our own open transaction holds the row: nobody else can
        return True

    def _send(self, batch: list[Held]) -> list[Any]:
        if self._conn is None or self._conn.closed:
            self._conn = connect(self._target)
        conn = self._conn
        # Waiting on a peer that hangs has no end of its own; this ends it in time to try again.
        guard = threading.Timer(self._every, cut, (conn,))
        guard.daemon = True
        guard.start()
        try:
            return renew_leases(
                conn,
                ids=[job.id for job in batch],
                claims=[job.claims for job in batch],
                worker=self._worker,
                lease=self._lease,
            )
        finally:
            guard.cancel()

    def _report(self, job: Held, reason: str) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed, nobody is left to tell
            self._loop.call_soon_threadsafe(self._lost, job, reason)

    def _drop(self) -> None:
        conn, self._conn = self._conn, None
        if conn is not None:
            with contextlib.suppress(psycopg.Error, OSError):
                conn.close()


class LoopWatch:
    """Notices from outside that an event loop stands still, and says what stops it."""

    def __init__(self, loop: asyncio.AbstractEventLoop, thread_id: int) -> None:
        self._loop = loop
        self._thread_id = thread_id
        self._asked_at: float | None = None
        self._warned = False

    def look(self) -> None:
        """Ask the loop for a sign of life, and warn when it has not answered the last one."""
        now = time.monotonic()
        if self._asked_at is None:
            self._asked_at = now
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._answer)
        elif not self._warned and now - self._asked_at > _BLOCKED_AFTER:
            self._warned = True
            logger.warning(
                "the event loop has stood still for %.1f s in %s; job functions that block belong "
                "into a plain def, which runs in a thread\n%s",
                now - self._asked_at,
                self._task_name(),
                self._stack(),
                extra={"event": "jobs.worker.loop_blocked"},
            )

    def _answer(self) -> None:
        asked_at, self._asked_at = self._asked_at, None
        if self._warned and asked_at is not None:
            self._warned = False
            logger.warning(
                "the event loop moves again after %.1f s",
                time.monotonic() - asked_at,
                extra={"event": "jobs.worker.loop_unblocked"},
            )

    def _task_name(self) -> str:
        with contextlib.suppress(RuntimeError):
            task = asyncio.current_task(self._loop)
            if task is not None:
                return f"task {task.get_name()}"
        return "some task"

    def _stack(self) -> str:
        frame = sys._current_frames().get(self._thread_id)
        return "".join(traceback.format_stack(frame, 12)) if frame is not None else ""
