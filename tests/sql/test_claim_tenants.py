"""ChooseJobs and the claim of what it chose: rounds, room, jobs without a tenant, costs."""

from __future__ import annotations

import datetime as dt
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import psycopg
import pytest
from psycopg import Connection

from jobs.worker.limits import Limits
from jobs.worker.steering import Steering
from jobs.worker.tenants import LANES, STRETCH
from jobs_sql.claim import ClaimJobsRow
from jobs_sql.tenants import ChooseJobsRow, choose_jobs
from tests.sql import tables
from tests.sql.calls import HOUR, claim, enqueue, made, running, seed, strict
from tests.sql.keys import keyed
from tests.sql.soak import soak
from tests.sql.volume import never_analysed
from tests.support.buffers import Plan, explain
from tests.support.server import Clones

pytestmark = pytest.mark.majors

Conn = Connection[Any]
LOUD = 50_000
NO_LOOKS = {"rescue": False, "sweep": False, "tidy": False}
PAST = dt.datetime(2020, 1, 1, tzinfo=dt.UTC)
AS_OUR_WORKERS = "-c plan_cache_mode=force_generic_plan -c enable_seqscan=off"


class Process:
    """What a worker keeps from claim to claim; each call is one claim round."""

    def __init__(self, conn: Conn, **limits: Any) -> None:
        self.conn = conn
        self.steering = Steering(Limits(**limits))

    def claim(
        self, room: Mapping[str, int] | int, *, worker: str = "w1", rescue: bool = False
    ) -> list[ClaimJobsRow]:
        asked = {"q": room} if isinstance(room, int) else dict(room)
        began = time.monotonic()
        with self.conn.transaction():
            chosen = self.choose(asked, began)
            steer, _ = self.steering.chosen(asked, chosen)
            rows = claim(self.conn, asked, worker=worker, rescue=rescue, **steer._asdict())
        self.steering.learn(asked, rescue, rows, began, time.monotonic())
        admit = self.steering.limiter.admit
        self.grants = [admit(r.queue, r.tenant, began) for r in rows if r.verdict == "claimed"]
        return rows

    def choose(self, room: Mapping[str, int], now: float, **looks: bool) -> list[ChooseJobsRow]:
        """The statement before the claim."""
        asked = self.steering.choose(room, now)._asdict() | NO_LOOKS | looks
        rows = choose_jobs(self.conn, queues=list(room), free=list(room.values()), **asked)
        return strict(ChooseJobsRow, rows)

    def tenants(self, room: Mapping[str, int] | int) -> Counter[str]:
        """Whose jobs the next claim takes."""
        return Counter(row.tenant for row in self.claim(room))


def load(conn: Conn, tenant: str, count: int, **over: str) -> None:
    """Due jobs of a tenant, older than what is enqueued later."""
    seed(conn, count, tenant=f"'{tenant}'", **over)


