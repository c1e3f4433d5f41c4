"""SQL files are plain text with Unix line ends: what psql sends is what the lints have read."""

from __future__ import annotations

from pathlib import Path

from tests.lint.tree import line_of

FILES = ("queries/**/*.sql", "schema/**/*.sql", "generated/**/*.sql")
_REFUSED = {
    "\ufeff": "a byte order mark",
    "\r": "a carriage return",
    "\t": "a tab",
    "\0": "a NUL",
    "\ufffd": "bytes that are no UTF-8",
    "\u00a0": "a no-break space",
    "\u200b": "a zero-width space",
}


def problems(text: str, path: Path) -> list[str]:
    """Characters that editors hide, and a last line without its end."""
    found = [
        f"line {line_of(text, text.index(character))}: {name}"
        for character, name in _REFUSED.items()
        if character in text
    ]
    if not text.endswith("\n"):
        found.append(f"line {line_of(text, len(text))}: no newline at the end of the file")
    elif text.endswith("\n\n"):
        found.append(f"line {line_of(text, len(text) - 1)}: blank lines at the end of the file")
    return found
