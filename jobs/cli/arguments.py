"""Arguments that several commands share."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, TypeAlias

from jobs.errors import ConfigError

if TYPE_CHECKING:
    Subcommands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"
else:
    Subcommands = object

# Read in this order where --dsn is not given; then libpq reads its own.
DSN_VARIABLES = ("JOBS_DSN", "DATABASE_URL")

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9.-]*)(\+[A-Za-z0-9_]+)?://")


def add_dsn(parser: argparse.ArgumentParser) -> None:
    """Give a command the option --dsn, to be read with `dsn_of`."""
    parser.add_argument(
        "--dsn",
        metavar="DSN",
        help="connection string; default: the variable JOBS_DSN or DATABASE_URL, or libpq's own "
        "(PGHOST, PGDATABASE, PGSERVICE, ...). Prefer a variable where it holds a password.",
    )


def dsn_of(args: argparse.Namespace, environ: Mapping[str, str] = os.environ) -> str:
    """The connection string that a command was given; "" leaves everything to libpq.

    A URL that names a driver as SQLAlchemy does (``postgresql+psycopg://``) is read without it.

    Raises:
        ConfigError: It is the URL of something other than PostgreSQL.
    """
    given: str | None = args.dsn
    for source, value in (
        ("--dsn", given),
        *((variable, environ.get(variable)) for variable in DSN_VARIABLES),
    ):
        if not value:
            continue
        match = _SCHEME.match(value)
        if match is None:
            return value
        if match[1] not in ("postgresql", "postgres"):
            raise ConfigError(
                f"{source} is a URL of {match[1]!r}, not of PostgreSQL",
                fix="Pass --dsn postgresql://..., or set JOBS_DSN, which is read first.",
            )
        return f"{match[1]}://{value[match.end() :]}"
    return ""


def seconds(text: str) -> timedelta:
    """Read a number of seconds (an argparse type; raises ValueError, which argparse explains)."""
    try:
        return timedelta(seconds=float(text))
    except OverflowError:
        raise ValueError(text) from None
