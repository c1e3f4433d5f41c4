"""Private directories in memory that do not outlive their run by more than one run.

A run that is killed with SIGKILL cannot tidy up. So every directory holds a file that its owner
keeps locked: the kernel drops the lock with the process, however that ended (a pid could be
reused), and the next run removes every directory whose lock is free, a server in it included.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from devkit.postgres import stop_running

_NEEDED_BYTES = 2 << 30


def memory_dir() -> Path:
    """/dev/shm when it has room for a test server (2 GiB), else the temporary directory."""
    shm = Path("/dev/shm")
    if os.access(shm, os.W_OK) and shutil.disk_usage(shm).free >= _NEEDED_BYTES:
        return shm
    return Path(tempfile.gettempdir())


def _try_lock(path: Path) -> IO[bytes] | None:
    handle = path.open("ab")
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        handle.close()
        return None
    return handle


def _sweep(home: Path) -> None:
    for place in home.iterdir():
        if not place.is_dir():
            continue
        lock = _try_lock(place / "lock")
        if lock is None:
            continue
        with lock:
            for data in place.glob("*/data"):
                stop_running(data.parent, "immediate")
            shutil.rmtree(place, ignore_errors=True)


@contextmanager
def run_dir(name: str, base: Path | None = None) -> Iterator[Path]:
    """A fresh private directory ``<base>/<name>-<uid>/<random>`` for the length of the block.

    base: default `memory_dir`. First removes the directories of earlier runs under the same name
    that ended without doing so.
    """
    home = (base or memory_dir()) / f"{name}-{os.geteuid()}"
    home.mkdir(mode=0o711, exist_ok=True)
    if home.is_symlink() or home.stat().st_uid != os.geteuid():
        raise PermissionError(f"{home} belongs to somebody else")
    # Two runs that start together must not take each other's half-made directory for a dead one.
    with (home / "lock").open("ab") as guard:
        fcntl.flock(guard, fcntl.LOCK_EX)
        _sweep(home)
        place = home / secrets.token_hex(4)
        place.mkdir(mode=0o711)
        held = (place / "lock").open("ab")
        fcntl.flock(held, fcntl.LOCK_EX)
    with held:
        try:
            yield place
        finally:
            shutil.rmtree(place, ignore_errors=True)
