"""Start a PgBouncer in front of a server of devkit.postgres, where one is installed."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import psycopg

from devkit.postgres import fits_socket_limit
from devkit.privileges import unprivileged
from devkit.process import end_group, spawn

_PORT = 6432
_POLL_SECONDS = 0.02


class PgBouncerError(RuntimeError):
    """PgBouncer is not installed or did not start; the message holds its log."""


@dataclass(frozen=True)
class PgBouncer:
    """A running pooler."""

    socket_dir: Path
    pid: int

    def dsn(self, dbname: str) -> str:
        """Connection URI of a database through the pooler.

        Clients of PgBouncer before 1.21 must set psycopg's ``prepare_threshold=None``.
        """
        host = quote(str(self.socket_dir), safe="/")
        return f"postgresql://postgres@/{quote(dbname, safe='')}?host={host}&port={_PORT}"


def find() -> Path | None:
    """The program, or None when it is not installed."""
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/usr/local/sbin"])
    found = shutil.which("pgbouncer", path=path)
    return Path(found) if found else None


def _ini(root: Path, server_dir: Path, server_port: int, settings: Mapping[str, str]) -> str:
    options = {
        "listen_addr": "",
        "listen_port": str(_PORT),
        "unix_socket_dir": str(root),
        "unix_socket_mode": "0700",
        "auth_type": "trust",
        "auth_file": str(root / "users.txt"),
        "pool_mode": "transaction",
        "default_pool_size": "2",
        "max_client_conn": "200",
        "server_reset_query": "",
        "ignore_startup_parameters": "extra_float_digits",
        "admin_users": "postgres",
        **settings,
    }
    lines = ["[databases]", f"* = host={server_dir} port={server_port}", "[pgbouncer]"]
    return "\n".join([*lines, *(f"{key} = {value}" for key, value in options.items()), ""])


@contextmanager
def running(
    root: Path,
    server_dir: Path,
    *,
    server_port: int = 5432,
    settings: Mapping[str, str] = {},
    roles: Iterable[str] = (),
    timeout: float = 10.0,
) -> Iterator[PgBouncer]:
    """A pooler in transaction mode with two server connections, for the length of the block.

    root: a directory for its files and its socket; server_dir: the server's socket directory.
    settings: further or other settings of the section [pgbouncer].
    roles: who may connect besides the superuser.
    Raises PgBouncerError when it is not installed or does not answer within ``timeout`` seconds.
    """
    program = find()
    if program is None:
        raise PgBouncerError("pgbouncer is not installed (Debian: apt-get install pgbouncer)")
    if not fits_socket_limit(root, _PORT):
        raise PgBouncerError(f"{root} is too long for a unix socket path")
    user = unprivileged()
    root.mkdir(parents=True, exist_ok=True)
    config, users, log = root / "pgbouncer.ini", root / "users.txt", root / "log"
    config.write_text(_ini(root, server_dir, server_port, settings))
    users.write_text("".join(f'"{role}" ""\n' for role in ("postgres", *roles)))
    for path in (root, config, users):
        user.give(path)
    process = spawn([program, config], stdout=log, user=user, death="KILL")
    try:
        pooler = PgBouncer(root, process.pid)
        _wait_until_it_answers(pooler, process, log, timeout)
        yield pooler
    finally:
        end_group(process)


def _wait_until_it_answers(
    pooler: PgBouncer, process: subprocess.Popen[bytes], log: Path, timeout: float
) -> None:
    deadline = time.monotonic() + timeout
    while process.poll() is None and time.monotonic() < deadline:
        with (
            contextlib.suppress(psycopg.OperationalError),
            psycopg.connect(pooler.dsn("pgbouncer"), autocommit=True) as conn,
        ):
            conn.execute("show version")
            return
        time.sleep(_POLL_SECONDS)
    raise PgBouncerError(f"pgbouncer did not start:\n{log.read_text(errors='replace')[-3000:]}")
