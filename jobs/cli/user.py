"""Who runs a command."""

from __future__ import annotations

import getpass


def user() -> str | None:
    """The system's name of the user, for audit; None where it has none."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a container without an entry for its user
        return None
