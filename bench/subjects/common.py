"""What every subject has: jobs that leave a mark, and the calls the benchmark makes.

A subject runs in processes of its own. Its jobs are of four kinds, each with one number:

    noop    nothing
    nap     waits a millisecond, as if for a network
    hang    waits until the benchmark lets go, or for ever
    stamp   the number is the moment before the enqueue call: its distance to now is the latency

Each job that has run leaves one record in a file. That is one short system call and no load on the
database, the same for every subject, forks and several processes included.
"""

from __future__ import annotations

import asyncio
import os
import struct
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, ClassVar, Protocol

KINDS = ("noop", "nap", "hang", "stamp")
BATCH = 1_000
_FOR_EVER = 3_600.0


class _Marks:
    """A file of records, opened by the first one."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._file: int | None = None

    def add(self, record: bytes) -> None:
        if self._file is None:
            path = os.path.join(os.environ.get("BENCH_DIR", "."), self._name)
            self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.write(self._file, record)


_done = _Marks("done")
_begun = _Marks("begun")
_latencies = _Marks("latencies")
_pack = struct.Struct("d").pack
_now = time.monotonic  # one clock for all processes of a machine


def _let_go() -> bool:
    return os.path.exists(os.path.join(os.environ.get("BENCH_DIR", "."), "let-go"))


def noop(_value: float) -> None:
    """A job of kind noop."""
    _done.add(_pack(_now()))


async def nap(_value: float) -> None:
    """A job of kind nap."""
    await asyncio.sleep(0.001)
    _done.add(_pack(_now()))


def stamp(value: float) -> None:
    """A job of kind stamp."""
    _latencies.add(_pack(_now() - value))


async def hang(_value: float) -> None:
    """A job of kind hang."""
    _begun.add(_pack(_now()))
    if not _let_go():
        await asyncio.sleep(_FOR_EVER)
    _done.add(_pack(_now()))


def hang_in_thread(_value: float) -> None:
    """A job of kind hang for libraries whose handlers are synchronous."""
    _begun.add(_pack(_now()))
    if not _let_go():
        time.sleep(_FOR_EVER)
    _done.add(_pack(_now()))


class Producer(Protocol):
    """An open connection that enqueues."""

    async def one(self, kind: str, value: float) -> None:
        """One job by one call, committed."""

    async def many(self, kind: str, values: Sequence[float]) -> None:
        """At most BATCH jobs by the fastest documented call that returns their identity, or any."""


class Subject(ABC):
    """A library as it is measured.

    Attributes:
        name: As in the tables.
        distribution: Whose version is printed.
        requirements: What pip installs, pinned. None for what is installed already.
        oldest_python: It needs this version or a newer one.
        module: Imported when import time is measured.
        settings: Profile -> the settings in words.
        backlog: Profile -> the most jobs loaded for a drain; slow libraries take long to load.
        one: Jobs enqueued one by one; bulk: jobs enqueued by `many`.
        reach: The most jobs it runs at the same time in one process with its profile `wide`.
    """

    name = ""
    distribution = ""
    requirements: tuple[str, ...] | None = ()
    oldest_python = (3, 11)
    module = ""
    settings: ClassVar[dict[str, str]] = {}
    backlog: ClassVar[dict[str, int]] = {"defaults": 5_000, "tuned": 50_000}
    one = 500
    bulk = 20_000
    reach = 1_000
    #: Counts unfinished jobs cheaply; None where that is not possible.
    unfinished: str | None = None
    bulk_call = ""

    @abstractmethod
    def setup(self, dsn: str) -> None:
        """Install the schema."""

    @abstractmethod
    def producer(self, dsn: str) -> AbstractAsyncContextManager[Any]:
        """Open a `Producer`."""

    @abstractmethod
    async def work(self, dsn: str, profile: str) -> None:
        """Run a worker until the process is killed."""

    def run(self, dsn: str, profile: str) -> None:
        """Run `work` on the event loop that this library recommends."""
        asyncio.run(self.work(dsn, profile))