class TestTurns:
    def test_a_loud_tenant_gets_its_limit_and_the_others_theirs(self, conn: Conn) -> None:
        load(conn, "loud", 100)
        load(conn, "b", 2)
        load(conn, "c", 30)
        assert Process(conn, per_tenant=5).tenants(50) == {"loud": 5, "b": 2, "c": 5}

    def test_within_a_tenant_the_oldest_comes_first(self, conn: Conn) -> None:
        ids = seed(conn, 9, tenant="'a'", available_at="now() - interval '1 minute' * (i * 7 % 10)")
        wanted = sorted(range(9), key=lambda i: -((i + 1) * 7 % 10))
        process = Process(conn, per_tenant=3)
        assert {row.id for row in process.claim(9)} == {ids[i] for i in wanted[:3]}

    def test_priority_comes_before_the_turn(self, conn: Conn) -> None:
        for tenant in "ab":
            load(conn, tenant, 3, priority="1")
        made(conn, tenant="c")
        assert Process(conn, per_tenant=9).tenants(1) == {"c": 1}

    def test_the_next_round_begins_behind_the_last_tenant(self, conn: Conn) -> None:
        for tenant in "abc":
            load(conn, tenant, 9)
        process = Process(conn, per_tenant=9)
        assert [set(process.tenants(1)) for _ in range(7)] == [
            {"a"}, {"b"}, {"c"}, {"a"}, {"b"}, {"c"}, {"a"},
        ]  # fmt: skip

    def test_queues_and_priorities_have_rounds_of_their_own(self, conn: Conn) -> None:
        for tenant in "ab":
            load(conn, tenant, 3)
            load(conn, tenant, 3, queue="'r'")
        process = Process(conn, per_tenant=9)
        first = process.claim({"q": 1, "r": 1})
        second = process.claim({"q": 1, "r": 1})
        assert sorted((row.queue, row.tenant) for row in [*first, *second]) == [
            ("q", "a"), ("q", "b"), ("r", "a"), ("r", "b"),
        ]  # fmt: skip

    def test_a_thousand_tenants_get_equal_shares(self, conn: Conn) -> None:
        """Nobody is served again before everybody was; the end of the order joins its beginning."""
        conn.execute("select setseed(0.5)")
        seed(
            conn,
            3_000,
            tenant="'t' || (i % 1000)",
            available_at="now() - random() * interval '1 hour'",
        )
        process = Process(conn, per_tenant=1)
        served: Counter[str] = Counter()
        for _ in range(100):
            served += process.tenants(LANES)
            for grant in process.grants:
                grant.release()
            assert max(served.values()) - 1 <= sum(served.values()) // 1000
        assert set(served.values()) == {2}
        assert len(served) == 1000

    def test_a_round_goes_on_where_nobody_had_anything_due(self, conn: Conn) -> None:
        """Tenants whose jobs are due later are visited too, a bounded number each time."""
        seed(conn, 3 * LANES, tenant="'a' || i", available_at="now() + interval '1 hour'")
        made(conn, tenant="z")
        process = Process(conn, per_tenant=1)
        assert process.tenants(5) == {}
        assert process.steering.unfinished
        assert process.tenants(5) == {"z": 1}, "after a claim in vain it visits more of them"
        assert not process.steering.unfinished


class TestRoom:
    def test_nothing_of_a_full_tenant(self, conn: Conn) -> None:
        load(conn, "a", 9)
        load(conn, "b", 1)
        process = Process(conn, per_tenant=2)
        assert process.tenants(9) == {"a": 2, "b": 1}
        assert process.tenants(9) == {}

    def test_a_slot_given_back_is_filled(self, conn: Conn) -> None:
        load(conn, "a", 9)
        process = Process(conn, per_tenant=2)
        process.claim(9)
        process.grants[0].release()
        assert process.tenants(9) == {"a": 1}

    def test_one_claim_of_several_queues_and_priorities_keeps_a_tenants_limit(
        self, conn: Conn
    ) -> None:
        for queue in "qr":
            load(conn, "a", 8, queue=f"'{queue}'", priority="i % 4")
            load(conn, "b", 1, queue=f"'{queue}'")
        rows = Process(conn, per_tenant=3).claim({"q": 5, "r": 5})
        assert Counter(row.tenant for row in rows) == {"a": 3, "b": 2}
        assert all(row.priority == 0 for row in rows)

    def test_a_rate_is_kept_by_the_claim(self, conn: Conn) -> None:
        load(conn, "a", 20)
        load(conn, "b", 1)
        process = Process(conn, rate_per_tenant=0.001, burst_per_tenant=4)
        assert process.tenants(10) == {"a": 4, "b": 1}
        for grant in process.grants:
            grant.release()
        assert process.tenants(10) == {}

    def test_zero_stops_tenants_and_nobody_else(self, conn: Conn) -> None:
        load(conn, "a", 5)
        blank = made(conn)
        assert [row.id for row in Process(conn, per_tenant=0).claim(9)] == [blank]

    def test_jobs_without_a_tenant_have_no_limit(self, conn: Conn) -> None:
        seed(conn, 9)
        assert Process(conn, per_tenant=1).tenants(7) == {"": 7}


