"""``jobs relay``: publish what was staged until told to stop."""

from __future__ import annotations

import argparse
from datetime import timedelta
from typing import Any

from jobs.cli.arguments import Subcommands, add_dsn, add_name, add_seconds, dsn_of, seconds
from jobs.cli.loading import load_attribute
from jobs.cli.serving import add_listening, add_log_level, listen_of, serve
from jobs.errors import ConfigError
from jobs.relay import Relay, Sink


def add_parser(sub: Subcommands) -> None:
    """Describe the command."""
    parser = sub.add_parser(
        "relay",
        help="publish the outbox until told to stop",
        description="Publish what was staged in the outbox of a database: to its own queue, to "
        "that of another database, or to a broker. Any number may run, one at a time publishes. "
        "SIGTERM or Ctrl-C asks for a stop: the batch in flight is published and marked. A second "
        "one gives it up.",
        allow_abbrev=False,
    )
    add_dsn(parser)
    target = parser.add_mutually_exclusive_group()
    target.add_argument(
        "--to",
        metavar="DSN",
        help="the database of the queue (default: the queue beside the outbox)",
    )
    target.add_argument(
        "--nats", metavar="URL", help="a NATS server with JetStream; needs sql-jobs[nats]"
    )
    target.add_argument(
        "--sink",
        metavar="MODULE:NAME",
        help="a sink of the application, or a function without arguments that makes one",
    )
    parser.add_argument(
        "--subject-prefix",
        metavar="TEXT",
        default="jobs",
        help="with --nats: the subject is TEXT.<queue>.<name> (default: jobs)",
    )
    add_name(parser)
    parser.add_argument(
        "--batch", type=int, default=100, metavar="N", help="most rows at a time (default: 100)"
    )
    add_seconds(
        parser,
        interval=(0.2, "first wait after a look that found nothing"),
        lease=(30.0, "how long another relay waits for one that has died"),
        drain=(10.0, "how long a stop waits for the batch in flight"),
    )
    parser.add_argument(
        "--idle-poll",
        type=seconds,
        metavar="SECONDS",
        help="longest wait between two looks at an empty outbox (default: 2, or 5 while stages "
        "are heard)",
    )
    parser.add_argument(
        "--keep-days",
        type=float,
        default=7.0,
        metavar="DAYS",
        help="how long published rows are kept (default: 7); a negative number keeps them for ever",
    )
    parser.add_argument(
        "--park-after",
        type=int,
        default=10,
        metavar="N",
        help="set a row aside that was refused so often (default: 10); 0 for never",
    )
    add_listening(parser, "stages")
    parser.add_argument(
        "--until-idle", action="store_true", help="stop when nothing is left that can be published"
    )
    add_log_level(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run the command. Raises what `jobs.Relay` raises."""
    try:
        keep = None if args.keep_days < 0 else timedelta(days=args.keep_days)
    except (OverflowError, ValueError):
        raise ConfigError(f"--keep-days: {args.keep_days} is no number of days") from None
    sink = _sink(args)

    async def work() -> None:
        relay = Relay(
            dsn_of(args),
            sink,
            name=args.name,
            batch=args.batch,
            interval=args.interval,
            idle_poll=args.idle_poll,
            lease=args.lease,
            drain=args.drain,
            keep=keep,
            park_after=args.park_after or None,
            listen=listen_of(args),
        )
        await relay.run(until_idle=args.until_idle)

    return serve(work(), args.log_level)


def _sink(args: argparse.Namespace) -> Any:
    if args.nats is not None:
        try:
            from jobs.adapters.nats import JetStream  # its dependency is optional
        except ImportError as error:
            raise ConfigError(
                f"--nats: {error}", fix="Install what it needs: pip install 'sql-jobs[nats]'."
            ) from error
        return JetStream(args.nats, subject=args.subject_prefix)
    if args.sink is None:
        return args.to
    made = load_attribute(args.sink)
    if not isinstance(made, Sink) or isinstance(made, type):
        made = made() if callable(made) else made
    if not isinstance(made, Sink):
        raise ConfigError(
            f"--sink: {args.sink} is a {type(made).__qualname__}, and no sink",
            fix="Name an object with the methods of jobs.relay.Sink, or a function that makes one.",
        )
    return made
