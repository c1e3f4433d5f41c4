"""``jobs version``: what is installed here, for a report."""

from __future__ import annotations

import argparse
import platform
from importlib import metadata

from psycopg import pq

from jobs.cli.arguments import Subcommands
from jobs.shipped import shipped


def add_parser(sub: Subcommands) -> None:
    """Describe the command."""
    parser = sub.add_parser(
        "version",
        help="print the versions of the library and of what it runs on",
        description="Print the versions of the library and of what it runs on.",
        allow_abbrev=False,
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run the command."""
    del args
    lines = {
        "sql-jobs": _version("sql-jobs"),
        "schema": shipped()[-1].name,
        "psycopg": f"{_version('psycopg')} ({pq.__impl__}, libpq {_libpq(pq.version())})",
        "pydantic": _version("pydantic"),
        "python": f"{platform.python_version()} ({platform.python_implementation()})",
    }
    for name, version in lines.items():
        print(f"{name} {version}")
    return 0


def _version(distribution: str) -> str:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return "(not installed as a distribution)"


def _libpq(number: int) -> str:
    return f"{number // 10000}.{number % 10000}"
