"""Renew the leases of all held jobs from a thread of its own.

A job function that blocks the event loop stops everything there, but not this thread and its own
connection, so its neighbours keep their leases. The same thread notices that the loop stands still
and says which task stops it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import TypeVarTuple

import psycopg

from jobs.errors import JobsError
from jobs.service.link import Guard, Target
from jobs.worker.held import Held, Holding
from jobs.worker.loopwatch import LoopWatch
from jobs_sql.lease import RenewLeasesRow, renew_leases

logger = logging.getLogger("jobs.worker")

Ts = TypeVarTuple("Ts")

MAX_BATCH = 1_000
_TICK = 0.25
# Between two renewals, however many reasons there are to hurry.
_HURRY_GAP = 0.25
_EXPECTED = (psycopg.Error, OSError, JobsError)


class Renewer:
    """A daemon thread that renews every third of a lease while anything is held.

    What it finds lost it reports through ``lost``, called in the event loop with the job and the
    reason. Besides the database's answer, a job counts as lost when no renewal of it has landed for
    a whole lease by this process's monotonic clock: nobody can know then who holds it.

    A job that an operator wants cancelled it reports through ``cancel``, at every renewal anew.
    """

    def __init__(
        self,
        target: Target,
        holding: Holding,
        worker: str,
        lease: timedelta,
        lost: Callable[[Held, str], None],
        cancel: Callable[[Held], None],
    ) -> None:
        self._target = target
        self._holding = holding
        self._worker = worker
        self._lease = lease
        self._lease_seconds = lease.total_seconds()
        self._every = self._lease_seconds / 3
        self._retry_every = min(1.0, self._every / 4)
        self._lost = lost
        self._cancel = cancel
        self._loop = asyncio.get_running_loop()
        self._watch = LoopWatch(self._loop, threading.get_ident())
        self._conn: psycopg.Connection[object] | None = None
        self._guard: Guard | None = None
        self._hurry = False
        self._stop = threading.Event()
        self._nudge = threading.Event()
        self._ended = asyncio.Event()
        self._thread = threading.Thread(target=self._serve, name="jobs-renewer", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def hurry(self) -> None:
        """Renew now: some lease is older than usual, or somebody wants a job cancelled."""
        self._hurry = True
        self._nudge.set()

    def end(self) -> None:
        """Let the thread end, without waiting for it."""
        self._stop.set()
        self._nudge.set()

    async def stop(self, grace: float = 2.0) -> None:
        """End the thread, cutting a renewal that does not answer within ``grace`` seconds."""
        self.end()
        for _ in range(2):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(grace):
                    await self._ended.wait()
                    return
            if (guard := self._guard) is not None:
                guard.cut()
        logger.error(
            "the renewal thread does not end", extra={"event": "jobs.worker.renewer_stuck"}
        )

    def _serve(self) -> None:
        due = time.monotonic() + self._every
        hurry_at = 0.0
        tick = min(_TICK, self._every / 4)
        while self._next_tick(tick) and not self._loop.is_closed():
            self._watch.look()
            now = time.monotonic()
            if now < due and not (self._hurry and now >= hurry_at):
                continue
            self._hurry = False
            landed = self._renew(self._holding.snapshot())
            hurry_at = time.monotonic() + _HURRY_GAP
            due = time.monotonic() + (self._every if landed else self._retry_every)
        self._drop()
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._ended.set)

    def _next_tick(self, seconds: float) -> bool:
        """Wait so long, or until there is a reason to hurry; return whether to go on."""
        self._nudge.wait(seconds)
        self._nudge.clear()
        return not self._stop.is_set()

    def _renew(self, held: list[Held]) -> bool:
        """Renew all; return whether each was answered for good."""
        landed = True
        for start in range(0, len(held), MAX_BATCH):
            if self._stop.is_set():
                return False
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
        except Exception as error:  # whatever it is, the next try may do better
            self._drop()
            logger.warning(
                "renewing %d leases failed: %s",
                len(batch),
                str(error),
                exc_info=None if isinstance(error, _EXPECTED) else error,
                extra={"event": "jobs.worker.renewal_failed", "jobs": len(batch)},
            )
            return False
        jobs = {(job.id, job.claims): job for job in batch}
        landed = True
        for row in rows:
            job = jobs[(row.id, row.claims)]
            if row.verdict == "renewed":
                job.renewed_at = asked_at
            elif row.verdict == "cancel":
                job.renewed_at = asked_at  # it keeps its lease until it has stopped
                self._tell(self._cancel, job)
            elif row.verdict == "lost":
                self._report(job, "the database has given it to another worker or ended it")
            elif job.completion_landed:
                job.renewed_at = asked_at  # our own open transaction holds the row: nobody else can
            else:
                landed = False  # somebody else holds the row for a moment: ask again soon
        return landed

    def _send(self, batch: list[Held]) -> list[RenewLeasesRow]:
        fresh = self._conn is None or self._conn.closed
        if self._conn is None or fresh:
            self._conn = self._target.open()
        # Waiting on a peer that hangs has no end of its own; this ends it in time to try again.
        with Guard(self._conn, self._every) as self._guard:
            if fresh:
                self._target.check(self._conn)
            return renew_leases(
                self._conn,
                ids=[job.id for job in batch],
                claims=[job.claims for job in batch],
                worker=self._worker,
                lease=self._lease,
            )

    def _report(self, job: Held, reason: str) -> None:
        self._tell(self._lost, job, reason)

    def _tell(self, whom: Callable[[*Ts], None], *what: *Ts) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed, nobody is left to tell
            self._loop.call_soon_threadsafe(whom, *what)

    def _drop(self) -> None:
        conn, self._conn = self._conn, None
        if conn is not None:
            with contextlib.suppress(psycopg.Error, OSError):
                conn.close()
