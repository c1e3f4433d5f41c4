"""Keyed concurrency at full speed: never over the limit, nobody stuck, nothing lost.

Eight sessions claim and settle jobs of a few keys with limits of 1 to 3, in shuffled order, renew
some, let others lapse, and are killed in the middle of what they do; another cancels. All the while
one statement counts what runs under each key.
"""

from __future__ import annotations

import datetime as dt
import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from psycopg import Connection

from jobs.control import cancel_many
from tests.sql import tables
from tests.sql.calls import Held, Settle, claim, retry, settle_rows
from tests.sql.keys import keyed, promote
from tests.sql.soak import soak

pytestmark = pytest.mark.majors

Conn = Connection[Any]

CLAIMERS = 8
LIMITS = {f"k{n}": n % 3 + 1 for n in range(9)}
QUEUES = ("q", "r")
LEASE = dt.timedelta(milliseconds=150)
OVER = """
    select j.concurrency_key, count(*), min(j.concurrency_limit)
    from jobs.job as j
    where j.state = 'running'
    group by j.concurrency_key
    having count(*) > min(j.concurrency_limit)
"""
HOMELESS = """
    select count(*) from jobs.job as j
    where j.state = 'running'
        and not exists (select 1 from jobs.slot as s where s.job_id = j.id)
"""
LIVE = "select id from jobs.job order by random() limit 3"
STUCK = """
    select k.concurrency_key
    from (
        select j.concurrency_key, min(j.concurrency_limit) as amount
        from jobs.job as j where j.state = 'blocked' group by j.concurrency_key
    ) as k
    where k.amount > (
        select count(*) from jobs.slot as s where s.concurrency_key = k.concurrency_key
    ) + (
        select count(*) from jobs.job as j
        where j.state = 'ready' and j.concurrency_key = k.concurrency_key
    )
"""


def follow(conn: Conn, keys: set[str]) -> None:
    """What `jobs.worker.slots` does after a commit."""
    while keys:
        rows = promote(conn, *keys)
        keys = {key for verdict, key, _ in rows if verdict == "again"}
        time.sleep(0.001 if keys else 0)


class Fleet:
    """What the sessions of a soak share: counts, and how one of them works."""

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn
        self.counts: Counter[str] = Counter()
        self.sessions: set[Conn] = set()
        self._guard = threading.Lock()

    def count(self, what: str, amount: int = 1) -> None:
        with self._guard:
            self.counts[what] += amount

    def feed(self, conn: Conn, chance: random.Random) -> None:
        live = conn.execute("select count(*) from jobs.job").fetchone()
        assert live is not None
        if live[0] > 150:
            time.sleep(0.003)
            return
        for key, limit in chance.choices(list(LIMITS.items()), k=20):
            queue = chance.choice(QUEUES)
            keyed(conn, key, limit, queue=queue, priority=chance.randrange(2), max_attempts=2)
        self.count("enqueued", 20)

    def cancel(self, conn: Conn, _: random.Random) -> None:
        done = cancel_many(conn, [id for (id,) in conn.execute(LIVE).fetchall()])
        for one in done:
            self.count(f"cancel {one.outcome}")
        time.sleep(0.02)

    def watch(self, conn: Conn, _: random.Random) -> None:
        assert conn.execute(OVER).fetchall() == []
        assert conn.execute(HOMELESS).fetchone() == (0,)
        self.count("looked")
        time.sleep(0.02)

    def sweep(self, conn: Conn, _: random.Random) -> None:
        rows = promote(conn, most=100, tidy=True)
        self.count("swept", sum(verdict == "promoted" for verdict, *_ in rows))
        time.sleep(0.5)

    def claimer(self, number: int) -> Callable[[Conn, random.Random], None]:
        """Claims and settles on sessions of its own, which die now and then."""
        worker = f"w{number}"
        held: list[Held] = []
        own: list[Conn] = []

        def step(_: Conn, chance: random.Random) -> None:
            if not own:
                own.append(psycopg.connect(self.dsn, autocommit=True))
                self.sessions.add(own[0])
            conn = own[0]
            try:
                self._work(conn, worker, held, chance)
            except psycopg.OperationalError:
                self.count("killed")
                own.pop().close()
                held.clear()  # the process is gone, its leases lapse

        return step

    def _work(self, conn: Conn, worker: str, held: list[Held], chance: random.Random) -> None:
        asked = {queue: chance.randint(1, 4) for queue in QUEUES}
        rows = claim(conn, asked, worker=worker, lease=LEASE, rescue=True, park_limit=10)
        keys = set()
        for row in rows:
            self.count(row.verdict)
            if row.verdict == "claimed":
                held.append((row.id, row.claims))
            elif row.verdict in ("parked", "buried") and row.concurrency_key is not None:
                keys.add(row.concurrency_key)
        follow(conn, keys)
        if chance.random() < 0.03:
            conn.execute("select pg_terminate_backend(pg_backend_pid())")
        chance.shuffle(held)
        batch = [held.pop() for _ in range(chance.randint(0, len(held)))]
        if batch:
            asked_settles = [retry(one) if chance.random() < 0.2 else Settle(one) for one in batch]
            answers = settle_rows(conn, asked_settles, worker=worker)
            held.extend(batch[row.place - 1] for row in answers if row.verdict == "again")
            for row in answers:
                self.count(f"settle {row.verdict}")
            follow(conn, {row.vacant_key for row in answers if row.vacant_key is not None})
        if not rows:
            time.sleep(0.003)


@pytest.mark.parametrize(
    "seconds",
    [
        pytest.param(7, marks=pytest.mark.serial),
        pytest.param(60, marks=[pytest.mark.slow, pytest.mark.serial, pytest.mark.timeout(240)]),
    ],
)
def test_no_key_is_ever_over_its_limit_and_nobody_is_left(
    database: str, conn: Conn, seconds: float
) -> None:
    fleet = Fleet(database)
    steps = [fleet.claimer(number) for number in range(CLAIMERS)]
    soak(
        database, seconds, [*steps, fleet.feed, fleet.cancel, fleet.watch, fleet.watch, fleet.sweep]
    )

    for session in fleet.sessions:
        session.close()

    # Then the rest, by one worker that is in nobody's way.
    deadline = time.monotonic() + 30
    left: Any = None
    while (left := conn.execute("select count(*) from jobs.job").fetchone()) != (0,):
        assert time.monotonic() < deadline, (left, conn.execute(STUCK).fetchall())
        rows = claim(conn, {"q": 20, "r": 20}, worker="last", rescue=True, sweep=True)
        keys = {row.concurrency_key for row in rows if row.verdict in ("parked", "buried")}
        done = [Settle((row.id, row.claims)) for row in rows if row.verdict == "claimed"]
        answers = settle_rows(conn, done, worker="last") if done else []
        keys |= {row.vacant_key for row in answers}
        follow(conn, {key for key in keys if key is not None})
        if any(row.verdict == "blocked" for row in rows):
            promote(conn, most=100, tidy=True)

    counts = fleet.counts
    assert tables.deadlocks(conn) == 0
    assert conn.execute("select count(*) from jobs.settled").fetchone() == (counts["enqueued"],)
    assert conn.execute("select count(*) from jobs.slot").fetchone() == (0,)
    # The soak has met what it is about.
    for what in ("claimed", "parked", "killed", "settle landed", "cancel cancelled", "looked"):
        assert counts[what] > 0, counts
    assert tables.counters(conn)["rescued"] > 0
