"""The files of the repository, as the lints see them."""

from __future__ import annotations

from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_SKIPPED = {"__pycache__", ".venv", "build", "dist", "node_modules"}
# Files that are wrong on purpose, or stand in for files of the tree.
_FIXTURES = ("tests/lint/bad", "tests/lint/good", "tests/lint/linters")
_HIDDEN = {".ci", ".github", ".gitignore", ".sqlfluff", ".squawk.toml"}


@cache
def files(*globs: str) -> tuple[Path, ...]:
    """Absolute paths of the files that match a glob, sorted; no caches, no fixtures of lints."""
    found = {path for glob in globs for path in ROOT.glob(glob) if path.is_file()}
    return tuple(sorted(path for path in found if _belongs(path)))


def _belongs(path: Path) -> bool:
    relative = path.relative_to(ROOT)
    if relative.as_posix().startswith(_FIXTURES):
        return False
    parts = relative.parts
    hidden = parts[0].startswith(".") and parts[0] not in _HIDDEN
    return not hidden and not _SKIPPED.intersection(parts) and not parts[-1].endswith(".pyc")


@cache
def read(path: Path) -> str:
    """The text of a file with its line ends and byte order mark as they are.

    Bytes that are no UTF-8 are U+FFFD, which the rule text_form refuses.
    """
    return path.read_bytes().decode("utf-8", errors="replace")


def line_of(text: str, position: int) -> int:
    """Number of the line, from 1, that holds the position."""
    return text.count("\n", 0, position) + 1


def module_of(path: Path) -> str:
    """Dotted name of a Python file under one of the two import roots."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    if parts[0] == "generated":
        parts = parts[1:]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
