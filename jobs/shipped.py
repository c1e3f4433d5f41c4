"""The files of schema/ as they ship with the library."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field
from importlib import resources

from jobs.errors import MigrationError

__all__ = ["Migration", "shipped"]

_BOM = b"\xef\xbb\xbf"
_FILE_NAME = re.compile(r"(\d{4})_[a-z0-9_]+\.sql")


@dataclass(frozen=True, slots=True)
class Migration:
    """One file of schema/.

    Attributes:
        version: Number in front of the file's name. 0 is the schema itself: it is sent only where
            the schema does not exist and never recorded.
        name: The file's name without its ending, for example ``0001_foundation``.
        checksum: SHA-256 of the file, in hexadecimal.
        text: The file as it is sent.
    """

    version: int
    name: str
    checksum: str
    text: bytes = field(repr=False)

    @classmethod
    def of(cls, file_name: str, data: bytes) -> Migration:
        """Make one of a file. Raises MigrationError for a name that has no place in the order."""
        match = _FILE_NAME.fullmatch(file_name)
        if match is None:
            raise MigrationError(
                f"schema file {file_name!r} is not called NNNN_what.sql",
                fix="Reinstall sql-jobs: its schema files are not as shipped.",
            )
        return cls(
            version=int(match[1]),
            name=file_name.removesuffix(".sql"),
            checksum=hashlib.sha256(data).hexdigest(),
            text=data.removeprefix(_BOM),
        )


def shipped() -> tuple[Migration, ...]:
    """The schema files of this version of the library, in order."""
    folder = resources.files("jobs_sql") / "schema"
    return tuple(
        Migration.of(entry.name, entry.read_bytes())
        for entry in sorted(folder.iterdir(), key=lambda entry: entry.name)
        if entry.name.endswith(".sql")
    )
