"""Claims that begin at the floor: flat under a held snapshot, and nothing is left behind it."""

from __future__ import annotations

import datetime as dt
import statistics
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from uuid import UUID

import psycopg
import pytest
from psycopg import Connection

from jobs.worker.floors import EVERY
from jobs.worker.limits import Limits
from jobs.worker.steering import STRAIGHT, Steering
from jobs_sql.claim import ClaimJobsRow
from tests.sql.calls import Settle, claim, made, retry, seed, settle, settle_all
from tests.sql.volume import claiming, never_analysed
from tests.support.buffers import explain
from tests.support.server import Clones

pytestmark = pytest.mark.majors

Conn = Connection[Any]
AS_OUR_WORKERS = "-c plan_cache_mode=force_generic_plan -c enable_seqscan=off"
STEP = 0.02


class Process:
    """Claims of one worker by a clock that goes on by `STEP` a claim."""

    def __init__(self, conn: Conn, worker: str = "w1") -> None:
        self.conn = conn
        self.worker = worker
        self.now = 100.0
        self.steering = Steering(Limits())

    def claim(self, room: int | Mapping[str, int]) -> list[ClaimJobsRow]:
        asked = {"q": room} if isinstance(room, int) else dict(room)
        steer = self.steering.steer(asked, self.now)._asdict()
        rows = claim(self.conn, asked, worker=self.worker, **steer)
        self.steering.learn(asked, False, rows, self.now, self.now)
        self.now += STEP
        return rows

    def run(self, room: int) -> list[UUID]:
        """Claim, and complete what was claimed."""
        rows = self.claim(room)
        settle_all(self.conn, [Settle((r.id, r.claims)) for r in rows], worker=self.worker)
        return [row.id for row in rows]

    def rounds_until(self, id: UUID) -> int:
        """How many claims it takes to find a job while there are others."""
        for number in range(1, 200):
            ids = self.run(2)
            assert ids, "the backlog is over"
            if id in ids:
                return number
        raise AssertionError("not found")


@pytest.fixture
def process(conn: Conn) -> Process:
    """One that is in the middle of a backlog of an hour."""
    seed(conn, 400, available_at="now() - interval '1 hour' + i * interval '1 second'")
    process = Process(conn)
    for _ in range(20):
        process.run(5)
    return process


#: Claims between two sweeps of a backlog, and those that may come before and after.
SOON = EVERY / STEP + 2


