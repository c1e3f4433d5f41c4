"""One module a rule: FILES says where it holds, problems() lists what breaks it."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Protocol, cast


class Rule(Protocol):
    """What each module of this package looks like."""

    __name__: str
    FILES: tuple[str, ...]

    def problems(self, text: str, path: Path) -> list[str]:
        """What is wrong with the text of one file, each as `line N: ...`."""


def all_rules() -> Iterator[tuple[str, Rule]]:
    """Name and module of every rule."""
    for found in iter_modules(__path__):
        yield found.name, cast(Rule, import_module(f"{__name__}.{found.name}"))
