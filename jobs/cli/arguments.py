"""Arguments that several commands share."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, TypeAlias
from uuid import UUID

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


def add_target(parser: argparse.ArgumentParser, what: str) -> None:
    """Give a command the argument MODULE[:REGISTRY]; ``what`` says what the module declares."""
    parser.add_argument(
        "target",
        metavar="MODULE[:REGISTRY]",
        help=f"the module that declares {what}, or where in it a jobs.Registry is",
    )


def add_name(parser: argparse.ArgumentParser) -> None:
    """Give a command that serves the option --name."""
    parser.add_argument(
        "--name",
        help="label of this process in rows and logs (default: host, process id, a random part)",
    )


def add_seconds(parser: argparse.ArgumentParser, **options: tuple[float, str]) -> None:
    """Give a command options that are durations: by name, the default and what it means."""
    for name, (default, text) in options.items():
        parser.add_argument(
            f"--{name}",
            type=seconds,
            metavar="SECONDS",
            default=timedelta(seconds=default),
            help=f"{text} (default: {default:g})",
        )


def job_id(text: str) -> UUID:
    """Read the id of a job.

    Raises:
        ConfigError: It is no UUID.
    """
    try:
        return UUID(text)
    except ValueError:
        raise ConfigError(
            f"{text!r} is not the id of a job",
            fix="Give the whole UUID as `jobs list` prints it.",
        ) from None


def job_ids(texts: Iterable[str]) -> list[UUID]:
    """Read ids, each once, in their order. Raises as `job_id`."""
    return list(dict.fromkeys(job_id(text) for text in texts))


def add_when(parser: argparse.ArgumentParser) -> None:
    """Give a command the options --delay and --at, to be read with `instant_of`."""
    when = parser.add_mutually_exclusive_group()
    when.add_argument("--delay", type=seconds, metavar="SECONDS", help="how long it waits at least")
    when.add_argument(
        "--at",
        metavar="TIME",
        help="not before this time, which must have an offset: 2026-03-08T02:30:00+01:00",
    )


def instant_of(args: argparse.Namespace, option: str = "--at") -> datetime | None:
    """The instant given as --at, or as another option that is kept under the same name.

    Raises:
        ConfigError: It is no time, or has no offset, so that nobody can tell which instant it is.
    """
    text: str | None = args.at
    if text is None:
        return None
    try:
        instant = datetime.fromisoformat(text)
    except ValueError:
        raise ConfigError(
            f"{option}: {text!r} is not a time",
            fix="Write it as 2026-03-08T02:30:00+01:00, or with Z for UTC.",
        ) from None
    if instant.utcoffset() is None:
        raise ConfigError(
            f"{option}: {text!r} has no offset, so nobody can tell which instant it is",
            fix="Add one, for example +01:00, or Z for UTC.",
        )
    return instant
