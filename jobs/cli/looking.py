"""``jobs list``, ``show``, ``stats`` and ``workers``: look on, and change nothing."""

from __future__ import annotations

import argparse
from collections import Counter
from datetime import timedelta
from typing import Final, get_args

from jobs.cli.arguments import Subcommands, add_dsn, dsn_of, job_id, seconds
from jobs.cli.output import add_json, print_fields, print_json, print_rows
from jobs.connecting import session
from jobs.control import pauses
from jobs.inspect import (
    JobRecord,
    JobState,
    WorkerRecord,
    due_ages,
    get_job,
    list_attempts,
    list_jobs,
    list_workers,
    outcome_counts,
    queue_stats,
)

_PAGE: Final = 20
_COLUMNS: Final = {
    "id": "ID",
    "state": "STATE",
    "queue": "QUEUE",
    "name": "NAME",
    "tenant": "TENANT",
    "tries": "ATTEMPT",
    "done": "PROGRESS",
    "created_at": "CREATED",
    "ends": "DUE OR ENDED",
}
_WORKERS: Final = {
    "name": "NAME",
    "state": "STATE",
    "process": "PROCESS",
    "host": "HOST",
    "version": "VERSION",
    "started_at": "STARTED",
    "silent_for": "SILENT FOR",
    "serves": "QUEUES",
    "in_flight": "IN FLIGHT",
    "runs": "RUNNING",
    "completed": "COMPLETED",
    "retried": "RETRIED",
    "ended": "ENDED",
    "lost": "LOST",
}
_STATS: Final = {
    "queue": "QUEUE",
    "paused": "PAUSED",
    "ready": "READY",
    "delayed": "DELAYED",
    "running": "RUNNING",
    "suspended": "SUSPENDED",
    "blocked": "BLOCKED",
    "other": "OTHER",
    "dead": "DEAD",
    "oldest_ready": "OLDEST READY",
}


def add_parser(sub: Subcommands) -> None:
    """Describe the commands."""
    _add_list(sub)
    _add_show(sub)
    _add_stats(sub)
    _add_workers(sub)


# -- list -----------------------------------------------------------------------------------------


def _add_list(sub: Subcommands) -> None:
    parser = sub.add_parser(
        "list",
        help="list jobs, a page at a time",
        description="List live and finished jobs, newest first, without payloads. A page ends "
        "with the cursor of the next one; a walk along cursors sees each job exactly once.",
        allow_abbrev=False,
    )
    add_dsn(parser)
    parser.add_argument("--state", choices=get_args(JobState), help="only jobs in this state")
    parser.add_argument("--queue", metavar="NAME", help="only jobs of this queue")
    parser.add_argument("--name", metavar="NAME", help="only jobs of this name")
    parser.add_argument("--tenant", metavar="NAME", help="only jobs of this tenant; '' for none")
    parser.add_argument("--cursor", metavar="UUID", help="begin after this job")
    parser.add_argument("--oldest-first", action="store_true", help="in order of creation")
    parser.add_argument(
        "--limit", type=int, default=_PAGE, metavar="N", help=f"1 to 1000 jobs (default: {_PAGE})"
    )
    add_json(parser)
    parser.set_defaults(run=run_list)


def run_list(args: argparse.Namespace) -> int:
    """Run ``jobs list``. Raises what `jobs.inspect.list_jobs` raises."""
    cursor = None if args.cursor is None else job_id(args.cursor)
    with session(dsn_of(args)) as conn:
        page = list_jobs(
            conn,
            state=args.state,
            queue=args.queue,
            name=args.name,
            tenant=args.tenant,
            cursor=cursor,
            newest_first=not args.oldest_first,
            page_size=args.limit,
        )
    if args.json:
        jobs = [_without_input(job) for job in page.jobs]
        print_json({"jobs": jobs, "next_cursor": page.next_cursor})
        return 0
    print_rows([_row(job) for job in page.jobs], _COLUMNS)
    if not page.jobs:
        print("no jobs")
    if page.next_cursor is not None:
        print(f"more: --cursor {page.next_cursor}")
    return 0


def _without_input(job: JobRecord) -> dict[str, object]:
    fields = job._asdict()
    del fields["input"], fields["result"]  # a page does not read them
    return fields


def _row(job: JobRecord) -> dict[str, object]:
    state: str = "running (cancel requested)" if _cancelling(job) else job.state
    if job.state == "blocked" and job.concurrency_key is not None:
        state = f"blocked by {job.concurrency_key}"
    return {
        **job._asdict(),
        "state": state,
        "tries": f"{job.attempt}/{job.max_attempts}",
        "done": None if job.progress is None else f"{job.progress:.0%}",
        "ends": job.settled_at or (None if job.state == "running" else job.available_at),
    }


def _cancelling(job: JobRecord) -> bool:
    return job.state == "running" and job.cancel_requested_at is not None


# -- show -----------------------------------------------------------------------------------------


def _add_show(sub: Subcommands) -> None:
    parser = sub.add_parser(
        "show",
        help="show one job with its payload and its failed attempts",
        description="Show one job, live or finished, with its payload and its failed attempts.",
        allow_abbrev=False,
    )
    parser.add_argument("id", metavar="ID", help="the job's id")
    add_dsn(parser)
    parser.add_argument(
        "--tracebacks", action="store_true", help="with the traceback of each failed attempt"
    )
    add_json(parser)
    parser.set_defaults(run=run_show)


