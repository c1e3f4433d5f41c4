"""The budget, and what it means to keep it."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_name("budget.toml")
# How much more than measured a limit may allow: a half, and two for small counts. Less would fail
# where rows happen to find room on fewer pages, or a drain happens to take fewer statements.
_SLACK, _SPARE = 1.5, 2.0


def limits(*path: str) -> dict[str, Any]:
    """A table of the budget file."""
    table: Any = tomllib.loads(FILE.read_text("utf-8"))
    for key in path:
        table = table[key]
    found: dict[str, Any] = table
    return found


def verdict(what: str, measured: float, limit: float) -> str:
    """Why a count does not keep its limit, or nothing."""
    if measured > limit:
        return f"{what}: {measured:g} is above the budget of {limit:g}"
    if limit > measured * _SLACK + _SPARE:
        return f"{what}: {measured:g} is far below the budget of {limit:g}: lower it"
    return ""
