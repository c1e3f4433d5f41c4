"""Races at full speed: no deadlock, no unique violation, no lost answer, nothing counted twice.

The short form is part of the suite, the full one of `make test-slow`.
"""

from __future__ import annotations

import datetime as dt
import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest
from psycopg import Connection
from pydantic import BaseModel

import jobs
from tests.sql import tables
from tests.sql.calls import (
    Item,
    Settle,
    claim,
    enqueue_many,
    renew,
    retry,
    settle,
    settle_all,
)
from tests.sql.soak import Tokens, soak

pytestmark = pytest.mark.majors

Conn = Connection[Any]

SHORT_AND_FULL = [
    pytest.param(5, marks=pytest.mark.serial),
    pytest.param(60, marks=[pytest.mark.slow, pytest.mark.serial, pytest.mark.timeout(180)]),
]


@pytest.mark.parametrize("seconds", SHORT_AND_FULL)
def test_no_two_writers_deadlock_and_every_job_ends_once(
    database: str, conn: Conn, seconds: float
) -> None:
    """O-08: bulk renewals, rescues and burials, bulk settles and retention over the same rows."""
    names = ("w1", "w2")
    short = dt.timedelta(milliseconds=80)
    tokens = Tokens()
    counts: Counter[str] = Counter()
    guard = threading.Lock()

    def count(what: str, amount: int = 1) -> None:
        with guard:
            counts[what] += amount

    def feed(conn: Conn, chance: random.Random) -> None:
        live = conn.execute("select count(*) from jobs.job").fetchone()
        assert live is not None
        if live[0] > 400:
            time.sleep(0.005)
            return
        keys = [f"k{chance.randrange(5000)}" for _ in range(100)]
        answers = enqueue_many(conn, [Item(key=key) for key in keys])
        count("created", sum(answer.verdict == "created" for answer in answers))

    def take(worker: str) -> Callable[[Conn, random.Random], None]:
        def step(conn: Conn, chance: random.Random) -> None:
            rows = claim(conn, chance.randint(1, 60), worker=worker, lease=short, rescue=True)
            for row in rows:
                if row.verdict == "claimed":
                    tokens.add((row.id, row.claims), worker)
                else:
                    tokens.drop((row.id, row.claims))
                    count("ended")
            if not rows:
                time.sleep(0.005)

        return step

    def keep(worker: str) -> Callable[[Conn, random.Random], None]:
        def step(conn: Conn, chance: random.Random) -> None:
            held = tokens.sample(worker, 60, chance)
            for one, verdict in zip(
                held, renew(conn, held, worker=worker, lease=short), strict=True
            ):
                count(f"renew {verdict}")
                if verdict == "lost":
                    tokens.drop(one)
            time.sleep(0.002)

        return step

    def end(worker: str) -> Callable[[Conn, random.Random], None]:
        def step(conn: Conn, chance: random.Random) -> None:
            held = tokens.sample(worker, 40, chance)
            asked = [
                retry(one) if chance.random() < 0.3 else Settle(one, "completed") for one in held
            ]
            for one, (verdict, state) in zip(
                asked, settle(conn, *asked, worker=worker), strict=True
            ):
                count(f"settle {verdict}")
                if verdict != "again":
                    tokens.drop(one.held)
                if verdict == "landed" and state != "ready":
                    count("ended")
            time.sleep(0.002)

        return step

    def forget(conn: Conn, chance: random.Random) -> None:
        """Retention as it will be: a bounded number, oldest first, past locked rows."""
        removed = conn.execute(
            """
            delete from jobs.settled where id = any(array(
                select id from jobs.settled order by settled_at limit %s for update skip locked
            ))
            """,
            [chance.randint(1, 300)],
        ).rowcount
        count("removed", removed)
        time.sleep(0.01)

    steps = [feed, feed, forget]
    for name in names:
        # Two settlers of one name meet over the same tokens, as a repeated send does.
        steps += [take(name), keep(name), end(name), end(name)]
    soak(database, seconds, steps)

    assert tables.deadlocks(conn) == 0
    left = conn.execute(
        "select (select count(*) from jobs.job), (select count(*) from jobs.settled)"
    ).fetchone()
    assert left is not None
    assert counts["created"] == left[0] + left[1] + counts["removed"]
    assert counts["ended"] == left[1] + counts["removed"]
    totals = tables.counters(conn)
    assert counts["ended"] == totals["completed"] + totals["dead"]
    # The soak has met what it is about.
    for what in ("renew renewed", "settle landed", "settle again", "settle lost", "removed"):
        assert counts[what] > 0, counts
    assert totals["rescued"] > 0