class TestWithoutTenant:
    def test_they_are_found_behind_a_full_tenant(self, conn: Conn) -> None:
        load(conn, "a", 5 * STRETCH)
        blank = made(conn)
        process = Process(conn, per_tenant=1)
        found = [row.id for _ in range(6) for row in process.claim(9) if not row.tenant]
        assert found == [blank]

    def test_they_come_first_and_last_by_turns(self, conn: Conn) -> None:
        """Neither a flood of them nor one of tenants keeps the others waiting."""
        load(conn, "a", 9)
        load(conn, "b", 9)
        seed(conn, 18)
        process = Process(conn, per_tenant=9)
        taken = [next(iter(process.tenants(1))) for _ in range(8)]
        assert taken == ["", "a", "", "b", "", "a", "", "b"]

    def test_one_behind_a_flood_of_tenants_with_room(self, conn: Conn) -> None:
        """The stretch moves on although every slot is filled each time."""
        for tenant in range(5):
            load(conn, f"t{tenant}", STRETCH)
        blank = made(conn)
        process = Process(conn, per_tenant=100_000)
        found = [row.id for _ in range(14) for row in process.claim(2) if not row.tenant]
        assert found == [blank]

    def test_all_are_served_in_the_end(self, conn: Conn) -> None:
        seed(conn, 3 * STRETCH, tenant="case when i % 5 = 0 then '' else 'a' end")
        process = Process(conn, per_tenant=7)
        served = 0
        for _ in range(60):
            served += process.tenants(20)[""]
        assert served == 3 * STRETCH // 5


class TestStatement:
    def test_pauses_and_due_times_hold(self, conn: Conn) -> None:
        made(conn, tenant="a", queue="paused")
        made(conn, tenant="a", delay=HOUR)
        made(conn, delay=HOUR)
        conn.execute("insert into jobs.pause (kind, name) values ('queue', 'paused')")
        assert Process(conn, per_tenant=5).claim({"q": 5, "paused": 5}) == []

    def test_lapsed_jobs_are_rescued_first(self, conn: Conn) -> None:
        held = running(conn, tenant="a")
        tables.lapse(conn, held[0])
        load(conn, "b", 3)
        process = Process(conn, per_tenant=5)
        rows = process.claim(2, rescue=True)
        assert Counter(row.tenant for row in rows) == {"a": 1, "b": 1}

    def test_it_says_whether_a_claim_of_none_has_something_to_do(self, conn: Conn) -> None:
        """So that none is sent where a process has nothing to do."""
        process = Process(conn, per_tenant=5)

        def more(queue: str = "q", **looks: bool) -> bool:
            rows = process.choose({queue: 1}, 0.0, **looks)
            return [row.kind for row in rows] == ["more"]

        every = dict.fromkeys(NO_LOOKS, True)
        assert not more(**every)
        (id, _) = running(conn, tenant="a")
        assert not more(**every), "its lease holds"
        tables.lapse(conn, id)
        assert more(rescue=True)
        assert not more(sweep=True, tidy=True)
        assert not more("another", rescue=True)
        conn.execute("insert into jobs.pause (kind, name) values ('queue', 'q')")
        assert not more(rescue=True)
        conn.execute("delete from jobs.pause")
        conn.execute("delete from jobs.job")
        conn.execute("insert into jobs.slot values (1, gen_random_uuid(), 'k')")
        assert more(tidy=True)
        assert not more(rescue=True, sweep=True)
        keyed(conn, "k", 1)
        claim(conn)
        assert more(sweep=True), "it was parked"
        assert not more(rescue=True)

    def test_two_processes_take_different_jobs(self, database: str) -> None:
        with psycopg.connect(database, autocommit=True) as conn:
            for tenant in "abcde":
                load(conn, tenant, 60)
            seed(conn, 60)
        taken: Counter[Any] = Counter()
        processes: dict[int, Process] = {}

        def step(conn: Conn, chance: Any) -> None:
            process = processes.setdefault(id(conn), Process(conn, per_tenant=3))
            for row in process.claim(chance.randint(1, 9)):
                taken[row.id] += 1
            assert all(n <= 3 for n in process.steering.limiter._tenants.values())
            for grant in process.grants:
                grant.release()

        soak(database, 2, [step, step, step])
        assert set(taken.values()) == {1}
        assert len(taken) == 360

    def test_an_enqueued_tenant_is_seen_by_the_next_claim(self, conn: Conn) -> None:
        process = Process(conn, per_tenant=5)
        assert process.claim(5) == []
        made(conn, tenant="a")
        assert process.tenants(5) == {"a": 1}


