"""``jobs tasks``: look at schedules, preview them, and change those that are made at run time."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any, Final

from jobs.cli.arguments import Subcommands, add_dsn, dsn_of, instant_of
from jobs.cli.loading import load_registry
from jobs.cli.output import add_json, print_json, print_rows, shown
from jobs.cli.previewing import (
    add_list,
    add_next,
    add_timing,
    anchor_of,
    declared,
    document,
    following,
    local,
    run_show,
)
from jobs.cli.user import user
from jobs.connecting import session
from jobs.control import (
    Schedule,
    change_schedule,
    create_schedule,
    pause_task,
    rearm_schedule,
    remove_schedule,
    resume_task,
)
from jobs.errors import ConfigError
from jobs.handle import JobHandle
from jobs.tasking import DEFAULT_MAX_CATCH_UP
from jobs.timetable import CATCH_UPS

_FAILED: Final = 1


def add_parser(sub: Subcommands) -> None:
    """Describe the commands."""
    parser = sub.add_parser(
        "tasks",
        help="look at scheduled tasks, preview, pause and change them",
        description="Look at scheduled tasks, preview, pause and change them.",
        allow_abbrev=False,
    )
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    add_list(commands)
    add_next(commands)
    _add_fire(commands)
    _add_create(commands)
    _add_change(commands)
    for name, run, help, description in (
        ("show", run_show, "show one schedule", "Show one schedule with all that is known of it."),
        (
            "pause",
            run_pause,
            "let a task fire nothing until it is resumed",
            "Let a task fire nothing until it is resumed. What it misses is for its catch-up.",
        ),
        ("resume", run_resume, "let a paused task fire again", "Let a paused task fire again."),
        (
            "remove",
            run_remove,
            "remove a schedule",
            "Remove a schedule that was made at run time, or what is left of a task that no code "
            "declares any more. Exit status 1 where there is none.",
        ),
        (
            "rearm",
            run_rearm,
            "begin anew with the next occurrence",
            "Let a task begin anew with its next occurrence; what it has missed is dropped.",
        ),
    ):
        command = commands.add_parser(name, help=help, description=description, allow_abbrev=False)
        command.add_argument("name", metavar="NAME", help="the name of the task or schedule")
        add_dsn(command)
        if name == "pause":
            command.add_argument(
                "--by", metavar="WHO", help="who asks (default: the system's user)"
            )
        add_json(command)
        command.set_defaults(run=run)


# -- fire -----------------------------------------------------------------------------------------


def _add_fire(commands: Subcommands) -> None:
    parser = commands.add_parser(
        "fire",
        help="enqueue now what a declared task enqueues",
        description="Enqueue now what a declared task enqueues, as by hand: its schedule goes on "
        "as if nothing had been.",
        allow_abbrev=False,
    )
    parser.add_argument("app", metavar="MODULE[:REGISTRY]", help="where the task is declared")
    parser.add_argument("name", metavar="NAME", help="the task's name")
    parser.add_argument(
        "--occurrence",
        metavar="TIME",
        dest="at",
        help="what to give to the function (default: now); must have an offset",
    )
    parser.add_argument("--by", metavar="WHO", help="who asks (default: the system's user)")
    add_dsn(parser)
    add_json(parser)
    parser.set_defaults(run=run_fire)


def run_fire(args: argparse.Namespace) -> int:
    """Run ``jobs tasks fire``. Raises what `jobs.TaskHandle.fire` raises."""
    task, occurrence = declared(args.app, args.name), instant_of(args, "--occurrence")
    with session(dsn_of(args)) as conn:
        made = task.fire(conn, occurrence=occurrence, enqueued_by=args.by or user())
    if args.json:
        print_json({"jobs": made})
        return 0
    print_rows(made, {"id": "ID", "status": "STATUS"})
    if not made:
        print("it enqueues nothing")
    return 0


# -- create and change ----------------------------------------------------------------------------


def _add_policy(parser: argparse.ArgumentParser, catch_up: str | None, cap: int | None) -> None:
    parser.add_argument(
        "--catch-up",
        choices=CATCH_UPS,
        default=catch_up,
        help="what becomes of missed occurrences"
        + (f" (default: {catch_up})" if catch_up is not None else ""),
    )
    parser.add_argument(
        "--max-catch-up",
        type=int,
        metavar="N",
        default=cap,
        help="how many run_all fires at most" + (f" (default: {cap})" if cap is not None else ""),
    )


def _add_create(commands: Subcommands) -> None:
    parser = commands.add_parser(
        "create",
        help="make a schedule at run time",
        description="Make a schedule that enqueues a job, beginning with its next occurrence.",
        allow_abbrev=False,
    )
    parser.add_argument("app", metavar="MODULE[:REGISTRY]", help="where the job is declared")
    parser.add_argument("name", metavar="NAME", help="the schedule's name")
    parser.add_argument("job", metavar="JOB", help="the name of the job it enqueues")
    parser.add_argument(
        "payload", metavar="JSON", help="its payload, a JSON object; - reads it from standard input"
    )
    add_timing(parser)
    _add_policy(parser, "skip", DEFAULT_MAX_CATCH_UP)
    add_dsn(parser)
    add_json(parser)
    parser.set_defaults(run=run_create)


def run_create(args: argparse.Namespace) -> int:
    """Run ``jobs tasks create``. Raises what `jobs.control.create_schedule` raises."""
    handle, payload = _job(args.app, args.job), _payload(args.payload)
    anchor = anchor_of(args)
    with session(dsn_of(args)) as conn:
        made = create_schedule(
            conn,
            args.name,
            handle,
            payload,
            cron=args.cron,
            tz=args.tz,
            every=args.every,
            anchor=anchor,
            catch_up=args.catch_up,
            max_catch_up=args.max_catch_up,
        )
    return _print_changed(args, made, "created")


def _add_change(commands: Subcommands) -> None:
    parser = commands.add_parser(
        "change",
        help="change a schedule that was made at run time",
        description="Change a schedule that was made at run time. What is not given stays. With "
        "another timing it begins anew with its next occurrence.",
        allow_abbrev=False,
    )
    parser.add_argument("name", metavar="NAME", help="the schedule's name")
    add_timing(parser)
    _add_policy(parser, None, None)
    parser.add_argument("--app", metavar="MODULE[:REGISTRY]", help="where --job is declared")
    parser.add_argument("--job", metavar="JOB", help="the job it enqueues, with --app and --input")
    parser.add_argument("--input", metavar="JSON", help="its payload, a JSON object")
    add_dsn(parser)
    add_json(parser)
    parser.set_defaults(run=run_change)


def run_change(args: argparse.Namespace) -> int:
    """Run ``jobs tasks change``. Raises what `jobs.control.change_schedule` raises."""
    together = (args.app, args.job, args.input)
    if any(together) and not all(together):
        raise ConfigError("--app, --job and --input are given together")
    handle = _job(args.app, args.job) if args.job is not None else None
    payload = _payload(args.input) if args.input is not None else None
    anchor = anchor_of(args)
    with session(dsn_of(args)) as conn:
        changed = change_schedule(
            conn,
            args.name,
            job=handle,
            input=payload,
            cron=args.cron,
            tz=args.tz,
            every=args.every,
            anchor=anchor,
            catch_up=args.catch_up,
            max_catch_up=args.max_catch_up,
        )
    return _print_changed(args, changed, "changed")


def _job(target: str, name: str) -> JobHandle[Any]:
    handle = load_registry(target).get(name)
    if handle is None:
        raise ConfigError(f"{target} has no job {name!r}")
    return handle


def _payload(text: str) -> dict[str, Any]:
    try:
        payload = json.loads(sys.stdin.read() if text == "-" else text)
    except ValueError as error:
        raise ConfigError(f"the payload is not JSON: {error}") from None
    if not isinstance(payload, dict):
        raise ConfigError("the payload is no JSON object", fix="""Write '{"n": 1}', say.""")
    return payload


def _print_changed(args: argparse.Namespace, one: Schedule, done: str) -> int:
    if args.json:
        print_json(document(one))
    else:
        print(f"{done} {shown(one.name)}; next: {local(following(one))}")
    return 0


# -- pause, resume, remove, rearm -----------------------------------------------------------------


def run_pause(args: argparse.Namespace) -> int:
    """Run ``jobs tasks pause``."""
    with session(dsn_of(args)) as conn:
        changed = pause_task(conn, args.name, paused_by=args.by or user())
    return _said(args, {"paused": True, "changed": changed}, "paused", "was paused already")


def run_resume(args: argparse.Namespace) -> int:
    """Run ``jobs tasks resume``."""
    with session(dsn_of(args)) as conn:
        changed = resume_task(conn, args.name)
    return _said(args, {"paused": False, "changed": changed}, "resumed", "was not paused")


def run_remove(args: argparse.Namespace) -> int:
    """Run ``jobs tasks remove``."""
    with session(dsn_of(args)) as conn:
        changed = remove_schedule(conn, args.name)
    _said(args, {"changed": changed}, "removed", "is not there")
    return 0 if changed else _FAILED


def run_rearm(args: argparse.Namespace) -> int:
    """Run ``jobs tasks rearm``. Raises ScheduleNotFound."""
    with session(dsn_of(args)) as conn:
        return _print_changed(args, rearm_schedule(conn, args.name), "rearmed")


def _said(args: argparse.Namespace, outcome: dict[str, bool], done: str, otherwise: str) -> int:
    if args.json:
        print_json({"task": args.name, **outcome})
    else:
        print(f"task {shown(args.name)} {done if outcome['changed'] else otherwise}")
    return 0
