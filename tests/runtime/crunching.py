"""Job functions for processes: their module is imported by each of them."""

from __future__ import annotations

import contextvars
import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
from pydantic import BaseModel

import jobs


class Input(BaseModel):
    """A number, and a file to leave notes in."""

    n: int = 0
    note: str = ""


def job(**options: Any) -> Any:
    """A job for a process, without key and tenant."""
    settings = {"tenant": jobs.NO_TENANT, "idempotency_key": jobs.NO_KEY, "executor": "process"}
    return jobs.job(**(settings | options))


class OddError(Exception):
    """An error that cannot be pickled back: its arguments are not those of its init."""

    def __init__(self, first: str, second: int) -> None:
        super().__init__(f"{first} {second}")


def note(input: Input, text: str) -> None:
    """Append a line to the file that the test reads."""
    with Path(input.note).open("a") as file:
        file.write(text + "\n")


@job(tenant=lambda input: f"t{input.n}")
def crunch(input: Input, run: jobs.Run) -> dict[str, int | str | None]:
    """Everything a function is told."""
    return {
        "square": input.n**2,
        "pid": os.getpid(),
        "tenant": jobs.current_tenant(),
        "attempt": run.attempt,
        "worker": run.worker,
        "remaining": None if run.remaining is None else int(run.remaining),
    }


@job()
def silent(input: Input) -> None:
    """Nothing but a trace of which process it was."""
    note(input, str(os.getpid()))


@job()
def slow(input: Input, run: jobs.Run) -> str:
    """Looks whether it should stop, and says so."""
    note(input, f"begun {os.getpid()}")
    stopped = run.wait_cancelled(60)
    note(input, f"stopped {stopped}")
    return "stopped by itself"


@job(timeout=timedelta(seconds=0.5), retry=jobs.Retry(attempts=1))
def stubborn(input: Input) -> None:
    """Computes and never looks up; with a child of its own."""
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    note(input, f"begun {os.getpid()} {child.pid}")
    until = time.monotonic() + 60
    while time.monotonic() < until:
        pass


@job()
def endless(input: Input) -> None:
    """As stubborn, without a deadline."""
    note(input, f"begun {os.getpid()}")
    until = time.monotonic() + 60
    while time.monotonic() < until:
        pass


@job(retry=jobs.Retry(attempts=2, delay=timedelta(0), jitter=False))
def dies(input: Input, run: jobs.Run) -> str:
    """Ends its process in the first attempt, in one way or another."""
    if run.attempt == 2:
        return "alive"
    match input.n:
        case 0:
            os._exit(3)
        case 1:
            os.kill(os.getpid(), signal.SIGKILL)
        case 2:
            ctypes.string_at(0)
        case 3:
            if os.fork() == 0:  # which keeps everything open that its parent had
                note(input, f"orphan {os.getpid()}")
                time.sleep(60)
                os._exit(0)
            while not Path(input.note).exists() or "orphan" not in Path(input.note).read_text():
                time.sleep(0.01)
            os.kill(os.getpid(), signal.SIGKILL)
    return "not dead"


own: contextvars.ContextVar[int] = contextvars.ContextVar("own")


@job()
def remembers(input: Input) -> None:
    """Says what of others it sees, and leaves something behind."""
    note(input, str(own.get(None)))
    own.set(input.n)


@job()
def lingers(input: Input, run: jobs.Run) -> None:
    """Leaves a thread behind that goes on saying how far it is."""

    def goes_on() -> None:
        while not Path(input.note + ".go").exists():
            run.progress(0.9, "of another job")
            time.sleep(0.01)

    threading.Thread(target=goes_on, daemon=True).start()
    note(input, "left behind")


class QuittingError(Exception):
    """An error whose copy ends the process that makes it."""

    def __reduce__(self) -> tuple[Any, ...]:
        return sys.exit, ("made anew",)


@job(retry=jobs.Retry(attempts=1))
def fails(input: Input) -> None:
    """Raises."""
    match input.n:
        case 0:
            raise ValueError("no such size")
        case 1:
            raise OddError("odd", 1)
        case 2:
            raise jobs.Terminal("the account is closed")
        case 3:
            sys.exit("leaving")
        case 4:
            raise GeneratorExit
        case 5:
            raise QuittingError("not to be copied")


@job(retry=jobs.Retry(attempts=1))
def unstorable(input: Input) -> list[object]:
    """Returns what has no JSON form."""
    return [input.n, object()]


@job()
def reporting(input: Input, run: jobs.Run) -> None:
    """Says how far it is, often."""
    run.progress(0.1, "begun")
    note(input, "begun")
    run.wait_cancelled(0.5)
    for step in range(1000):
        run.progress(0.1 + step / 2000, f"step {step}")
    note(input, "waits")
    while not Path(input.note + ".go").exists():
        time.sleep(0.01)
    run.progress(1, "the last word")


@job(retry=jobs.Retry(attempts=1))
def connecting(input: Input, run: jobs.Run) -> None:
    """Asks for what is not there."""
    note(input, "begun")
    with run.connection():
        note(input, "never here")


told: list[jobs.Settled[Input]] = []


@job(on_settled=told.append)
def completing(input: Input, run: jobs.Run) -> int:
    """Settles itself in its own transaction."""
    with psycopg.connect(os.environ["CRUNCHING_DSN"]) as conn:
        conn.execute("create table made_by_a_process (n int)")
        run.complete(conn, result=7)
    return input.n


@job()
def snoozing(input: Input, run: jobs.Run) -> None:
    """Asks to run later."""
    note(input, "snoozes")
    run.snooze(timedelta(hours=1))
