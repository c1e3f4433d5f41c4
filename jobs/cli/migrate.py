"""``jobs migrate``: install or upgrade the tables, or say what would be done."""

from __future__ import annotations

import argparse
import sys

from jobs.cli.arguments import Subcommands, add_dsn, dsn_of, seconds
from jobs.errors import ConfigError
from jobs.migrate import LOCK_TIMEOUT, PATIENCE, check, migrate, render


def add_parser(sub: Subcommands) -> None:
    """Describe the command."""
    parser = sub.add_parser(
        "migrate",
        help="install or upgrade the tables",
        description="Install or upgrade the tables in the schema jobs, in one transaction. Where "
        "they are up to date this locks nothing and changes nothing.",
        allow_abbrev=False,
    )
    add_dsn(parser)
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument(
        "--check",
        action="store_true",
        help="change nothing; exit status 0 where the tables are up to date, else 1",
    )
    mode.add_argument(
        "--print",
        action="store_true",
        dest="show",
        help="change nothing; print what is pending as a script for psql",
    )
    parser.add_argument(
        "--all",
        action="store_true",
        help="with --print: everything, for a database without the tables; connects to nothing",
    )
    parser.add_argument(
        "--lock-timeout",
        type=seconds,
        metavar="SECONDS",
        default=LOCK_TIMEOUT,
        help="how long one try may wait for a lock and so hold up others "
        f"(default: {LOCK_TIMEOUT.total_seconds():g})",
    )
    parser.add_argument(
        "--patience",
        type=seconds,
        metavar="SECONDS",
        default=PATIENCE,
        help=f"how long to go on trying (default: {PATIENCE.total_seconds():g})",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run the command. Raises JobsError; see `jobs.migrate` for which."""
    if args.all and not args.show:
        raise ConfigError("--all goes with --print only", fix="Add --print, or leave --all away.")
    if args.show:
        sys.stdout.write(render(None if args.all else dsn_of(args)))
        return 0
    if args.check:
        files = check(dsn_of(args))
        print(f"up to date: {files[-1].name}")
        return 0
    applied = migrate(dsn_of(args), lock_timeout=args.lock_timeout, patience=args.patience)
    for file in applied:
        print(f"applied {file.name}")
    if not applied:
        print("up to date, nothing to apply")
    return 0
