"""The life of a service: start, serve until stopped, drain within bounds, and never start again."""

from __future__ import annotations

import asyncio
import contextlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from types import TracebackType
from typing import ClassVar, Literal, Self, TypeAlias

import psycopg

from jobs.errors import ConfigError, DatabaseUnreachable
from jobs.service.link import Link, close_links, open_links
from jobs.service.signals import on_stop_signal

State: TypeAlias = Literal["idle", "starting", "running", "draining", "stopped"]


class Service(ABC):
    """Base of what runs until it is stopped. A subclass says what it connects and what it does.

    In an application, on its event loop, ``async with service: ...`` serves until the block ends,
    then drains. As a process of its own, ``await service.run()`` serves until SIGTERM or SIGINT.
    """

    noun: ClassVar[str]
    """What it is called in messages."""

    name: str
    """Label of the process in rows and logs."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._state: State = "idle"
        self._stopping = asyncio.Event()
        self._hurrying = asyncio.Event()
        self._teardown: asyncio.Task[None] | None = None

    # -- what a subclass does --------------------------------------------------------------------

    @abstractmethod
    def _to_open(self) -> Sequence[Link]:
        """The connections that `start` opens before anything begins."""

    async def _open(self, links: Sequence[Link]) -> bool:
        """Open connections; return False where a stop came first. What it raises `start` raises."""
        return await open_links(links, self._stopping)

    async def _abort(self, links: Sequence[Link]) -> None:
        """Close what `_open` has opened: nothing has begun, nor will it. Never raises."""
        await close_links(links)

    @abstractmethod
    def _begin(self, links: Sequence[Link]) -> None:
        """Make the parts and start their tasks, in one step of the event loop."""

    @abstractmethod
    def _say_started(self) -> None:
        """Log that it serves."""

    @abstractmethod
    def _say_stopped(self) -> None:
        """Log what was done."""

    @abstractmethod
    def _halt(self) -> None:
        """Take up nothing more. Called after `_begin`, with each stop that is asked for."""

    @abstractmethod
    async def _drain(self) -> None:
        """After the stop: end what is in flight, within bounds."""

    @abstractmethod
    async def _close(self) -> None:
        """End what is left. Nothing here waits for the database. Called after `_drain` whatever."""

    # -- life ------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Connect and begin to serve. Where a stop comes first it is stopped.

        Raises:
            DatabaseUnreachable: No session can be opened.
            SchemaOutdated: The schema is missing or too old.
            ConfigError: It has been started before, or the event loop cannot be used.
        """
        if self._state != "idle":
            raise ConfigError(
                f"{self.noun} {self.name} is {self._state} and cannot be started again",
                fix=f"Make a new {self.noun.capitalize()}.",
            )
        if type(asyncio.get_running_loop()).__name__ == "ProactorEventLoop":
            raise ConfigError(
                "psycopg cannot use the ProactorEventLoop",
                fix=f"Run the {self.noun} with "
                "asyncio.Runner(loop_factory=asyncio.SelectorEventLoop).",
            )
        self._state = "starting"
        links = self._to_open()
        try:
            opened = await self._open(links)
            if opened:
                self._begin(links)
        except BaseException as error:
            await self._abort(links)
            self._state = "idle"
            if isinstance(error, psycopg.Error | TimeoutError | OSError):
                said = " ".join(str(error).split())
                raise DatabaseUnreachable(
                    f"{self.noun} {self.name} cannot connect: {said}"
                ) from error
            raise
        if not opened:
            await self._abort(links)
            self._state = "stopped"
            return
        self._state = "running"
        self._teardown = asyncio.create_task(self._run_down(), name="jobs:drain")
        if self._stopping.is_set():
            self._halt()
        self._say_started()

    def stop(self) -> None:
        """Ask for a drain: take up nothing more, let end what is in flight.

        Returns at once; `wait` waits for the end. Asking again hurries. Call it in the event loop;
        from elsewhere use ``loop.call_soon_threadsafe(service.stop)``.
        """
        if self._stopping.is_set():
            self._hurrying.set()
        self._stopping.set()
        if self._teardown is not None:
            self._halt()

    @property
    def stopping(self) -> bool:
        """Whether a stop has been asked for."""
        return self._stopping.is_set()

    async def wait(self) -> None:
        """Wait until it has stopped. Every step of the drain is bounded in time."""
        if self._teardown is not None:
            await asyncio.shield(self._teardown)

    async def run(self, *, signals: bool = True) -> None:
        """Start, serve until stopped, drain.

        Args:
            signals: Whether SIGTERM and SIGINT ask for a stop, and a second one hurries it. Only
                possible in the main thread.

        Raises as `start`. When it is cancelled it ends what is in flight and closes first.
        """
        with on_stop_signal(self.stop) if signals else contextlib.nullcontext():
            await self.start()
            await self._drained()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if not self._stopping.is_set():
            self.stop()
        await self._drained()

    async def _drained(self) -> None:
        """Wait for the end; a cancellation from outside asks for a hurried drain first."""
        try:
            await self.wait()
        except asyncio.CancelledError:
            self.stop()
            self.stop()
            await self.wait()
            raise

    async def _run_down(self) -> None:
        try:
            await self._stopping.wait()
            self._state = "draining"
            await self._drain()
        finally:
            await self._close()
            self._state = "stopped"
        self._say_stopped()
