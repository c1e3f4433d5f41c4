"""Start a NATS server with JetStream, where one is installed."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from devkit.process import end_group, spawn

_POLL_SECONDS = 0.02


class NatsError(RuntimeError):
    """The server is not installed or did not start; the message holds its log."""


@dataclass(frozen=True)
class NatsServer:
    """A running server."""

    url: str
    pid: int


def find() -> Path | None:
    """The program, or None when it is not installed."""
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/usr/local/sbin"])
    found = shutil.which("nats-server", path=path)
    return Path(found) if found else None


def free_port() -> int:
    """A port of this machine that nobody listens on just now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def running(root: Path, *, port: int | None = None, timeout: float = 10.0) -> Iterator[NatsServer]:
    """A server with JetStream on 127.0.0.1, its files in ``root``, for the length of the block.

    Raises NatsError when it is not installed or does not listen within ``timeout`` seconds.
    """
    program = find()
    if program is None:
        raise NatsError("nats-server is not installed (Debian: apt-get install nats-server)")
    root.mkdir(parents=True, exist_ok=True)
    port, log = port or free_port(), root / "log"
    process = spawn(
        [program, "--addr", "127.0.0.1", "--port", str(port), "--jetstream", "--store_dir", root],
        stdout=log,
        stderr=log,
        death="KILL",
    )
    try:
        _wait_until_it_listens(port, process, log, timeout)
        yield NatsServer(f"nats://127.0.0.1:{port}", process.pid)
    finally:
        end_group(process)


def _wait_until_it_listens(
    port: int, process: subprocess.Popen[bytes], log: Path, timeout: float
) -> None:
    deadline = time.monotonic() + timeout
    while process.poll() is None and time.monotonic() < deadline:
        with socket.socket() as probe:
            probe.settimeout(_POLL_SECONDS)
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(_POLL_SECONDS)
    raise NatsError(f"nats-server did not start:\n{log.read_text(errors='replace')[-3000:]}")
