"""O-42: five schedulers, started apart, killed and restarted, fire each occurrence exactly once."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest
from psycopg import Connection

from tests.crash.bench import Bench
from tests.support.waiting import until
from tests.support.workers import WorkerProcess

SECOND = timedelta(seconds=1)
KEYS = """
    select split_part(s.enqueued_by, ' ', 2), s.name, s.idempotency_key
    from (
        select enqueued_by, name, idempotency_key from jobs.job
        union all
        select enqueued_by, name, idempotency_key from jobs.settled
    ) as s
"""


class Fleet:
    """Schedulers by name, and a worker that ends their jobs."""

    def __init__(self, bench: Bench, start: Callable[..., WorkerProcess], *options: str) -> None:
        self.bench, self._start, self._options = bench, start, options
        self.living: dict[str, WorkerProcess] = {}
        self._count = 0
        self.killed_leaders = 0
        bench.worker(target="tests.crash.schedule_app")

    def add(self) -> None:
        """Start one more."""
        self._count += 1
        name = f"scheduler-{self._count}"
        self.living[name] = self._start(
            "scheduler", "tests.crash.schedule_app", "--dsn", self.bench.dsn,
            "--name", name, *self._options,
        )  # fmt: skip

    def leader(self) -> str | None:
        """Who leads, as the database says."""
        row = self.bench.conn.execute("select holder from jobs.leader").fetchone()
        return None if row is None else str(row[0])

    def kill(self, name: str) -> None:
        """SIGKILL, whatever it is doing."""
        self.killed_leaders += name == self.leader()
        process = self.living.pop(name)
        assert process.returncode is None, process.describe()
        process.kill()


def check(conn: Connection[Any], least: dict[str, int]) -> None:
    """Each occurrence of each task once, from the first to the last, none left out."""
    found: dict[tuple[str, str], list[datetime]] = {}
    for task, job, key in conn.execute(KEYS).fetchall():
        text = key.partition("@")[2].replace("#", "=").partition("=")[0]
        found.setdefault((task, job), []).append(datetime.fromisoformat(text))
    steps = {"minutely": 60 * SECOND, "first": SECOND, "second": SECOND}
    expected = {("first", "note"), ("second", "note"), ("second", "elsewhere")}
    assert expected <= found.keys()
    for (task, job), instants in found.items():
        twice = [at for at, times in Counter(instants).items() if times > 1]
        assert twice == [], (task, job)
        left_out = [one for one, two in pairwise(sorted(instants)) if two - one != steps[task]]
        assert left_out == [], (task, job)
        assert len(instants) >= least[task], (task, job)
    assert sorted(found["second", "note"]) == sorted(found["second", "elsewhere"])


@pytest.mark.serial
def test_each_occurrence_fires_once(
    bench: Bench, worker_process: Callable[..., WorkerProcess]
) -> None:
    # The usual settings: another takes over since a fire is late, long before 30 s have passed.
    fleet = Fleet(bench, worker_process)
    for _ in range(5):
        fleet.add()
        time.sleep(0.3)
    until(lambda: fleet.leader() in fleet.living, "one to lead")
    for _ in range(3):
        leader = until(lambda: name if (name := fleet.leader()) in fleet.living else None, "leader")
        time.sleep(random.uniform(0, 0.5))
        fleet.kill(leader)
        fleet.add()
        until(lambda leader=leader: fleet.leader() != leader, "another to lead")
    until(lambda: caught_up(bench.conn, 4), "it to go on after the last")
    assert fleet.killed_leaders >= 2
    for process in fleet.living.values():
        process.signal(15)
    for process in fleet.living.values():
        assert process.wait() == 0, process.describe()
    check(bench.conn, {"first": 3, "second": 3, "minutely": 0})


def caught_up(conn: Connection[Any], seconds: float) -> bool:
    """Whether each second has been fired for, but for the last two, and so many after the first."""
    row = conn.execute(
        "select min(last_occurrence) > clock_timestamp() - interval '2 seconds'"
        " and min(last_occurrence - created_at) > make_interval(secs => %s)"
        " from jobs.schedule where name <> 'minutely'",
        [seconds],
    ).fetchone()
    return row == (True,)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_ten_minutes(bench: Bench, worker_process: Callable[..., WorkerProcess]) -> None:
    """Started 7 s apart, one killed and restarted every 20 s, with the usual settings."""
    dice = random.Random(42)
    fleet = Fleet(bench, worker_process)
    for _ in range(5):
        fleet.add()
        time.sleep(7)
    end = time.monotonic() + 600
    while time.monotonic() < end:
        time.sleep(20)
        fleet.kill(dice.choice(sorted(fleet.living)))
        fleet.add()
    time.sleep(60)  # a leader that was killed last, and its catch-up
    for process in fleet.living.values():
        process.signal(15)
    for process in fleet.living.values():
        assert process.wait() == 0, process.describe()
    check(bench.conn, {"first": 600, "second": 600, "minutely": 9})


@pytest.mark.serial
def test_one_that_was_stopped_fires_nothing_that_another_has_fired(
    bench: Bench, worker_process: Callable[..., WorkerProcess]
) -> None:
    """SIGSTOP long past its lease, then SIGCONT: it still believes to lead, and the fence holds."""
    fleet = Fleet(bench, worker_process, "--lease", "1", "--refresh", "0.3")
    fleet.add()
    until(lambda: fleet.leader() in fleet.living, "one to lead")
    sleeper = fleet.living["scheduler-1"]
    until(lambda: bench.conn.execute(KEYS).fetchone(), "a fire")
    sleeper.signal(19)
    fleet.add()
    until(lambda: fleet.leader() == "scheduler-2", "the other to lead")
    until(lambda: caught_up(bench.conn, 4), "the other to have caught up")
    sleeper.signal(18)
    time.sleep(1.5)
    for process in fleet.living.values():
        process.signal(15)
    for process in fleet.living.values():
        assert process.wait() == 0, process.describe()
    check(bench.conn, {"first": 3, "second": 3, "minutely": 0})