def run_show(args: argparse.Namespace) -> int:
    """Run ``jobs show``. Raises JobNotFound, and what `jobs.inspect` raises."""
    id = job_id(args.id)
    with session(dsn_of(args)) as conn:
        job = get_job(conn, id)
        attempts = list_attempts(conn, id)
    if args.json:
        print_json({**job._asdict(), "attempts": attempts})
        return 0
    fields = job._asdict()
    print_fields(
        [
            (name.replace("_", " "), value)
            for name, value in fields.items()
            if value is not None or name in ("tenant", "input")
        ]
    )
    if attempts:
        print("\nfailed attempts")
    print_rows(
        attempts,
        {
            "claims": "CLAIM",
            "attempt": "ATTEMPT",
            "failed_at": "FAILED",
            "worker": "WORKER",
            "error_type": "ERROR",
            "error_message": "MESSAGE",
        },
    )
    if args.tracebacks:
        for attempt in attempts:
            if attempt.traceback is not None:
                print(f"\nclaim {attempt.claims}")
                print("\n".join(_printable(attempt.traceback)))
    return 0


def _printable(text: str) -> list[str]:
    return ["  " + "".join(c if c.isprintable() else "?" for c in li) for li in text.splitlines()]


# -- stats ----------------------------------------------------------------------------------------


def _add_stats(sub: Subcommands) -> None:
    parser = sub.add_parser(
        "stats",
        help="how many jobs of each queue are where, and how jobs ended lately",
        description="How many jobs of each queue are in which state, how long the oldest due job "
        "of each priority has waited, what is paused, and how jobs of each name ended lately. "
        "Reads no completed job.",
        allow_abbrev=False,
    )
    add_dsn(parser)
    parser.add_argument(
        "--since",
        type=seconds,
        metavar="SECONDS",
        default=timedelta(hours=1),
        help="how far back to count outcomes (default: 3600)",
    )
    add_json(parser)
    parser.set_defaults(run=run_stats)


def run_stats(args: argparse.Namespace) -> int:
    """Run ``jobs stats``. Raises what `jobs.inspect` raises."""
    with session(dsn_of(args)) as conn:
        queues = queue_stats(conn)
        ages = due_ages(conn)
        outcomes = outcome_counts(conn, args.since)
        paused = pauses(conn)
    stopped = {one.name for one in paused if one.kind == "queue"}
    rows = [{**one._asdict(), "paused": one.queue in stopped} for one in queues]
    if args.json:
        print_json(
            {
                "queues": [_in_seconds(row) for row in rows],
                "due": [
                    {"queue": one.queue, "priority": one.priority, "oldest_seconds": one.oldest}
                    for one in ages
                ],
                "outcomes": outcomes,
                "outcomes_since_seconds": args.since,
                "pauses": paused,
            }
        )
        return 0
    print_rows([row | {"paused": "yes" if row["paused"] else "no"} for row in rows], _STATS)
    if not rows:
        print("no live or dead jobs")
    if any(one.priority for one in ages):
        print("\noldest due job of each priority")
        print_rows(ages, {"queue": "QUEUE", "priority": "PRIORITY", "oldest": "OLDEST DUE"})
    if outcomes:
        print(f"\noutcomes of the last {args.since.total_seconds():g} s")
        print_rows(outcomes, {"name": "NAME", "outcome": "OUTCOME", "amount": "JOBS"})
    if paused:
        print("\npaused")
        print_rows(
            paused, {"kind": "KIND", "name": "NAME", "paused_at": "SINCE", "paused_by": "BY"}
        )
    return 0


def _in_seconds(row: dict[str, object]) -> dict[str, object]:
    return {f"{key}_seconds" if key == "oldest_ready" else key: row[key] for key in row}


# -- workers --------------------------------------------------------------------------------------


def _add_workers(sub: Subcommands) -> None:
    parser = sub.add_parser(
        "workers",
        help="which worker processes there are, and what each is running",
        description="List the worker processes that were heard of in the last minute and a half. "
        "Each describes itself every 30 s; what runs now, and where, is what the jobs say "
        "(jobs list --state running).",
        allow_abbrev=False,
    )
    add_dsn(parser)
    parser.add_argument(
        "--running", action="store_true", help="with a line for each job that a worker runs"
    )
    add_json(parser)
    parser.set_defaults(run=run_workers)


def run_workers(args: argparse.Namespace) -> int:
    """Run ``jobs workers``. Raises what `jobs.inspect.list_workers` raises."""
    with session(dsn_of(args)) as conn:
        workers = list_workers(conn)
    if args.json:
        print_json({"workers": [_seconds_named(one) for one in workers]})
        return 0
    print_rows([_worker_row(one) for one in workers], _WORKERS)
    if not workers:
        print("no workers")
    if args.running:
        running = [
            {"id": job.id, "job": job.name, "worker": one.name, "process": one.process}
            for one in workers
            for job in one.running
        ]
        if running:
            print("\nrunning")
        columns = {"id": "ID", "job": "JOB", "worker": "WORKER", "process": "PROCESS"}
        print_rows(running, columns)
    return 0


def _seconds_named(worker: WorkerRecord) -> dict[str, object]:
    fields = worker._asdict()
    return {"silent_for_seconds" if key == "silent_for" else key: fields[key] for key in fields}


def _worker_row(worker: WorkerRecord) -> dict[str, object]:
    names = Counter(job.name for job in worker.running)
    shown = [name if count == 1 else f"{name} x {count}" for name, count in sorted(names.items())]
    if more := worker.in_flight - len(worker.running):
        shown.append(f"and {more} more")
    return {
        **worker._asdict(),
        "serves": ", ".join(f"{queue} ({slots})" for queue, slots in worker.queues.items()),
        "runs": ", ".join(shown),
    }
