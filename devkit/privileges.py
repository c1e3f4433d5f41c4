"""How to run a program that refuses to run as root, without creating users.

PostgreSQL and PgBouncer both refuse the superuser. Two ways out, in order of preference:

* a user namespace (``unshare --user``): the program sees an ordinary user id while files are still
  opened with the rights of the caller, so nothing has to be chowned or made readable;
* ``setpriv``: a real change to another user, for containers that forbid user namespaces.

Both are meant for development and tests: the namespace keeps the caller's access to files.
"""

from __future__ import annotations

import functools
import os
import pwd
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Method = Literal["auto", "namespace", "setpriv"]


class PrivilegeError(RuntimeError):
    """The caller is root and no way to give up its privileges works here."""


@dataclass(frozen=True)
class Unprivileged:
    """Argument prefix under which a program is not root.

    ``prefix`` is empty for an ordinary user. ``uid`` and ``gid`` are set when files must be owned
    by another user for the program to use them (the ``setpriv`` way), else None.
    """

    prefix: tuple[str, ...] = ()
    uid: int | None = None
    gid: int | None = None

    def give(self, path: Path) -> None:
        """Make ``path`` (not what is below it) belong to the user the program runs as."""
        if self.uid is not None and self.gid is not None:
            os.chown(path, self.uid, self.gid)

    def runs(self, *argv: str | Path) -> bool:
        """Whether ``argv`` ends with status 0 behind the prefix."""
        command = [*self.prefix, *map(str, argv)]
        return subprocess.run(command, capture_output=True, check=False).returncode == 0


def known_to_passwd(uid: int) -> bool:
    """Whether the user database has a name for ``uid``; initdb refuses to run without one."""
    try:
        pwd.getpwuid(uid)
    except KeyError:
        return False
    return True


def _first_user(*names: str) -> pwd.struct_passwd | None:
    for name in names:
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    others = [entry for entry in pwd.getpwall() if entry.pw_uid != 0]
    return others[0] if others else None


def _namespace() -> Unprivileged | None:
    # The mapped id must have a name in the user database: a fixed 1000 fails on a bare image.
    user = _first_user("nobody", "postgres", "daemon")
    if user is None or shutil.which("unshare") is None:
        return None
    prefix = ("unshare", "--user", f"--map-user={user.pw_uid}", f"--map-group={user.pw_gid}", "--")
    found = Unprivileged(prefix)
    return found if found.runs("true") else None


def _setpriv() -> Unprivileged | None:
    user = _first_user("postgres", "nobody", "daemon")
    if os.geteuid() != 0 or user is None or shutil.which("setpriv") is None:
        return None
    ids = (f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups")
    found = Unprivileged(("setpriv", *ids, "--"), user.pw_uid, user.pw_gid)
    return found if found.runs("true") else None


@functools.cache
def unprivileged(method: Method = "auto") -> Unprivileged:
    """How to run a program as somebody else than root.

    method: ``auto`` needs nothing for an ordinary user and tries both ways for root; the other two
        insist on one way (for tests).
    Returns the prefix to put before the program. Raises PrivilegeError when no way works.
    """
    if method == "auto" and os.geteuid() != 0 and known_to_passwd(os.geteuid()):
        return Unprivileged()
    found = None
    if method in ("auto", "namespace"):
        found = _namespace()
    if found is None and method in ("auto", "setpriv"):
        found = _setpriv()
    if found is None:
        raise PrivilegeError(
            "PostgreSQL and PgBouncer refuse to run as root (or as a user id without a name), and "
            "neither `unshare --user` nor `setpriv` works here. Run as an ordinary user, or allow "
            "user namespaces in this container."
        )
    return found


def die_with_parent(signal_name: str) -> tuple[str, ...]:
    """Argument prefix that sends a program ``signal_name`` (INT, KILL) when its parent dies.

    It must stand right before the program: a change of user in between would clear the setting.
    Empty where the kernel has no such thing (anything but Linux). "Parent" is the *thread* that
    started the program, so start it from a thread that lives as long as the process.
    """
    if sys.platform != "linux" or shutil.which("setpriv") is None:
        return ()
    return ("setpriv", "--pdeathsig", signal_name, "--")
