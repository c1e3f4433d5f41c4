"""A TCP proxy in front of PostgreSQL that misbehaves on command.

It runs in a thread of its own, so that synchronous and asynchronous tests use it alike::

    with Proxy(server.socket_dir) as proxy:
        conn = psycopg.connect(proxy.dsn(dbname))
        proxy.cut("down", on=b"COMMIT")      # the commit happens, its answer is lost
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Literal, Self, TypeVar
from urllib.parse import quote

from devkit.postgres import socket_path

Way = Literal["up", "down"]
T = TypeVar("T")

_CHUNK = 65536
_PATIENCE_SECONDS = 10.0


@dataclass(frozen=True)
class _Cut:
    way: Way
    keep: int
    on: bytes | None


class _Link:
    """One client connection and its server connection."""

    def __init__(self, proxy: Proxy, client: asyncio.StreamWriter) -> None:
        self.proxy = proxy
        self.writers = [client]
        self.armed: _Cut | None = None

    def reset(self) -> None:
        """Drop both sides at once; the TCP side sees RST, as after a crash or from a firewall."""
        for writer in self.writers:
            sock = writer.get_extra_info("socket")
            if sock is not None and sock.fileno() >= 0 and sock.family == socket.AF_INET:
                linger = struct.pack("ii", 1, 0)
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            writer.transport.abort()

    async def pump(
        self, way: Way, source: asyncio.StreamReader, sink: asyncio.StreamWriter
    ) -> None:
        proxy = self.proxy
        while data := await source.read(_CHUNK):
            cut = proxy._cut
            if cut is not None and cut.on is not None and way == "up" and cut.on in data:
                self.armed = cut
            await proxy._flowing.wait()
            if proxy._delay:
                await asyncio.sleep(proxy._delay)
            cut = proxy._cut
            if cut is not None and cut.way == way and (cut.on is None or self.armed is cut):
                sink.write(data[: cut.keep])
                with contextlib.suppress(ConnectionError):
                    await sink.drain()
                proxy._cut = None
                proxy.was_cut.set()
                self.reset()
                return
            sink.write(data)
            await sink.drain()
        sink.close()


class Proxy:
    """Forwards connections from a port of 127.0.0.1 to a server, in one of these modes.

    ``ok``       forward everything
    ``drop``     reset every live connection and every new one, until another mode
    ``hang``     swallow what comes and forward nothing: peers stay connected and hear nothing
    ``delay``    forward each chunk after so many seconds
    ``cut``      forward a part of the next chunk, then reset that connection; once

    target: the socket directory of a local server, or (host, port).
    Start it by `start` or as a context manager. Every method may be called from any thread.
    """

    def __init__(self, target: Path | tuple[str, int], *, target_port: int = 5432) -> None:
        self._target: str | tuple[str, int] = (
            str(socket_path(target, target_port)) if isinstance(target, Path) else target
        )
        self.port = 0
        self.was_cut = threading.Event()
        self._cut: _Cut | None = None
        self._delay = 0.0
        self._refusing = False
        self._links: set[_Link] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def dsn(self, dbname: str, user: str = "postgres") -> str:
        """Connection URI of a database through this proxy."""
        return f"postgresql://{user}@127.0.0.1:{self.port}/{quote(dbname, safe='')}"

    @property
    def connections(self) -> int:
        """Number of live client connections."""
        return self._call(lambda: len(self._links))

    def ok(self) -> None:
        """Forward everything again, what `hang` held back included."""

        def change() -> None:
            self._refusing, self._delay, self._cut = False, 0.0, None
            self._flowing.set()

        self._call(change)

    def reset(self) -> None:
        """Reset every live connection; new ones are served."""
        self._call(self._reset)

    def drop(self) -> None:
        """Reset every live connection, and every new one from now on."""

        def change() -> None:
            self._refusing = True
            self._reset()

        self._call(change)

    def hang(self) -> None:
        """Forward nothing from now on; `ok` lets it flow again."""
        self._call(lambda: self._flowing.clear())

    def delay(self, seconds: float) -> None:
        """Forward each chunk of either way ``seconds`` late."""

        def change() -> None:
            self._delay = seconds

        self._call(change)

    def cut(self, way: Way, *, keep: int = 0, on: bytes | None = None) -> None:
        """Forward ``keep`` bytes of the next chunk of that way, then reset its connection; once.

        way: ``up`` (client to server: the server never sees the rest) or ``down`` (the server did
            what it was asked, the client does not hear of it).
        on: only for the connection that sends these bytes, from then on.
        ``was_cut`` is set when it has happened.
        """

        def change() -> None:
            self.was_cut.clear()
            self._cut = _Cut(way, keep, on)

        self._call(change)

    def start(self) -> Self:
        """Listen on a free port and serve from a thread of its own."""
        ready = threading.Event()
        failure: list[BaseException] = []

        def run() -> None:
            try:
                asyncio.run(self._serve(ready))
            except BaseException as error:
                failure.append(error)
                ready.set()

        self._thread = threading.Thread(target=run, name="devkit-proxy", daemon=True)
        self._thread.start()
        ready.wait(_PATIENCE_SECONDS)
        if failure:
            raise failure[0]
        return self

    def stop(self) -> None:
        """Reset every connection and end the thread."""
        thread, self._thread = self._thread, None
        if thread is None or self._loop is None:
            return
        self._loop.call_soon_threadsafe(self._stopping.set)
        thread.join(_PATIENCE_SECONDS)
        if thread.is_alive():
            raise RuntimeError("the proxy's thread did not end")

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    def _call(self, change: Callable[[], T]) -> T:
        """Run ``change`` in the proxy's thread and wait for it."""
        if self._loop is None:
            raise RuntimeError("the proxy was not started")

        async def apply() -> T:
            return change()

        return asyncio.run_coroutine_threadsafe(apply(), self._loop).result(_PATIENCE_SECONDS)

    def _reset(self) -> None:
        for link in self._links:
            link.reset()

    async def _serve(self, ready: threading.Event) -> None:
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._stopping = asyncio.Event()
        listener = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = listener.sockets[0].getsockname()[1]
        self._loop = asyncio.get_running_loop()
        ready.set()
        await self._stopping.wait()
        listener.close()
        self._flowing.set()
        self._reset()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._loop = None

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        link = _Link(self, writer)
        if self._refusing:
            link.reset()
            return
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._links.add(link)
        try:
            up_reader, up_writer = await self._connect()
            link.writers.append(up_writer)
            await asyncio.gather(
                link.pump("up", reader, up_writer),
                link.pump("down", up_reader, writer),
                return_exceptions=True,
            )
        except OSError:
            link.reset()  # the server is down: our client must see that
        finally:
            self._links.discard(link)
            self._tasks.discard(task)
            for each in link.writers:
                each.close()

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if isinstance(self._target, str):
            return await asyncio.open_unix_connection(self._target)
        return await asyncio.open_connection(*self._target)
