"""Start a private PostgreSQL server from whatever binaries this machine has, also as root.

Used by tests, demo and benchmarks. From a shell::

    python -m devkit.postgres DIR             # foreground; prints the DSN, Ctrl-C stops the server
    python -m devkit.postgres DIR --detach    # prints the DSN and leaves the server running
    python -m devkit.postgres DIR --stop      # stops what --detach started

The server listens on a unix socket that only its owner can open; there is no password.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Literal, Self
from urllib.parse import quote

from devkit.binaries import LaunchError, find_bin, usable_by
from devkit.privileges import Method, Unprivileged, unprivileged
from devkit.process import spawn

__all__ = [
    "LaunchError",
    "Server",
    "find_bin",
    "start",
    "stop_running",
]

Mode = Literal["smart", "fast", "immediate", "kill"]

_SIGNALS: dict[str, signal.Signals] = {
    "smart": signal.SIGTERM,
    "fast": signal.SIGINT,
    "immediate": signal.SIGQUIT,
    "kill": signal.SIGKILL,
}
# sun_path of a unix socket address holds this many bytes before its terminating NUL.
SOCKET_PATH_LIMIT = 107 if sys.platform == "linux" else 103
_SOCKET_PORT = 5432
_LOCALE = "C.UTF-8" if sys.platform == "linux" else "C"
_POLL_SECONDS = 0.02

_DEFAULTS: dict[str, str] = {
    "unix_socket_permissions": "0700",
    "shared_preload_libraries": "pg_stat_statements",
    "jit": "off",
    "lc_messages": "C",
}
_NOT_DURABLE: dict[str, str] = {
    "fsync": "off",
    "synchronous_commit": "off",
    "full_page_writes": "off",
}


def socket_path(directory: Path, port: int = _SOCKET_PORT) -> Path:
    """Where a server with this socket directory and port puts its unix socket."""
    return directory / f".s.PGSQL.{port}"


def fits_socket_limit(directory: Path, port: int = _SOCKET_PORT) -> bool:
    """Whether the socket's path in ``directory`` fits into a unix socket address."""
    return len(os.fsencode(socket_path(directory, port))) <= SOCKET_PATH_LIMIT


def running_pid(root: Path | str) -> int | None:
    """The pid of the live server whose root is ``root``, or None.

    The pid file survives a crash, so a live process counts only when it runs on this data.
    """
    data = Path(root).absolute() / "data"
    try:
        pid = int((data / "postmaster.pid").read_text().split("\n", 1)[0])
        os.kill(pid, 0)
    except (OSError, ValueError):
        return None
    if sys.platform == "linux":
        # A zombie or an unrelated process that got the old number has another command line.
        try:
            if os.fsencode(data) not in Path(f"/proc/{pid}/cmdline").read_bytes():
                return None
        except OSError:
            return None
    return pid


