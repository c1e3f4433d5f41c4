"""``jobs cancel``, ``requeue``, ``pause`` and ``resume``: what an operator changes."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Final

from jobs.cli.arguments import Subcommands, add_dsn, add_when, dsn_of, instant_of, job_ids, seconds
from jobs.cli.output import add_json, print_json, print_rows, shown
from jobs.cli.user import user
from jobs.connecting import session
from jobs.control import (
    PATIENCE,
    Cancellation,
    Requeueing,
    cancel_many,
    pause,
    requeue_many,
    resume,
)

_FAILED: Final = 1


def add_parser(sub: Subcommands) -> None:
    """Describe the commands."""
    cancel = sub.add_parser(
        "cancel",
        help="cancel jobs",
        description="Cancel jobs. One that waits ends at once; a running one is asked to stop, and "
        "its worker hears of it with the next renewal of its lease. Exit status 0 where each was "
        "cancelled or asked to stop, else 1.",
        allow_abbrev=False,
    )
    cancel.add_argument("--reason", metavar="TEXT", help="why, kept with the job")
    _add_jobs(cancel)
    cancel.set_defaults(run=run_cancel)

    requeue = sub.add_parser(
        "requeue",
        help="run finished jobs again",
        description="Make jobs that are dead, failed or cancelled ready again, with all their "
        "attempts to come. Exit status 0 where each was requeued, else 1.",
        allow_abbrev=False,
    )
    requeue.add_argument(
        "--completed", action="store_true", help="completed jobs, too, which run once more"
    )
    add_when(requeue)
    _add_jobs(requeue)
    requeue.set_defaults(run=run_requeue)

    for name, help, description in (
        (
            "pause",
            "let no worker claim jobs of a queue",
            "Let no worker claim jobs of a queue until it is resumed. Those that run go on.",
        ),
        (
            "resume",
            "let workers claim jobs of a paused queue again",
            "Let workers claim jobs of a paused queue again.",
        ),
    ):
        parser = sub.add_parser(name, help=help, description=description, allow_abbrev=False)
        parser.add_argument("queue", metavar="QUEUE", help="the queue's name")
        add_dsn(parser)
        if name == "pause":
            parser.add_argument("--by", metavar="WHO", help="who asks (default: the system's user)")
        add_json(parser)
        parser.set_defaults(run=run_pause if name == "pause" else run_resume)


def _add_jobs(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("ids", metavar="ID", nargs="+", help="a job's id")
    add_dsn(parser)
    parser.add_argument(
        "--patience",
        type=seconds,
        metavar="SECONDS",
        default=PATIENCE,
        help="how long to ask again for jobs that other sessions hold just now "
        f"(default: {PATIENCE.total_seconds():g})",
    )
    add_json(parser)


def run_cancel(args: argparse.Namespace) -> int:
    """Run ``jobs cancel``. Raises what `jobs.control.cancel_many` raises."""
    ids = job_ids(args.ids)
    with session(dsn_of(args)) as conn:
        answers = cancel_many(conn, ids, reason=args.reason, patience=args.patience)
    _print(args, answers)
    done = all(answer.outcome in ("cancelled", "requested") for answer in answers)
    return 0 if done else _FAILED


def run_requeue(args: argparse.Namespace) -> int:
    """Run ``jobs requeue``. Raises what `jobs.control.requeue_many` raises."""
    ids, run_at = job_ids(args.ids), instant_of(args)
    with session(dsn_of(args)) as conn:
        answers = requeue_many(
            conn,
            ids,
            delay=args.delay,
            run_at=run_at,
            completed=args.completed,
            patience=args.patience,
        )
    _print(args, answers)
    return 0 if all(answer.outcome == "requeued" for answer in answers) else _FAILED


def run_pause(args: argparse.Namespace) -> int:
    """Run ``jobs pause``. Raises what `jobs.control.pause` raises."""
    with session(dsn_of(args)) as conn:
        changed = pause(conn, args.queue, paused_by=args.by or user())
    _print_queue(args, True, changed, "paused" if changed else "was paused already")
    return 0


def run_resume(args: argparse.Namespace) -> int:
    """Run ``jobs resume``. Raises what `jobs.control.resume` raises."""
    with session(dsn_of(args)) as conn:
        changed = resume(conn, args.queue)
    _print_queue(args, False, changed, "resumed" if changed else "was not paused")
    return 0


_CANCELLED: Final = {
    "cancelled": "it will not run",
    "requested": "its worker is told with the next renewal of its lease",
    "finished": "it had ended before",
    "busy": "another session holds it; try again",
    "unknown": "no job has this id",
}
_REQUEUED: Final = {
    "requeued": "its attempts begin anew",
    "live": "it has not ended",
    "completed": "say --completed to run it once more",
    "duplicate": "a live job has its idempotency key",
    "busy": "another session holds it; try again",
    "unknown": "no job has this id",
}


def _print(args: argparse.Namespace, answers: Sequence[Cancellation | Requeueing]) -> None:
    if args.json:
        print_json({"jobs": answers})
        return
    rows = []
    for answer in answers:
        meaning = (_CANCELLED if isinstance(answer, Cancellation) else _REQUEUED)[answer.outcome]
        if isinstance(answer, Requeueing) and answer.holder is not None:
            meaning += f": {answer.holder}"
        rows.append({**answer._asdict(), "meaning": meaning})
    print_rows(rows, {"id": "ID", "outcome": "OUTCOME", "state": "STATE", "meaning": "WHICH MEANS"})


def _print_queue(args: argparse.Namespace, paused: bool, changed: bool, words: str) -> None:
    if args.json:
        print_json({"queue": args.queue, "paused": paused, "changed": changed})
    else:
        print(f"queue {shown(args.queue)} {words}")
