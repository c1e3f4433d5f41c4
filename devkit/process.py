"""Start child processes that end with us, and prove that they ended."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from devkit.privileges import Unprivileged, die_with_parent

# The kernel's parent-death signal is bound to the thread that started the child, and a test may
# start a server from a short-lived thread: one thread that lives as long as the process starts all.
_spawner = ThreadPoolExecutor(max_workers=1, thread_name_prefix="devkit-spawner")


def spawn(
    command: Sequence[str | Path],
    *,
    stdout: Path,
    stderr: Path | None = None,
    env: Mapping[str, str] | None = None,
    cwd: Path | str = "/",
    user: Unprivileged | None = None,
    death: str | None = None,
) -> subprocess.Popen[bytes]:
    """Start ``command`` in a session of its own, with its output appended to files.

    stderr: default the same file as stdout.
    user: whom to run as (see devkit.privileges); default ourselves.
    death: name of the signal (INT, KILL) it gets when this process dies; None lets it live on.
    """
    prefix = user.prefix if user is not None else ()
    argv = [*prefix, *(die_with_parent(death) if death else ()), *map(str, command)]

    def run() -> subprocess.Popen[bytes]:
        with stdout.open("ab") as out, (stderr or stdout).open("ab") as err:
            return subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                env=dict(os.environ if env is None else env),
                cwd=cwd,
                start_new_session=True,
            )

    return _spawner.submit(run).result()


def end_with_parent() -> None:
    """From now on this process gets SIGKILL when the one that started it dies (Linux)."""
    if sys.platform != "linux":
        return
    set_parent_death_signal = 1
    ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGKILL)


def end_group(process: subprocess.Popen[bytes], timeout: float = 10.0) -> None:
    """Kill what `spawn` started, with its descendants, and wait for it.

    Raises subprocess.TimeoutExpired when it does not end within ``timeout`` seconds.
    """
    # The group's number stays taken while a member lives, so this cannot hit a stranger.
    if process.poll() is None or group_alive(process.pid):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    process.wait(timeout)


def group_alive(pgid: int) -> bool:
    """Whether a process group still has a member (one that nobody has waited for included)."""
    try:
        os.killpg(pgid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
