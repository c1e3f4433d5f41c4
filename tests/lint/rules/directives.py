"""No file tells a linter to look away: exceptions are in its configuration, with reasons."""

from __future__ import annotations

import re
from pathlib import Path

from tests.lint.tree import line_of

FILES = ("queries/**/*.sql", "schema/**/*.sql")
_DIRECTIVE = re.compile(
    r"\bnoqa\b|\bsqlfluff:|\bsquawk-(?:ignore|disable)\S*|@sqlc-vet-disable", re.IGNORECASE
)


def problems(text: str, path: Path) -> list[str]:
    """Comments that switch off sqlfluff, squawk or sqlc for a line or a file."""
    return [
        f"line {line_of(text, match.start())}: {match[0]} silences a linter"
        for match in _DIRECTIVE.finditer(text)
    ]
