"""``jobs worker``: what it serves, what it says, how it ends."""

from __future__ import annotations

import asyncio
import logging
import re
import signal
import sys
from typing import Any

import pytest

from jobs.cli import main
from jobs.cli.serving import OneLine, loop_factory
from jobs.cli.worker import queue
from tests.crash import app
from tests.crash.bench import Bench
from tests.support.waiting import until

LINE = re.compile(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} (DEBUG|INFO|WARNING|ERROR) \S.*$")


def test_it_serves_the_queues_of_its_jobs_until_told_to_stop(bench: Bench) -> None:
    (job,) = bench.enqueue(app.nap)
    worker = bench.worker("--name", "me")
    bench.wait_for("end")
    until(lambda: bench.settled(job), "the settle")
    worker.signal(signal.SIGINT)
    assert worker.wait() == 0
    assert worker.stdout.read_text() == ""
    lines = worker.stderr.read_text().splitlines()
    assert all(LINE.match(line) for line in lines), lines
    assert "INFO worker me serves default (5), other (5) with " in lines[0]
    assert "INFO worker me drains 0 jobs" in lines[-2]
    assert "INFO worker me has stopped: 1 completed, 0 retried, 0 ended, 0 handed back" in lines[-1]
    assert bench.settled(job).worker == "me"


def test_queues_and_slots_may_be_named(bench: Bench) -> None:
    bench.enqueue(app.nap, 60, count=3)
    bench.enqueue(app.elsewhere, 0, count=3)
    worker = bench.worker("--queue", "default=2", "--queue", "x=y=1", "--drain", "0")
    worker.wait_for_output("serves default (2), x=y (1) with ")
    bench.wait_for("start", 2)
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0
    assert len(bench.events("start")) == 2


def test_until_idle(bench: Bench) -> None:
    bench.enqueue(app.fail_once, 0, count=4)
    worker = bench.worker("--until-idle", wait=False)
    assert worker.wait() == 0
    assert len(bench.events("end")) == 4
    assert "has stopped: 4 completed, 4 retried" in worker.output()


def test_each_event_is_one_line_tracebacks_included(bench: Bench) -> None:
    bench.enqueue(app.fail_once)
    worker = bench.worker("--until-idle", wait=False)
    assert worker.wait() == 0
    lines = worker.stderr.read_text().splitlines()
    assert all(LINE.match(line) for line in lines), lines
    (failed,) = [line for line in lines if "failed in attempt 1 of 3" in line]
    assert "\\nTraceback (most recent call last):\\n" in failed


def test_the_level_of_the_log(bench: Bench) -> None:
    bench.enqueue(app.fail_once)
    worker = bench.worker("--until-idle", "--log-level", "warning", wait=False)
    assert worker.wait() == 0
    (line,) = worker.stderr.read_text().splitlines()
    assert " WARNING job " in line


@pytest.mark.parametrize(
    ("options", "status", "message"),
    [
        (["tests.crash.nowhere"], 2, "JOB_CONFIG_INVALID"),
        (["tests.crash.app", "--lease", "0.5"], 2, "lease is 0:00:00.500000"),
        (["tests.crash.app", "--lease", "nan"], 2, "invalid seconds value: 'nan'"),
        (["tests.crash.app", "--queue", "a=x"], 2, "invalid queue value: 'a=x'"),
        (["tests.crash.app", "--queue", "a=0"], 2, "JOB_CLAIM_QUEUES_EMPTY"),
        (["tests.crash.app", "--queue", ""], 2, "must not be empty"),
        (["tests.crash.app", "--dsn", "postgresql://127.0.0.1:1/x"], 1, "JOB_DATABASE_UNREACHABLE"),
        ([], 2, "MODULE"),
    ],
)
def test_what_is_wrong_is_said(
    options: list[str], status: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["worker", *options]) == status
    assert message in capsys.readouterr().err


def test_a_database_without_the_schema(bench: Bench) -> None:
    bench.conn.execute("alter schema jobs rename to elsewhere")
    worker = bench.worker(wait=False)
    assert worker.wait() == 1
    assert "JOB_SCHEMA_OUTDATED" in worker.output()
    assert "jobs migrate" in worker.output()
    assert "Traceback" not in worker.output()


def test_the_loop_fits_the_platform(monkeypatch: pytest.MonkeyPatch) -> None:
    """O-34: the default loop of Windows cannot watch the sockets of psycopg."""
    assert loop_factory() is None
    monkeypatch.setattr(sys, "platform", "win32")
    factory: Any = loop_factory()
    assert factory is asyncio.SelectorEventLoop


def test_queue_arguments() -> None:
    assert [queue(text) for text in ("a", "a=3", "a=b=3")] == [("a", 5), ("a", 3), ("a=b", 3)]
    with pytest.raises(ValueError, match="invalid literal"):
        queue("a=b")


def test_a_line_holds_no_line_breaks() -> None:
    record = logging.LogRecord("jobs", logging.INFO, "", 0, "a\nb\r%s", ("c\n",), None)
    assert OneLine().format(record).endswith("INFO a\\nb\\rc\\n")


def test_nor_what_commands_a_terminal() -> None:
    record = logging.LogRecord("jobs", logging.INFO, "", 0, "é\t\x1b[2J\x07\x9b\u2028", (), None)
    assert OneLine().format(record).endswith("INFO é\t\\x1b[2J\\x07\\x9b\\u2028")
