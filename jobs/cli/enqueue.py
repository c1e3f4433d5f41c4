"""``jobs enqueue``: enqueue one job from a shell."""

from __future__ import annotations

import argparse
import sys
from typing import Any, Final

from pydantic import BaseModel

from jobs.cli.arguments import Subcommands, add_dsn, add_when, dsn_of, instant_of, job_id
from jobs.cli.loading import load_registry
from jobs.cli.output import add_json, print_fields, print_json
from jobs.connecting import session
from jobs.declare import JobHandle
from jobs.errors import ConfigError, InvalidInput, PayloadUnreadable
from jobs.registry import Registry

_NAMES_SHOWN: Final = 20


def add_parser(sub: Subcommands) -> None:
    """Describe the command."""
    parser = sub.add_parser(
        "enqueue",
        help="enqueue one job",
        description="Enqueue one job. The payload is checked by the job's declaration, which also "
        "derives tenant and idempotency key, as when the application enqueues it.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "target",
        metavar="MODULE[:REGISTRY]",
        help="the module that declares the job, or where in it a jobs.Registry is",
    )
    parser.add_argument("name", metavar="NAME", help="the job's name")
    parser.add_argument(
        "payload", metavar="JSON", help="the payload, a JSON object; - reads it from standard input"
    )
    add_dsn(parser)
    add_when(parser)
    parser.add_argument(
        "--priority", type=int, metavar="0..3", help="0 runs first; default: the declaration's"
    )
    parser.add_argument(
        "--id", metavar="UUID", help="an id of your own; one that exists enqueues nothing"
    )
    parser.add_argument("--enqueued-by", metavar="WHO", help="who asks, for audit")
    parser.add_argument(
        "--fail-if-exists",
        action="store_true",
        help="fail where a job has the key or the id; without it that job is the answer",
    )
    add_json(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run the command. Raises what `jobs.JobHandle.enqueue` raises."""
    handle = _handle(load_registry(args.target), args.name)
    run_at = instant_of(args)
    id = None if args.id is None else job_id(args.id)
    payload = _payload(handle, sys.stdin.read() if args.payload == "-" else args.payload)
    with session(dsn_of(args)) as conn:
        made = handle.enqueue(
            conn,
            payload,
            delay=args.delay,
            run_at=run_at,
            priority=args.priority,
            id=id,
            enqueued_by=args.enqueued_by,
            on_conflict="raise" if args.fail_if_exists else "return",
        )
    if args.json:
        print_json({**made._asdict(), "name": handle.name, "queue": handle.queue})
    else:
        print_fields([("status", made.status), ("id", made.id), ("queue", handle.queue)])
    return 0


def _handle(registry: Registry, name: str) -> JobHandle[Any]:
    handle = registry.get(name)
    if handle is None:
        known = [job.name for job in registry]
        more = "" if len(known) <= _NAMES_SHOWN else f" and {len(known) - _NAMES_SHOWN} more"
        raise ConfigError(
            f"there is no job {name!r}",
            fix=f"Name one of these: {', '.join(known[:_NAMES_SHOWN])}{more}.",
        )
    return handle


def _payload(handle: JobHandle[Any], text: str) -> BaseModel:
    """The payload as the model of the job, read as a worker will read it."""
    try:
        model: BaseModel = handle.parse(text)
    except PayloadUnreadable as error:
        raise InvalidInput(
            error.cause.removeprefix("the stored payload "),
            field="input",
            fix="""Pass one JSON object, quoted for the shell: '{"n": 1}'.""",
        ) from None
    return model
