"""``jobs run``: worker, scheduler and relay in one process."""

from __future__ import annotations

import argparse

from jobs.cli.arguments import Subcommands, add_dsn, add_name, add_seconds, add_target, dsn_of
from jobs.cli.loading import load_registry
from jobs.cli.running import add_running, running
from jobs.cli.serving import add_listening, add_log_level, listen_of, serve
from jobs.cli.worker import add_queues, left, queues_of
from jobs.relay import Relay
from jobs.scheduler import Scheduler
from jobs.service.life import Service
from jobs.service.settings import default_name
from jobs.service.together import run_together
from jobs.worker import Worker


def add_parser(sub: Subcommands) -> None:
    """Describe the command."""
    parser = sub.add_parser(
        "run",
        help="run worker, scheduler and relay in one process",
        description="Run the jobs of an application, fire its tasks and publish its outbox, all in "
        "one process: for small deployments and for development. SIGTERM or Ctrl-C drains all of "
        "them; a second one hurries. When one of them cannot start, or fails, the others are "
        "drained and the command fails with its error.",
        allow_abbrev=False,
    )
    add_target(parser, "jobs and tasks")
    add_dsn(parser)
    add_queues(parser)
    parser.add_argument(
        "--to",
        metavar="DSN",
        help="where to publish the outbox: the database of another queue (default: the queue that "
        "is served here)",
    )
    for part in ("scheduler", "relay"):
        parser.add_argument(f"--no-{part}", action="store_true", help=f"leave the {part} away")
    add_name(parser)
    add_seconds(
        parser, drain=(30.0, "how long a stop waits for running jobs before it hands them back")
    )
    add_listening(parser, "enqueues and stages")
    add_running(parser)
    add_log_level(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run the command. Raises what the services raise."""
    registry = load_registry(args.target)
    dsn, listen = dsn_of(args), listen_of(args)

    services: list[Service] = []

    async def work() -> None:
        async with running(args, dsn) as given:
            workers = [
                Worker(
                    dsn,
                    registry,
                    dict(args.queue) or queues_of(registry),
                    # Left to the worker where none is given: only under a name that it has made
                    # may it ask for what a claim has given it whose answer was lost.
                    name=args.name,
                    drain=args.drain,
                    listen=listen,
                    **given,
                )
                for _ in range(1 if len(registry) else 0)
            ]
            name = workers[0].name if workers else args.name or default_name()
            if not args.no_scheduler:
                services.append(Scheduler(dsn, registry, name=name))
            if not args.no_relay:
                services.append(Relay(dsn, args.to, name=name, listen=listen))
            services.extend(workers)
            await run_together(services)

    return serve(work(), args.log_level, lambda: left(services))
