"""Nothing in the tree knows the machine, the account or the mirror it was written on."""

from __future__ import annotations

import re
from pathlib import Path

from tests.lint.tree import line_of

FILES = (
    "*",
    ".ci/*",
    ".github/**/*",
    *(
        f"{folder}/**/*"
        for folder in (
            "bench",
            "codegen",
            "devkit",
            "docs",
            "examples",
            "generated",
            "jobs",
            "queries",
            "schema",
            "tests",
        )
    ),
)
_REFUSED = {
    "a path of one machine": re.compile(
        r"(?<![\w.<>{}*-])/(?:root|work|home/\w+|Users/\w+)(?![\w-])"
    ),
    "the host of a registry": re.compile(
        r"\b(?:[\w-]+\.)*(?:pypi\.org|pythonhosted\.org|npmjs\.org|crates\.io)\b"
        r"|--(?:extra-)?index"
        r"-url\b"
    ),
}


def problems(text: str, path: Path) -> list[str]:
    """Absolute paths of home folders and work trees, and hosts that packages come from."""
    return [
        f"line {line_of(text, match.start())}: {match[0]} is {what}"
        for what, pattern in _REFUSED.items()
        for match in pattern.finditer(text)
    ]
