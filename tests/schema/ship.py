"""Schema files that a test makes up."""

from __future__ import annotations

from collections.abc import Callable

from jobs.shipped import Migration


class Ship:
    """What `jobs.migrate` finds in its package while a test runs."""

    def __init__(
        self, put: Callable[[tuple[Migration, ...]], None], real: tuple[Migration, ...]
    ) -> None:
        self._put = put
        self.real = real

    def __call__(self, *files: Migration) -> None:
        """Ship exactly these files."""
        self._put(files)

    def more(self, *texts: str | bytes) -> tuple[Migration, ...]:
        """Ship the real files and further ones with these texts. Returns the further ones."""
        later = self.later(*texts)
        self(*self.real, *later)
        return later

    def later(self, *texts: str | bytes) -> tuple[Migration, ...]:
        """Files that could follow the real ones, without shipping them."""
        first = self.real[-1].version + 1
        return tuple(
            Migration.of(
                f"{first + number:04}_made_up.sql",
                text.encode() if isinstance(text, str) else text,
            )
            for number, text in enumerate(texts)
        )