class Server:
    """One private server: its files, its process, and how to reach it. Made by `start`.

    Also a context manager that stops the server at the end.
    """

    def __init__(
        self,
        root: Path,
        bindir: Path,
        settings: Mapping[str, str],
        *,
        tcp_port: int | None,
        with_parent: bool,
        user: Unprivileged,
        env: Mapping[str, str],
        timeout: float,
    ) -> None:
        self.root = root
        self.bindir = bindir
        self.data = root / "data"
        self.log = root / "log"
        self.settings = dict(settings)
        self.tcp_port = tcp_port
        self.socket_dir = root
        self._with_parent = with_parent
        self._user = user
        self._env = dict(env)
        self._timeout = timeout
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """Process id of the postmaster. Raises LaunchError when the server was stopped."""
        if self._process is None:
            raise LaunchError(f"the server in {self.root} is not running")
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether the postmaster lives."""
        return self._process is not None and self._process.poll() is None

    @property
    def major(self) -> int:
        """Major version of the data directory (15, 16, ...)."""
        return int((self.data / "PG_VERSION").read_text())

    @property
    def port(self) -> int:
        """The port number in the socket's name, and of TCP when that is on."""
        return self.tcp_port or _SOCKET_PORT

    def dsn(self, dbname: str = "postgres", *, tcp: bool = False) -> str:
        """Connection URI of a database, over the unix socket unless ``tcp`` is asked for."""
        name = quote(dbname, safe="")
        if tcp:
            if self.tcp_port is None:
                raise LaunchError("this server has no TCP port; start it with tcp_port=")
            return f"postgresql://postgres@127.0.0.1:{self.tcp_port}/{name}"
        host = quote(str(self.socket_dir), safe="/")
        return f"postgresql://postgres@/{name}?host={host}&port={self.port}"

    def launch(self) -> None:
        """Start the postmaster and wait until it takes connections.

        Recovers whatever a crash left. Raises LaunchError with the end of the log.
        """
        if (pid := running_pid(self.root)) is not None:
            raise LaunchError(f"a server is already running in {self.root} (pid {pid})")
        deadline = time.monotonic() + self._timeout
        while True:
            offset = self.log.stat().st_size if self.log.exists() else 0
            self._process = self._spawn()
            if self._ready(deadline):
                return
            said = self._log_since(offset)
            self.stop("kill")
            # Backends of a killed postmaster need a moment to see that it is gone.
            if "pre-existing shared memory block" in said and time.monotonic() < deadline:
                time.sleep(_POLL_SECONDS)
                continue
            raise LaunchError(f"PostgreSQL did not start in {self.root}:\n{said[-3000:]}")

    def _spawn(self) -> subprocess.Popen[bytes]:
        self.socket_dir = self._prepare_socket_dir()
        settings = {
            "listen_addresses": "127.0.0.1" if self.tcp_port else "",
            "port": str(self.port),
            "unix_socket_directories": str(self.socket_dir),
            **self.settings,
        }
        options = [part for key, value in settings.items() for part in ("-c", f"{key}={value}")]
        return spawn(
            [self.bindir / "postgres", "-D", self.data, *options],
            stdout=self.log,
            env=_server_env(self._env),
            user=self._user,
            death="INT" if self._with_parent else None,
        )

    def _prepare_socket_dir(self) -> Path:
        """The root itself, or a short directory below /tmp that is the same at every start."""
        if fits_socket_limit(self.root, self.port):
            return self.root
        digest = hashlib.sha256(os.fsencode(self.root)).hexdigest()[:12]
        # Not TMPDIR, which may be long as well.
        short = Path("/tmp", f"pg-{os.geteuid()}-{digest}")
        short.mkdir(mode=0o700, exist_ok=True)
        if short.is_symlink() or short.stat().st_uid not in (os.geteuid(), self._user.uid):
            raise LaunchError(f"{short} is not ours; use a shorter path than {self.root}")
        self._user.give(short)
        return short

    def _ready(self, deadline: float) -> bool:
        """Wait for the pid file to say ready *with our child's pid*: an old file says so too."""
        process = self._process
        while process is not None and process.poll() is None and time.monotonic() < deadline:
            with contextlib.suppress(OSError):
                lines = (self.data / "postmaster.pid").read_text().split("\n")
                if len(lines) >= 8 and lines[0] == str(process.pid) and lines[7].strip() == "ready":
                    return True
            time.sleep(_POLL_SECONDS)
        return False

    def _log_since(self, offset: int) -> str:
        with self.log.open("rb") as log:
            log.seek(offset)
            return log.read().decode(errors="replace")

    def stop(self, mode: Mode = "fast") -> None:
        """End the server and wait for it; nothing happens when it is down already.

        mode: ``smart`` waits for clients, ``fast`` ends their sessions, ``immediate`` is a crash
            with recovery at the next start, ``kill`` is SIGKILL on the postmaster.
        A server that does not end in time is ended by the next harder mode.
        """
        process, self._process = self._process, None
        if process is None:
            return
        for each in list(_SIGNALS)[list(_SIGNALS).index(mode) :]:
            if process.poll() is not None:
                break
            process.send_signal(_SIGNALS[each])
            process.send_signal(signal.SIGCONT)  # a frozen server must be able to obey
            try:
                process.wait(self._timeout / 2)
            except subprocess.TimeoutExpired:
                continue
        if self.socket_dir != self.root:
            shutil.rmtree(self.socket_dir, ignore_errors=True)  # made again by the next launch

    def restart(self, mode: Mode = "fast") -> None:
        """Stop in ``mode`` and start again on the same data, socket and port."""
        self.stop(mode)
        self.launch()

    def detach(self) -> None:
        """Forget the process, so that it outlives this object; `stop_running` ends it later."""
        if self._process is not None:
            self._process.returncode = 0  # else the destructor warns of a child still running
            self._process = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()


