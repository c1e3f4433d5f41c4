"""What a worker and its processes say to each other: pickled tuples, each behind its length.

Both ends are ours and of one version, on one host, over a pair of sockets that nobody else has.
"""

from __future__ import annotations

import asyncio
import pickle
import socket
import struct
import threading
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final
from uuid import UUID

_LENGTH: Final = struct.Struct("!Q")

Frame = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Work:
    """One attempt, as a process is told of it.

    Attributes:
        module: Where the handle of the job is found.
        qualname: Its name there.
        input: The payload as stored.
        tenant: What the declaration derives from the input.
        seconds: Longest duration of the attempt, None for no end.
        run: Arguments of `jobs.run.Run`.
    """

    module: str
    qualname: str
    input: str
    tenant: str | None
    seconds: float | None
    run: dict[str, UUID | str | int | datetime | None]


def packed(frame: Frame) -> bytes:
    """Return the bytes of a frame."""
    body = pickle.dumps(frame, protocol=pickle.HIGHEST_PROTOCOL)
    return _LENGTH.pack(len(body)) + body


async def read_frame(reader: asyncio.StreamReader) -> Frame:
    """Return the next frame. Raises IncompleteReadError or ConnectionError at the end."""
    (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
    frame: Frame = pickle.loads(await reader.readexactly(length))
    return frame


class Wire:
    """The blocking end of the pair, in a process. Several threads may send."""

    def __init__(self, end: socket.socket) -> None:
        self.socket = end
        self._sending = threading.Lock()

    def send(self, *frame: Any) -> None:
        """Send a frame; waits for room."""
        data = packed(frame)
        with self._sending:
            self.socket.sendall(data)

    def receive(self) -> Frame | None:
        """Wait for the next frame; None when the other end is gone."""
        try:
            head = self._exactly(_LENGTH.size)
            if head is None:
                return None
            body = self._exactly(_LENGTH.unpack(head)[0])
        except OSError:
            return None
        frame: Frame | None = None if body is None else pickle.loads(body)
        return frame

    def _exactly(self, count: int) -> bytes | None:
        data = bytearray()
        while len(data) < count:
            part = self.socket.recv(min(count - len(data), 1 << 20))
            if not part:
                return None
            data += part
        return bytes(data)
