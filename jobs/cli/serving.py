"""What the commands that serve until they are told to stop have in common."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import os
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, Final

from jobs.cli.output import one_line

logger = logging.getLogger("jobs.worker")

# Seconds between the stop of a service and the end of the process.
_EXIT_GRACE = 2.0
LEFT: Final = 3
"""Exit status of a service that has stopped and left something behind: jobs that did not stop, or
outcomes that could not be settled, are left to their leases; or it was ended by force."""
_LEVELS = ("debug", "info", "warning", "error")


def add_log_level(parser: argparse.ArgumentParser) -> None:
    """Give a command the option --log-level, to be handed to `serve`."""
    parser.add_argument(
        "--log-level",
        choices=_LEVELS,
        default="info",
        help="least severe events to write to standard error (default: info)",
    )


def add_listening(parser: argparse.ArgumentParser, what: str) -> None:
    """Give a command the options --listen-dsn and --no-listen, to be read with `listen_of`."""
    listening = parser.add_mutually_exclusive_group()
    listening.add_argument(
        "--listen-dsn",
        metavar="DSN",
        help=f"where to listen for {what}: a direct connection string, where --dsn leads to a "
        "pooler in transaction mode (default: as --dsn)",
    )
    listening.add_argument("--no-listen", action="store_true", help="do not listen, only look")


def listen_of(args: argparse.Namespace) -> Any:
    """What `add_listening` was given, as services take it."""
    return False if args.no_listen else args.listen_dsn or "auto"


def serve(
    service: Coroutine[Any, Any, object], log_level: str, left: Callable[[], int] = lambda: 0
) -> int:
    """Run a service until it ends, events written to standard error.

    A ``SystemExit`` that a task of a job lets out ends that task, and neither the service nor the
    process. Ctrl-C before the service has its signal handlers ends it in a hurry.

    Args:
        service: What to run.
        log_level: Least severe events to write.
        left: How many jobs it has left to their leases, asked when it has ended.

    Returns:
        Exit status of the process: 0 where everything was ended in order, `LEFT` where not. What
        cannot be waited for ends the process with `LEFT` from here.

    Raises what the service raises.
    """
    _log_to_stderr(log_level)
    runner = asyncio.Runner(loop_factory=loop_factory())
    try:
        _run(runner.get_loop(), service)
    finally:
        with _ended_in_time():
            runner.close()
    return LEFT if left() else 0


def _run(loop: asyncio.AbstractEventLoop, service: Coroutine[Any, Any, object]) -> None:
    """Run a coroutine to its end, whatever other tasks let out of the loop meanwhile."""
    task = loop.create_task(service, name="jobs:main")
    while True:
        try:
            loop.run_until_complete(task)
            return
        except SystemExit as exit:
            if task.done():
                raise
            logger.error(
                "a task of a job has raised SystemExit(%r), which would have ended the process: it "
                "ends that task only",
                exit.code,
                exc_info=exit,
                extra={"event": "jobs.worker.exit_contained"},
            )
        except KeyboardInterrupt:
            if not task.done():
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    loop.run_until_complete(task)
            raise


@contextlib.contextmanager
def _ended_in_time() -> Iterator[None]:
    """End the process if the block, which closes the event loop, takes too long.

    It waits without an end for a job function that does not stop, be it asynchronous or in a thread
    of ``asyncio.to_thread``. That was given its time, and its job is no longer ours.
    """

    def end() -> None:
        logger.error(
            "something of a job does not end: ending the process over it",
            extra={"event": "jobs.worker.exit_forced"},
        )
        logging.shutdown()
        os._exit(LEFT)

    timer = threading.Timer(_EXIT_GRACE, end)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """The event loop to run in; None for the platform's default.

    The default of Windows cannot watch the sockets of psycopg.
    """
    return asyncio.SelectorEventLoop if sys.platform == "win32" else None


class OneLine(logging.Formatter):
    """Time, level and message of an event in one line, tracebacks included."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        """The line, without its end."""
        return one_line(super().format(record))


def _log_to_stderr(level: str) -> None:
    """Set up logging, unless the application has done so when it was imported."""
    root = logging.getLogger()
    if not root.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(OneLine())
        root.addHandler(handler)
    logging.getLogger("jobs").setLevel(level.upper())