class TestBehindTheFloor:
    def test_a_late_commit(self, database: str, process: Process) -> None:
        with psycopg.connect(database) as late:
            id = made(late, run_at=None)
            late.execute("update jobs.job set available_at = now() - interval '2 hours'")
            process.run(2)
            late.commit()
        assert process.rounds_until(id) <= SOON

    @pytest.mark.parametrize("outcome", ["retry", "released"])
    def test_a_job_that_comes_back(self, process: Process, outcome: str) -> None:
        """It lines up anew, so no sweep is needed: it is due now, behind all others."""
        row = process.claim(1)[0]
        held = (row.id, row.claims)
        settle(process.conn, retry(held) if outcome == "retry" else Settle(held, outcome))
        found = [id for _ in range(60) for id in process.run(10)]
        assert row.id in found

    def test_a_job_made_ready_with_its_old_due_time(self, process: Process) -> None:
        """As one whose slot was busy."""
        conn = process.conn
        id = made(conn)
        conn.execute(
            "update jobs.job set state = 'suspended',"
            " available_at = now() - interval '3 hours' where id = %s",
            [id],
        )
        process.run(2)
        conn.execute("update jobs.job set state = 'ready' where id = %s", [id])
        assert process.rounds_until(id) <= SOON

    def test_a_bulk_that_was_due_long_ago_is_gone_on_with(self, process: Process) -> None:
        """Not a claim of it at each sweep: the floor goes back to it."""
        process.claim(1)
        ids = set(seed(process.conn, 60, available_at="now() - interval '5 hours'"))
        found: set[UUID] = set()
        for _ in range(int(SOON) + 60 // 10):
            found |= set(process.run(10)) & ids
        assert found == ids

    def test_a_claim_that_was_rolled_back_elsewhere(self, database: str, process: Process) -> None:
        with psycopg.connect(database) as other:
            theirs = {row.id for row in claim(other, 4, worker="w2")}
            process.run(10)
            other.rollback()
        found: set[UUID] = set()
        for _ in range(int(SOON)):
            found |= set(process.run(2))
        assert theirs <= found

    def test_when_nothing_more_is_found_it_has_seen_everything(self, process: Process) -> None:
        """A worker that runs until idle stops on that."""
        late = made(process.conn)
        process.conn.execute(
            "update jobs.job set available_at = now() - interval '1 day' where id = %s", [late]
        )
        found: list[UUID] = []
        for _ in range(1_000):
            rows = process.run(7)
            found += rows
            if not rows:
                if process.steering.whole:
                    break
                process.steering.force()
        left = process.conn.execute("select count(*) from jobs.job").fetchone()
        assert left == (0,)
        assert late in found

    def test_two_processes_serve_everything_once(self, database: str) -> None:
        with psycopg.connect(database, autocommit=True) as one:
            seed(
                one, 600,
                available_at="now() - interval '1 hour' + i * interval '1 second'",
                priority="i % 3",
            )  # fmt: skip
            with psycopg.connect(database, autocommit=True) as two:
                both = [Process(one, "w1"), Process(two, "w2")]
                taken: Counter[UUID] = Counter()
                for number in range(100):
                    taken.update(both[number % 2].run(7))
                    if number % 10 == 0:
                        made(one, run_at=None, priority=number % 3)
                assert set(taken.values()) == {1}
                assert len(taken) == 610


@pytest.fixture
def backlog(clones: Clones) -> Iterator[str]:
    """DSN of a database with 6,000 due jobs, in the heap in order of their due times."""
    with clones.clone() as dsn:
        with psycopg.connect(dsn, autocommit=True) as conn:
            never_analysed(conn)
            seed(conn, 6_000, available_at="now() - interval '1 hour' + i * interval '0.1 s'")
            conn.execute("vacuum (analyze) jobs.job")
        yield dsn


def drained(dsn: str, steer: Callable[[Steering, dict[str, int], float], dict[str, Any]]) -> Any:
    """Buffers a claim under a held snapshot, in the second and in the last fifth of a drain.

    Each as (whole statement, walk over the index alone). In the first fifth new versions of rows
    still find room on their pages.
    """
    buffers: list[tuple[int, int]] = []
    with (
        psycopg.connect(dsn) as holder,
        psycopg.connect(dsn, autocommit=True, options=AS_OUR_WORKERS) as conn,
    ):
        holder.execute("set transaction isolation level repeatable read")
        holder.execute("select count(*) from jobs.job")
        steering, now, room = Steering(Limits()), 100.0, {"q": 100}
        for _ in range(60):
            asked = claiming(room) | steer(steering, room, now)
            plan = explain(conn, "ClaimJobs", generic=True, **asked)
            rows = conn.execute(
                "select id, claims, available_at from jobs.job where state = 'running'"
            ).fetchall()
            found = [_row(id, claims, at) for id, claims, at in rows]
            assert len(found) == 100
            steering.learn(room, False, found, now, now)
            settle_all(conn, [Settle((row.id, row.claims)) for row in found])
            walks = [node.buffers for node in plan.nodes if node.index == "job_ready_idx"]
            buffers.append((plan.buffers, sum(walks)))
            now += STEP
    fifths = buffers[12:24], buffers[-12:]
    return [tuple(map(statistics.median, zip(*fifth, strict=True))) for fifth in fifths]


def _row(id: UUID, claims: int, at: Any) -> ClaimJobsRow:
    empty: dict[str, Any] = dict.fromkeys(ClaimJobsRow._fields)
    known = {"verdict": "claimed", "id": id, "queue": "q", "priority": 0, "claims": claims}
    return ClaimJobsRow(**(empty | known | {"available_epoch": at.timestamp()}))


@pytest.mark.lone
class TestUnderAHeldSnapshot:
    def test_a_claim_costs_as_much_in_the_end_as_in_the_beginning(self, backlog: str) -> None:
        early, late = drained(backlog, lambda s, room, now: s.steer(room, now)._asdict())
        assert late[0] <= early[0] * 1.1, (early, late)
        assert late[1] <= early[1] + 5, (early, late)

    def test_without_a_floor_it_would_not(self, backlog: str) -> None:
        early, late = drained(backlog, lambda _s, _room, _now: STRAIGHT._asdict())
        assert late[1] > early[1] * 2, (early, late)


def test_the_times_of_a_claim_are_exact_to_the_microsecond(conn: Conn) -> None:
    """They come as seconds in floating point, and go back as the floor of the next claim."""
    first = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
    instants = [first + dt.timedelta(days=n, microseconds=n * 7919) for n in range(0, 36_525, 61)]
    rows = conn.execute(
        "select date_part('epoch', t) from unnest(%s::timestamptz[]) as t", [instants]
    ).fetchall()
    assert [dt.datetime.fromtimestamp(epoch, dt.UTC) for (epoch,) in rows] == instants
