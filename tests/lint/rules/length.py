"""A file has one subject, and one sitting is enough to review it."""

from __future__ import annotations

from pathlib import Path

FILES = ("jobs/**/*.py", "codegen/**/*.py", "devkit/**/*.py", "tests/**/*.py")
LIMIT = 450


def problems(text: str, path: Path) -> list[str]:
    """Files above the limit."""
    lines = len(text.splitlines())
    return [f"line {LIMIT}: the file goes on to line {lines}, split it"] if lines > LIMIT else []
