"""``jobs scheduler``: fire scheduled tasks until told to stop."""

from __future__ import annotations

import argparse

from jobs.cli.arguments import Subcommands, add_dsn, add_name, add_seconds, add_target, dsn_of
from jobs.cli.loading import load_registry
from jobs.cli.serving import add_log_level, serve
from jobs.scheduler import Scheduler


def add_parser(sub: Subcommands) -> None:
    """Describe the command."""
    parser = sub.add_parser(
        "scheduler",
        help="fire scheduled tasks until told to stop",
        description="Fire the tasks of an application, and the schedules made at run time. Run as "
        "many as you like: of those that know the same tasks and jobs one leads, the others take "
        "over where it is gone, and each occurrence fires once. SIGTERM or Ctrl-C asks for a stop.",
        allow_abbrev=False,
    )
    add_target(parser, "the tasks and jobs")
    add_dsn(parser)
    add_name(parser)
    add_seconds(
        parser,
        lease=(30.0, "how long the others wait for a leader that does not answer, at most"),
        refresh=(10.0, "how soon a changed schedule or pause acts: one statement each time"),
        patience=(30.0, "how long the function of a task may take"),
        drain=(10.0, "how long a stop waits for the fire in flight"),
    )
    add_log_level(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run the command. Raises what `jobs.Scheduler` raises."""
    scheduler = Scheduler(
        dsn_of(args),
        load_registry(args.target),
        name=args.name,
        lease=args.lease,
        refresh=args.refresh,
        patience=args.patience,
        drain=args.drain,
    )
    return serve(scheduler.run(), args.log_level)
