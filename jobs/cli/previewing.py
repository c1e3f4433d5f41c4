"""``jobs tasks list``, ``show`` and ``next``: look at schedules, and preview them."""

from __future__ import annotations

import argparse
from datetime import UTC, datetime
from typing import Any, Final

from jobs.cli.arguments import Subcommands, add_dsn, dsn_of, instant_of, seconds
from jobs.cli.loading import load_registry
from jobs.cli.output import add_json, print_fields, print_json, print_rows
from jobs.connecting import session
from jobs.control import Schedule, get_schedule, schedules
from jobs.errors import ConfigError, JobsError
from jobs.tasking import TaskHandle
from jobs.timetable import make, upcoming

_COLUMNS: Final = {
    "name": "NAME",
    "source": "SOURCE",
    "when": "WHEN",
    "tz": "ZONE",
    "catch_up": "CATCH UP",
    "enqueues": "JOB",
    "paused": "PAUSED",
    "following": "NEXT",
    "last_occurrence": "LAST FIRED FOR",
    "error": "ERROR",
}


# -- list and show --------------------------------------------------------------------------------


def add_list(commands: Subcommands) -> None:
    parser = commands.add_parser(
        "list",
        help="list schedules with their next occurrence and what is wrong with them",
        description="List all schedules, declared and made at run time, with their next "
        "occurrence, the last one that fired, and why one does not fire.",
        allow_abbrev=False,
    )
    add_dsn(parser)
    add_json(parser)
    parser.set_defaults(run=run_list)


def run_list(args: argparse.Namespace) -> int:
    """Run ``jobs tasks list``."""
    with session(dsn_of(args)) as conn:
        found = schedules(conn)
    if args.json:
        print_json({"schedules": [document(one) for one in found]})
        return 0
    if not found:
        print("no schedules")
    print_rows(
        [
            {
                **one._asdict(),
                "when": _when(one),
                "enqueues": one.job,
                "paused": "yes" if one.paused else "no",
                "following": local(following(one)),
                "last_occurrence": _local_of(one, one.last_occurrence),
            }
            for one in found
        ],
        _COLUMNS,
    )
    return 0


def run_show(args: argparse.Namespace) -> int:
    """Run ``jobs tasks show``. Raises ScheduleNotFound."""
    with session(dsn_of(args)) as conn:
        found = get_schedule(conn, args.name)
    if args.json:
        print_json(document(found))
        return 0
    fields = {**found._asdict(), "next": local(following(found))}
    print_fields(
        [(name.replace("_", " "), value) for name, value in fields.items() if value is not None]
    )
    return 0


def document(one: Schedule) -> dict[str, Any]:
    """A schedule as --json prints it."""
    fields = one._asdict()
    fields["every_seconds"] = fields.pop("every")
    return {**fields, "next": following(one)}


def following(one: Schedule) -> datetime | None:
    """The next occurrence that will fire; None where the row cannot be read."""
    try:
        return one.next(after=max(one.watermark, one.read_at))[0]
    except JobsError:
        return None


def _when(one: Schedule) -> str:
    return one.cron if one.cron is not None else f"every {one.every}"


def local(instant: datetime | None) -> str | None:
    """An occurrence as the clocks of its zone show it, with the offset."""
    if instant is None:
        return None
    return instant.isoformat(sep=" ", timespec="auto" if instant.microsecond else "seconds")


def _local_of(one: Schedule, instant: datetime | None) -> str | None:
    try:
        return None if instant is None else local(instant.astimezone(one.timetable().tz))
    except JobsError:
        return local(instant)


# -- next -----------------------------------------------------------------------------------------


def add_next(commands: Subcommands) -> None:
    parser = commands.add_parser(
        "next",
        help="preview the next occurrences",
        description="Preview the next occurrences of a schedule in the database, of a task that a "
        "module declares (--app), or of an expression that nobody has saved yet (--cron, --every), "
        "as the clocks of its zone will show them, with their offsets.",
        allow_abbrev=False,
    )
    parser.add_argument("name", metavar="NAME", nargs="?", help="the name of the task or schedule")
    parser.add_argument(
        "-n", type=int, default=5, metavar="N", dest="amount", help="how many (default: 5)"
    )
    parser.add_argument(
        "--app", metavar="MODULE[:REGISTRY]", help="look for the task here, not in the database"
    )
    add_timing(parser)
    parser.add_argument(
        "--after", metavar="TIME", dest="at", help="later than this time, which must have an offset"
    )
    add_dsn(parser)
    add_json(parser)
    parser.set_defaults(run=run_next)


def run_next(args: argparse.Namespace) -> int:
    """Run ``jobs tasks next``. Raises ScheduleInvalid, ScheduleNotFound."""
    after = instant_of(args, "--after")
    given = args.cron is not None or args.every is not None
    if given == (args.name is not None):
        raise ConfigError("name a task, or give --cron with --tz, or --every")
    if given:
        if after is None:
            after = datetime.now(UTC)
        table = make(cron=args.cron, every=args.every, tz=args.tz, anchor=anchor_of(args))
        found = upcoming(table, after, args.amount)
    elif args.app is not None:
        task = declared(args.app, args.name)
        found = task.next(datetime.now(UTC) if after is None else after, args.amount)
    else:
        with session(dsn_of(args)) as conn:
            found = get_schedule(conn, args.name).next(args.amount, after=after)
    if args.json:
        # In the zone of the schedule, which is what the preview is for.
        print_json({"name": args.name, "next": [one.isoformat() for one in found]})
        return 0
    for one in found:
        print(f"{one:%a} {local(one)}")
    return 0


def declared(target: str, name: str) -> TaskHandle:
    """A task that a module declares. Raises ConfigError, and what loading it raises."""
    registry = load_registry(target)
    task = registry.get_task(name)
    if task is None:
        known = ", ".join(one.name for one in registry.tasks) or "none"
        raise ConfigError(f"{target} has no task {name!r}", fix=f"It has: {known}.")
    return task


# -- when ------------------------------------------------------------------------------------------


def add_timing(parser: argparse.ArgumentParser) -> None:
    """Give a command what says when a schedule is due."""
    parser.add_argument("--cron", metavar="EXPRESSION", help="five fields, or @daily and the like")
    parser.add_argument("--tz", metavar="ZONE", help="the zone it goes by, such as Europe/Zurich")
    parser.add_argument(
        "--every", type=seconds, metavar="SECONDS", help="an interval instead of --cron"
    )
    parser.add_argument(
        "--anchor", metavar="TIME", help="an occurrence from which --every counts (default: 1970)"
    )


def anchor_of(args: argparse.Namespace) -> datetime | None:
    """The instant given as --anchor. Raises ConfigError."""
    return instant_of(argparse.Namespace(at=args.anchor), "--anchor")
