"""``jobs outbox``: what waits there, what is stuck and why, and having it tried again."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Final
from uuid import UUID

from jobs.cli.arguments import Subcommands, add_dsn, dsn_of, job_id, job_ids
from jobs.cli.output import add_json, print_fields, print_json, print_rows
from jobs.connecting import session
from jobs.errors import ConfigError, JobNotFound, PageInvalid
from jobs.outbox import discard, get_staged, list_staged, outbox_stats, prune, retry

_PAGE: Final = 20
_FAILED: Final = 1
_COLUMNS: Final = {
    "id": "ID",
    "state": "STATE",
    "staged_at": "STAGED",
    "queue": "QUEUE",
    "name": "NAME",
    "tenant": "TENANT",
    "refusals": "REFUSALS",
    "retry_at": "NEXT TRY",
    "last_error": "LAST ERROR",
}
_RETRIED: Final = {
    "waiting": "it is tried again with the next look",
    "published": "it had been published before",
    "unknown": "the outbox has no row of this id",
}


def add_parser(sub: Subcommands) -> None:
    """Describe the commands."""
    outbox = sub.add_parser(
        "outbox",
        help="look at staged jobs, and retry what is stuck",
        description="What waits in the outbox, what was set aside and why.",
        allow_abbrev=False,
    )
    verbs = outbox.add_subparsers(title="commands", metavar="COMMAND", required=True)
    _add(
        verbs,
        "stats",
        run_stats,
        "how much waits, since when and why; how much was set aside; who publishes",
    )
    listing = _add(
        verbs, "list", run_list, "what is not published, in the order of publishing, by pages"
    )
    which = listing.add_mutually_exclusive_group()
    which.add_argument("--waiting", action="store_true", help="only what waits")
    which.add_argument("--parked", action="store_true", help="only what was set aside")
    listing.add_argument(
        "--cursor", metavar="TIME/ID", help="begin behind that row, as a page ends with it"
    )
    listing.add_argument(
        "--limit", type=int, default=_PAGE, metavar="N", help=f"1 to 1000 rows (default: {_PAGE})"
    )
    show = _add(verbs, "show", run_show, "one row with its payload, published or not")
    show.add_argument("id", metavar="ID", help="the staged id")
    for name, run, text in (
        (
            "retry",
            run_retry,
            "have refused rows tried again now, held back or set aside, at their old place",
        ),
        ("discard", run_discard, "remove rows that were set aside: they are never published"),
    ):
        verb = _add(verbs, name, run, text)
        verb.add_argument("ids", metavar="ID", nargs="+", help="a staged id")
    pruning = _add(verbs, "prune", run_prune, "remove published rows after their time")
    pruning.add_argument("--keep-days", type=float, default=7.0, metavar="DAYS", help="default: 7")
    pruning.add_argument(
        "--limit", type=int, default=1_000, metavar="N", help="1 to 10000 rows (default: 1000)"
    )


def _add(
    verbs: Subcommands, name: str, run: Callable[[argparse.Namespace], int], text: str
) -> argparse.ArgumentParser:
    parser = verbs.add_parser(
        name, help=text, description=f"{text[0].upper()}{text[1:]}.", allow_abbrev=False
    )
    add_dsn(parser)
    add_json(parser)
    parser.set_defaults(run=run)
    return parser


def run_stats(args: argparse.Namespace) -> int:
    """Run ``jobs outbox stats``. Raises what `jobs.outbox.outbox_stats` raises."""
    with session(dsn_of(args)) as conn:
        stats = outbox_stats(conn)
    if args.json:
        print_json(stats)
        return 0
    print_fields((name.replace("_", " "), value) for name, value in stats._asdict().items())
    return 0


def run_list(args: argparse.Namespace) -> int:
    """Run ``jobs outbox list``. Raises what `jobs.outbox.list_staged` raises."""
    cursor = None if args.cursor is None else _cursor(args.cursor)
    with session(dsn_of(args)) as conn:
        page = list_staged(
            conn,
            state="parked" if args.parked else "waiting" if args.waiting else None,
            cursor=cursor,
            page_size=args.limit,
        )
    following = None
    if page.next_cursor is not None:
        following = f"{page.next_cursor[0].isoformat()}/{page.next_cursor[1]}"
    if args.json:
        print_json({"rows": page.rows, "next_cursor": following})
        return 0
    print_rows(page.rows, _COLUMNS)
    if not page.rows:
        print("nothing is staged" if cursor is None and args.parked is False else "no rows")
    if following is not None:
        print(f"more: --cursor {following}")
    return 0


def _cursor(text: str) -> tuple[datetime, UUID]:
    at, _, id = text.partition("/")
    try:
        return datetime.fromisoformat(at), UUID(id)
    except ValueError:
        raise PageInvalid(f"{text!r} is not the end of a page") from None


def run_show(args: argparse.Namespace) -> int:
    """Run ``jobs outbox show``. Raises what `jobs.outbox.get_staged` raises."""
    id = job_id(args.id)
    with session(dsn_of(args)) as conn:
        record = get_staged(conn, id)
    if args.json:
        print_json({**record._asdict(), "input": _decoded(record.input)})
        return 0
    print_fields((name.replace("_", " "), value) for name, value in record._asdict().items())
    return 0


def _decoded(text: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def run_retry(args: argparse.Namespace) -> int:
    """Run ``jobs outbox retry``. Raises what `jobs.outbox.retry` raises."""
    ids = job_ids(args.ids)
    with session(dsn_of(args)) as conn:
        states = retry(conn, ids)
    rows = [{"id": id, "state": state} for id, state in states.items()]
    if args.json:
        print_json({"rows": rows})
    else:
        print_rows(
            [{**row, "meaning": _RETRIED[str(row["state"])]} for row in rows],
            {"id": "ID", "state": "STATE", "meaning": "WHICH MEANS"},
        )
    return 0 if set(states.values()) == {"waiting"} else _FAILED


def run_discard(args: argparse.Namespace) -> int:
    """Run ``jobs outbox discard``. Raises what `jobs.outbox.discard` raises."""
    ids = job_ids(args.ids)
    with session(dsn_of(args)) as conn:
        gone = discard(conn, ids)
    kept = [id for id in ids if id not in set(gone)]
    if args.json:
        print_json({"discarded": gone, "kept": kept})
    else:
        for id in gone:
            print(f"{id} is discarded")
        for id in kept:
            print(f"{id} is not set aside: nothing was done")
    if not gone:
        raise JobNotFound("no row of these ids is set aside")
    return _FAILED if kept else 0


def run_prune(args: argparse.Namespace) -> int:
    """Run ``jobs outbox prune``. Raises what `jobs.outbox.prune` raises."""
    try:
        keep = timedelta(days=args.keep_days)
    except (OverflowError, ValueError):
        raise ConfigError(f"--keep-days: {args.keep_days} is no number of days") from None
    with session(dsn_of(args)) as conn:
        removed = prune(conn, keep=keep, most=args.limit)
    if args.json:
        print_json({"removed": removed, "maybe_more": removed == args.limit})
    else:
        more = ", and there may be more" if removed == args.limit else ""
        print(f"{removed} published rows removed{more}")
    return 0
