"""``jobs worker``: run the jobs of an application until told to stop."""

from __future__ import annotations

import argparse
from collections.abc import Iterable

from jobs.cli.arguments import (
    Subcommands,
    add_dsn,
    add_name,
    add_seconds,
    add_target,
    dsn_of,
    seconds,
)
from jobs.cli.loading import load_registry
from jobs.cli.running import add_running, running
from jobs.cli.serving import add_listening, add_log_level, listen_of, serve
from jobs.registry import Registry
from jobs.service.life import Service
from jobs.worker import Worker
from jobs.worker.config import DEFAULT_SLOTS


def add_parser(sub: Subcommands) -> None:
    """Describe the command."""
    parser = sub.add_parser(
        "worker",
        help="run jobs until told to stop",
        description="Run the jobs of an application. SIGTERM or Ctrl-C asks for a stop: nothing "
        "more is claimed, running jobs may end, what is left after --drain is handed back. A "
        "second one hands it back now. Exit status 0 where every job was ended or handed back, 3 "
        "where some had to be left to their leases, or the process had to be ended by force.",
        allow_abbrev=False,
    )
    add_target(parser, "the jobs")
    add_dsn(parser)
    add_queues(parser)
    add_name(parser)
    add_seconds(
        parser,
        lease=(30.0, "how long a claim lasts unless renewed, which happens every third of it"),
        poll=(0.25, "first wait after a look at the queues that found nothing"),
        drain=(30.0, "how long a stop waits for running jobs before it hands them back"),
    )
    parser.add_argument(
        "--idle-poll",
        type=seconds,
        metavar="SECONDS",
        help="longest wait between two looks at empty queues (default: 2, or 5 while enqueues are "
        "heard)",
    )
    add_listening(parser, "enqueues")
    add_running(parser)
    parser.add_argument(
        "--until-idle",
        action="store_true",
        help="stop when nothing is due any more; exit status 0 whatever became of the jobs",
    )
    add_log_level(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run the command. Raises what `jobs.Worker` raises."""
    registry = load_registry(args.target)
    workers: list[Worker] = []
    return serve(_run(args, registry, workers), args.log_level, lambda: left(workers))


def left(services: Iterable[Service]) -> int:
    """How many jobs the workers among some services have left to their leases."""
    figures = [one.stats() for one in services if isinstance(one, Worker)]
    return sum(one.abandoned + one.unsettled for one in figures)


async def _run(args: argparse.Namespace, registry: Registry, workers: list[Worker]) -> None:
    dsn = dsn_of(args)
    async with running(args, dsn) as given:
        worker = Worker(
            dsn,
            registry,
            dict(args.queue) or queues_of(registry),
            name=args.name,
            lease=args.lease,
            poll=args.poll,
            idle_poll=args.idle_poll,
            drain=args.drain,
            listen=listen_of(args),
            **given,
        )
        workers.append(worker)
        await worker.run(until_idle=args.until_idle)


def add_queues(parser: argparse.ArgumentParser) -> None:
    """Give a command the option --queue."""
    parser.add_argument(
        "--queue",
        action="append",
        type=queue,
        default=[],
        metavar="NAME[=SLOTS]",
        help="a queue to serve and how many of its jobs may run at the same time (default: "
        f"{DEFAULT_SLOTS}); may be repeated; without it every queue of a job that is known",
    )


def queues_of(registry: Registry) -> dict[str, int]:
    """Every queue of a job that is known, with the default number of slots."""
    return dict.fromkeys(sorted({job.queue for job in registry}), DEFAULT_SLOTS)


def queue(text: str) -> tuple[str, int]:
    """Read NAME or NAME=SLOTS (an argparse type). A name that holds "=" needs slots behind it."""
    name, equals, slots = text.rpartition("=")
    return (name, int(slots)) if equals else (text, DEFAULT_SLOTS)
