"""Jobs whose every start and end is a row, so that a killed process leaves evidence."""

from __future__ import annotations

import asyncio
import atexit
import os
import signal
import threading
import time
from datetime import timedelta
from typing import Any

import psycopg
from psycopg import AsyncConnection, Connection
from pydantic import BaseModel

import jobs

EVENTS_DDL = """
create table public.event (
    number bigint generated always as identity primary key,
    at timestamptz not null default clock_timestamp(),
    pid integer not null,
    job uuid not null,
    claims bigint not null,
    attempt bigint not null,
    what text not null
);
create table public.effect (job uuid not null, claims bigint not null);
"""

_local = threading.local()


class Nap(BaseModel):
    """How long to take, and what the job is called in the test."""

    seconds: float = 0.0
    label: str = ""


def events_dsn() -> str:
    """Where the rows go: straight to the server, whatever stands between it and the worker."""
    return os.environ["EVENTS_DSN"]


def note(run: jobs.Run, what: str) -> None:
    """Write one row, committed when this returns."""
    row = (os.getpid(), run.id, run.claims, run.attempt, what)
    for last in (False, True):
        conn: Connection[Any] | None = getattr(_local, "conn", None)
        try:
            if conn is None or conn.closed:
                conn = _local.conn = psycopg.connect(events_dsn(), autocommit=True)
                atexit.register(conn.close)
            conn.execute(
                "insert into public.event (pid, job, claims, attempt, what)"
                " values (%s, %s, %s, %s, %s)",
                row,
            )
        except psycopg.OperationalError:
            _local.conn = None
            if last:
                raise
        else:
            return


def job(**options: Any) -> Any:
    """A job without key and tenant that is tried three times without delay."""
    retry = jobs.Retry(attempts=3, backoff="fixed", delay=timedelta(0), jitter=False)
    settings = {"tenant": jobs.NO_TENANT, "idempotency_key": jobs.NO_KEY, "retry": retry}
    return jobs.job(**(settings | options))


def die(settled: jobs.Settled[Nap]) -> None:
    """A hook that kills its process, once what it was told is on record."""
    with psycopg.connect(events_dsn(), autocommit=True) as conn:
        conn.execute(
            "insert into public.event (pid, job, claims, attempt, what) values (%s, %s, 0, %s, %s)",
            (os.getpid(), settled.id, settled.attempt, f"hook {settled.outcome}"),
        )
    os.kill(os.getpid(), signal.SIGKILL)


@job(on_settled=die)
async def hooked(input: Nap, run: jobs.Run) -> None:  # noqa: ARG001
    note(run, "start")


@job(on_settled=die, retry=jobs.Retry(attempts=1))
async def hooked_crash(_: Nap, run: jobs.Run) -> None:
    """Takes its process down, and its hook the one that buries it."""
    note(run, "start")
    os.kill(os.getpid(), signal.SIGKILL)


@job(retry=jobs.Retry(attempts=1))
async def quick(_: Nap) -> None:
    """Does nothing, and may do it once."""


@job(retry=jobs.Retry(attempts=1))
async def crash(_: Nap, run: jobs.Run) -> None:
    """Takes its process down."""
    note(run, "crash")
    os.kill(os.getpid(), signal.SIGKILL)


@job()
async def nap(input: Nap, run: jobs.Run) -> None:
    """Wait, and say how that ended."""
    note(run, "start")
    try:
        await asyncio.sleep(input.seconds)
    except asyncio.CancelledError:
        note(run, "cancelled")
        raise
    note(run, "end")


@job()
async def stubborn(input: Nap, run: jobs.Run) -> None:
    """Wait, and do not listen to anybody."""
    note(run, "start")
    until = time.monotonic() + input.seconds
    while (left := until - time.monotonic()) > 0:
        try:
            await asyncio.sleep(left)
        except asyncio.CancelledError:
            note(run, "deaf")
    note(run, "end")


@job()
async def block(input: Nap, run: jobs.Run) -> None:
    """Do to the event loop what no job should."""
    note(run, "start")
    time.sleep(input.seconds)  # noqa: ASYNC251  (on purpose)
    note(run, "end")


@job()
def thread_nap(input: Nap, run: jobs.Run) -> None:
    """Wait in a thread, without a look at the run."""
    note(run, "start")
    time.sleep(input.seconds)
    note(run, "end")


@job()
async def hidden_thread(input: Nap, run: jobs.Run) -> None:
    """Wait in a thread that the worker knows nothing of."""
    note(run, "start")
    await asyncio.to_thread(time.sleep, input.seconds)
    note(run, "end")


@job()
def polite(input: Nap, run: jobs.Run) -> None:
    """Wait in a thread, and stop when told."""
    note(run, "start")
    until = time.monotonic() + input.seconds
    while time.monotonic() < until:
        if run.cancelled:
            note(run, "stopped")
            raise RuntimeError("told to stop")
        time.sleep(0.01)
    note(run, "end")


@job()
async def complete(input: Nap, run: jobs.Run) -> None:
    """Write an effect and the end of the job in one transaction, open for a while."""
    note(run, "start")
    async with (
        await AsyncConnection.connect(events_dsn(), autocommit=True) as conn,
        conn.transaction(),
    ):
        await conn.execute("insert into public.effect values (%s, %s)", (run.id, run.claims))
        await run.complete(conn)
        note(run, "completing")
        await asyncio.sleep(input.seconds)
    note(run, "end")


@job()
async def fail_once(input: Nap, run: jobs.Run) -> None:
    """Raise in the first attempt."""
    note(run, "start")
    if run.attempt == 1:
        raise RuntimeError(f"{input.label}: the first attempt fails")
    note(run, "end")


@job(retry=jobs.Retry(attempts=2, backoff="fixed", delay=timedelta(seconds=2), jitter=False))
async def fail_once_slowly(_: Nap, run: jobs.Run) -> None:
    """Raise in the first attempt; the second one is two seconds later."""
    note(run, "start")
    if run.attempt == 1:
        raise RuntimeError("the first attempt fails")
    note(run, "end")


@job(name="one_at_a_time", concurrency=1)
async def one_at_a_time(input: Nap, run: jobs.Run) -> None:
    """Wait, while no other of this name runs in the fleet."""
    note(run, "start")
    try:
        await asyncio.sleep(input.seconds)
    except asyncio.CancelledError:
        note(run, "cancelled")
        raise
    note(run, "end")


@job(queue="other")
async def elsewhere(_: Nap, run: jobs.Run) -> None:
    """Of another queue."""
    note(run, "start")


async def _exits() -> None:
    """Let something out that ends a process, as a library does that calls ``sys.exit``."""
    raise SystemExit(7)


@job()
async def subtask_exits(input: Nap, run: jobs.Run) -> None:
    """Have a task of its own that ends the process, and go on all the same."""
    note(run, "start")
    task = asyncio.create_task(_exits())
    await asyncio.sleep(input.seconds)
    note(run, "end")
    del task


@job()
async def awaits_an_exit(_: Nap, run: jobs.Run) -> None:
    """Wait for such a task, in the first attempt."""
    note(run, "start")
    if run.attempt == 1:
        await asyncio.create_task(_exits())
    note(run, "end")