@pytest.fixture(scope="module")
def crowded(clones: Clones) -> Iterator[str]:
    """DSN of a database with 50,000 due jobs of one tenant in q, 1,000 tenants in r."""
    with clones.clone() as dsn:
        with psycopg.connect(dsn, autocommit=True) as conn:
            never_analysed(conn)
            seed(conn, LOUD, tenant="'loud'")
            seed(conn, 5_000, queue="'r'", tenant="'t' || (i % 1000)")
            conn.execute("vacuum (analyze) jobs.job")
        yield dsn


@pytest.fixture
def probe(crowded: str) -> Iterator[Conn]:
    """A session planned as a worker's, in a transaction that is rolled back."""
    with psycopg.connect(crowded, options=AS_OUR_WORKERS) as conn:
        enqueue(conn, queue="warm")
        yield conn
        conn.rollback()


class TestCost:
    def look(self, process: Process, room: Mapping[str, int]) -> Plan:
        """The plan of the next choice."""
        asked = process.steering.choose(room, time.monotonic())._asdict()
        asked |= dict.fromkeys(NO_LOOKS, True)
        given = {"queues": list(room), "free": list(room.values()), **asked}
        plan = explain(process.conn, "ChooseJobs", generic=True, **given)
        for table in ("job", "pause"):
            kinds = {node.kind for node in plan.on(table)}
            assert kinds <= {"Index Scan", "Index Only Scan", "Bitmap Heap Scan"}
        return plan

    def test_the_single_job_of_another_is_taken_by_the_next_claim(self, probe: Conn) -> None:
        """And nothing is claimed to be handed back: as many writes as jobs that run."""
        process = Process(probe, per_tenant=10)
        assert process.tenants({"q": 20}) == {"loud": 10}
        single = made(probe, tenant="single", run_at=PAST)
        rows = process.claim({"q": 10})
        assert [row.id for row in rows] == [single]
        taken = probe.execute(
            "select count(*), sum(claims)::int, sum(revoked)::int from jobs.job where claims > 0"
        ).fetchone()
        assert taken == (11, 11, 0)
        untouched = probe.execute("select count(*) from jobs.job where claims = 0 and xmax <> 0")
        assert untouched.fetchone() == (0,), "not even locked"

    def test_passing_over_a_full_tenant_is_a_few_probes(self, probe: Conn) -> None:
        process = Process(probe, per_tenant=10)
        process.claim({"q": 10})
        made(probe, tenant="single", run_at=PAST)
        plan = self.look(process, {"q": 10})
        assert plan.buffers < 120, str(plan)

    def test_a_thousand_tenants_cost_no_more_than_a_round(self, probe: Conn) -> None:
        process = Process(probe, per_tenant=1)
        plan = self.look(process, {"r": LANES})
        # a step, a probe and an update for each lane
        assert plan.buffers < 35 * LANES, str(plan)

    def test_nothing_due_is_a_few_probes(self, probe: Conn) -> None:
        plan = self.look(Process(probe, per_tenant=1), {"none": 10})
        assert plan.buffers < 60, str(plan)
