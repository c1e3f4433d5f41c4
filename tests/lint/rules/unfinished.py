"""What is in the tree is finished, or is not in the tree."""

from __future__ import annotations

import re
from pathlib import Path

from tests.lint.rules.machine_paths import FILES as FILES
from tests.lint.tree import line_of

# Written in two parts, so that this file does not find itself. Catching the error is fine: the
# standard library raises it for what a platform does not have.
_MARKS = re.compile(r"\b(?:TO" r"DO|FIX" r"ME|XX" r"X)\b|\braise\s+NotImplemented" r"Error\b")


def problems(text: str, path: Path) -> list[str]:
    """Marks of work left for later."""
    return [f"line {line_of(text, match.start())}: {match[0]}" for match in _MARKS.finditer(text)]
