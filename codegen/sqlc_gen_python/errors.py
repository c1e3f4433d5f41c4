"""What can be wrong with a statement, told to the person who wrote it."""

from __future__ import annotations


class GenerationError(Exception):
    """Raised when a statement cannot be compiled; the message names place, fact and fix."""

    def __init__(self, where: str, fact: str, fix: str) -> None:
        super().__init__(f"{where}: {fact}\n    fix: {fix}")


class GenerationErrors(Exception):  # noqa: N818  (the plural of the one above)
    """Raised at the end of a run with every problem found, so that one run shows them all."""

    def __init__(self, errors: list[GenerationError]) -> None:
        super().__init__("\n".join(str(error) for error in errors))
        self.errors = errors
