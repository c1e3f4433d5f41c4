"""What ships imports the standard library and the declared dependencies, and nothing else.

An adapter also imports the one library that it is named after.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.lint import python

FILES = ("jobs/**/*.py", "generated/**/*.py")
# Standard library of a Python newer than the oldest supported one; imported behind a version test.
_NEWER = {"annotationlib"}
_GENERATED = {"psycopg", "jobs_sql"}
_RUNTIME = _GENERATED | {
    *("croniter", "jobs", "psycopg_pool", "pydantic", "pydantic_core", "typing_extensions")
}


def problems(text: str, path: Path) -> list[str]:
    """Imports of other distributions; jobs_sql may only use psycopg."""
    allowed = _GENERATED if "jobs_sql" in path.parts else _RUNTIME
    if path.parent.name == "adapters":
        allowed = allowed | {path.stem}
    return [
        f"line {line}: imports {name}, which is no dependency"
        for line, name in _imports(python.tree(text))
        if name not in allowed | _NEWER and name not in sys.stdlib_module_names
    ]


def _imports(tree: ast.Module) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name.partition(".")[0]
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.lineno, node.module.partition(".")[0]