def _server_env(extra: Mapping[str, str]) -> dict[str, str]:
    """Our environment without the variables of libpq and of the locale."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PG", "LC_", "LANG"))}
    return kept | {"LC_ALL": _LOCALE} | dict(extra)


def _initdb(root: Path, bindir: Path, user: Unprivileged) -> None:
    """Create root/data in one rename, so that an interrupted initdb leaves nothing half made."""
    fresh = root / "data.new"
    shutil.rmtree(fresh, ignore_errors=True)
    options = ["-U", "postgres", "-A", "trust", "-E", "UTF8", f"--locale={_LOCALE}"]
    command = [*user.prefix, str(bindir / "initdb"), "-D", str(fresh), *options, "--no-sync"]
    done = subprocess.run(
        command, capture_output=True, text=True, env=_server_env({}), cwd="/", check=False
    )
    if done.returncode != 0:
        shutil.rmtree(fresh, ignore_errors=True)
        raise LaunchError(f"initdb failed in {root}:\n{done.stderr[-3000:]}")
    fresh.rename(root / "data")


def start(
    root: Path | str,
    *,
    durable: bool = True,
    tcp_port: int | None = None,
    bin: Path | str | None = None,
    die_with_parent: bool = True,
    settings: Mapping[str, str] = {},
    env: Mapping[str, str] = {},
    privileges: Method = "auto",
    timeout: float = 60.0,
) -> Server:
    """Start a server whose files live in ``root`` (created when missing, reused when there).

    durable: False turns fsync, synchronous commit and full page writes off (for tests).
    tcp_port: also listen on this port of 127.0.0.1.
    bin: directory of the binaries; default `find_bin`.
    die_with_parent: the server stops fast when this process dies, however it dies (Linux).
    settings: further server settings by name; they win over the defaults.
    env: further environment variables of the server.
    privileges: how to give up root; see devkit.privileges.
    timeout: seconds a start (crash recovery included) may take, and twice those a stop.
    Returns the running server. Raises LaunchError; writes below ``root`` (and a socket directory
    below /tmp when ``root`` is too long for a socket path).
    """
    place = Path(root).absolute()
    place.mkdir(parents=True, exist_ok=True, mode=0o700)
    user = unprivileged(privileges)
    user.give(place)
    bindir = usable_by(user, Path(bin).resolve() if bin else find_bin(), place)
    if not (place / "data" / "PG_VERSION").exists():
        _initdb(place, bindir, user)
    server = Server(
        place,
        bindir,
        _DEFAULTS | ({} if durable else _NOT_DURABLE) | dict(settings),
        tcp_port=tcp_port,
        with_parent=die_with_parent,
        user=user,
        env=env,
        timeout=timeout,
    )
    server.launch()
    return server


def stop_running(root: Path | str, mode: Mode = "fast", timeout: float = 30.0) -> bool:
    """Stop the server that runs in ``root``, whoever started it.

    Returns whether there was one; raises LaunchError when it is still there after ``timeout``
    seconds.
    """
    pid = running_pid(root)
    if pid is None:
        return False
    os.kill(pid, _SIGNALS[mode])
    os.kill(pid, signal.SIGCONT)
    deadline = time.monotonic() + timeout
    while running_pid(root) == pid:
        if time.monotonic() > deadline:
            raise LaunchError(f"the server in {root} (pid {pid}) did not stop in {timeout} s")
        time.sleep(_POLL_SECONDS)
    return True


def _main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m devkit.postgres", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("dir", type=Path, help="where the server keeps its files")
    parser.add_argument("--port", type=int, help="also listen on this port of 127.0.0.1")
    parser.add_argument("--detach", action="store_true", help="leave the server running")
    parser.add_argument("--stop", action="store_true", help="stop the server that runs in DIR")
    options = parser.parse_args(arguments)
    try:
        if options.stop:
            stopped = stop_running(options.dir)
            print("stopped" if stopped else f"no server runs in {options.dir}")
            return 0 if stopped else 1
        server = start(options.dir, tcp_port=options.port, die_with_parent=not options.detach)
    except (LaunchError, OSError, RuntimeError) as error:
        print(error, file=sys.stderr)
        return 1
    print(server.dsn(), flush=True)
    if options.detach:
        server.detach()
        return 0
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: server.stop())
    while running_pid(server.root) is not None:
        time.sleep(0.2)
    server.stop()
    return 0


if __name__ == "__main__":
    raise SystemExit(_main())