class Key(BaseModel):
    """Input of the jobs below."""

    key: str


@jobs.job(
    queue="q",
    name="live",
    tenant=jobs.NO_TENANT,
    idempotency_key=lambda one: one.key,
    idempotency_scope="live",
)
def live(input: Key, run: jobs.Run) -> None:
    """One live job a key."""


@jobs.job(
    queue="q",
    name="waiting",
    tenant=jobs.NO_TENANT,
    idempotency_key=lambda one: one.key,
    idempotency_scope="waiting",
)
def waiting(input: Key, run: jobs.Run) -> None:
    """One job a key that has not started."""


@pytest.mark.parametrize("fails", [0.0, 0.3], ids=["all succeed", "some fail"])
@pytest.mark.parametrize("handle", [live, waiting], ids=["live", "waiting"])
@pytest.mark.parametrize(
    "seconds",
    [
        pytest.param(2, marks=pytest.mark.serial),
        pytest.param(30, marks=[pytest.mark.slow, pytest.mark.serial, pytest.mark.timeout(120)]),
    ],
)
def test_every_enqueue_is_answered_with_a_job_that_was_in_its_way(
    database: str, conn: Conn, seconds: float, handle: Any, fails: float
) -> None:
    """O-16: ten keys, eight sessions that enqueue, eight that claim and finish at once."""
    guard = threading.Lock()
    calls: list[tuple[UUID, str, float]] = []
    gone: dict[UUID, float] = {}
    scope = handle.name

    def ask(conn: Conn, chance: random.Random) -> None:
        begun = time.monotonic()
        answer = handle.enqueue(conn, Key(key=f"k{chance.randrange(10)}"))
        with guard:
            calls.append((answer.id, answer.status, begun))

    def work(conn: Conn, chance: random.Random) -> None:
        rows = claim(conn, chance.randint(1, 3))
        if scope == "waiting":
            # It let go of its key with the claim: from here on it is in nobody's way.
            with guard:
                for row in rows:
                    gone.setdefault(row.id, time.monotonic())
        time.sleep(chance.random() * 0.002)
        asked = [
            retry((row.id, row.claims)) if chance.random() < fails else Settle((row.id, row.claims))
            for row in rows
        ]
        states = settle_all(conn, asked)
        if scope == "live":
            with guard:
                for row, state in zip(rows, states, strict=True):
                    if state != "ready":
                        gone[row.id] = time.monotonic()

    soak(database, seconds, [ask] * 8 + [work] * 8)

    assert tables.deadlocks(conn) == 0
    created = {id for id, status, _ in calls if status == "created"}
    assert {status for _, status, _ in calls} == {"created", "existing"}
    assert sum(status == "created" for _, status, _ in calls) == len(created)
    # Every answer names a job of ours that was in the way after the call had begun.
    late = [(id, status) for id, status, begun in calls if gone.get(id, begun) < begun]
    assert late == []
    assert {id for id, _, _ in calls} == created
    assert "nowhere" not in tables.where(conn, created)


@pytest.mark.parametrize("seconds", SHORT_AND_FULL)
def test_bulk_enqueues_in_opposite_orders_and_a_batched_settle_never_deadlock(
    database: str, conn: Conn, seconds: float
) -> None:
    """O-18: an enqueue that finds a job does not write to it, and keys are taken in one order."""
    keys = [f"k{n}" for n in range(200)]
    verdicts: Counter[str] = Counter()
    guard = threading.Lock()

    def bulk(order: int) -> Callable[[Conn, random.Random], None]:
        def step(conn: Conn, _: random.Random) -> None:
            answers = enqueue_many(conn, [Item(key=key) for key in keys[::order]])
            with guard:
                verdicts.update(answer.verdict for answer in answers)

        return step

    def work(conn: Conn, chance: random.Random) -> None:
        rows = claim(conn, 50)
        chance.shuffle(rows)
        settle_all(conn, [Settle((row.id, row.claims)) for row in rows])

    soak(database, seconds, [bulk(1), bulk(-1), work, work])

    assert tables.deadlocks(conn) == 0
    assert verdicts["created"] > 0
    assert verdicts["existing"] > 0
    done = tables.counters(conn)["completed"]
    live_now = conn.execute("select count(*) from jobs.job").fetchone()
    assert live_now == (verdicts["created"] - done,)
