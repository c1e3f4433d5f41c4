"""Reads the command line, runs one command, and says plainly what went wrong."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from typing import Final

import psycopg
from psycopg import errors

from jobs.cli import (
    enqueue,
    looking,
    migrate,
    operating,
    outbox,
    relay,
    run,
    scheduler,
    tasks,
    version,
    worker,
)
from jobs.cli.arguments import Subcommands
from jobs.cli.output import one_line
from jobs.errors import (
    ConfigError,
    ControlInvalid,
    InvalidInput,
    JobsError,
    ModuleShadowed,
    PageInvalid,
    ScheduleInvalid,
)

_ADD_PARSERS: Final[tuple[Callable[[Subcommands], None], ...]] = (
    migrate.add_parser,
    worker.add_parser,
    scheduler.add_parser,
    relay.add_parser,
    run.add_parser,
    enqueue.add_parser,
    looking.add_parser,
    operating.add_parser,
    outbox.add_parser,
    tasks.add_parser,
    version.add_parser,
)

_MISUSES: Final = (
    ConfigError,
    ControlInvalid,
    InvalidInput,
    ModuleShadowed,
    PageInvalid,
    ScheduleInvalid,
)

_FAILED = 1
_MISUSED = 2
_INTERRUPTED = 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return the exit status of the process.

    Args:
        argv: Arguments behind the command's name; those of the process by default.

    Returns:
        0 for success, 1 where the command failed, 2 where it was called wrongly, 3 where a worker
        left jobs to their leases, 130 after Ctrl-C.
        Errors of the library are printed to standard error with their cause, code and fix.
    """
    parser = argparse.ArgumentParser(
        prog="jobs", description="Durable background jobs on PostgreSQL.", allow_abbrev=False
    )
    sub = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for add_parser in _ADD_PARSERS:
        add_parser(sub)
    try:
        args = parser.parse_args(argv)
        command: Callable[[argparse.Namespace], int] = args.run
        status = command(args)
        if sys.stdout is not None:  # a process may be started without one
            sys.stdout.flush()
    except JobsError as error:
        cause, fix = one_line(error.cause), one_line(error.fix)
        print(f"error: {cause} [{error.code}]\nfix: {fix}", file=sys.stderr)
        return _MISUSED if isinstance(error, _MISUSES) else _FAILED
    except psycopg.Error as error:
        print(_said_by_database(error), file=sys.stderr)
        return _FAILED
    except BrokenPipeError:
        _forget_output()  # whoever read it had enough
        return _FAILED
    except KeyboardInterrupt:
        return _INTERRUPTED
    except OSError as error:
        print(f"error: {error}", file=sys.stderr)
        _forget_output()
        return _FAILED
    except SystemExit as end:  # argparse has printed what it has to say
        return end.code if isinstance(end.code, int) else _FAILED
    return status


def _forget_output() -> None:
    """Write what is left of the output nowhere: Python would complain again when it exits."""
    if sys.stdout is not None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _said_by_database(error: psycopg.Error) -> str:
    """An error of the database in the form of ours: what it says, its code, and what to do."""
    cause = (str(error).strip() or type(error).__name__).splitlines()[0]
    if isinstance(error, errors.UndefinedTable | errors.UndefinedColumn):
        fix = "Run `jobs migrate`: the tables are not there, or older than this version."
    elif isinstance(error, errors.InsufficientPrivilege):
        fix = "Let the owner grant this role what docs/install.md lists for what it does."
    else:
        fix = "See what the database says; nothing was changed."
    return f"error: {cause} [SQLSTATE {error.sqlstate or '(none)'}]\nfix: {fix}"
