"""Plans and buffers of the statements on tables of a size that matters.

Counts of buffers, never times. The plans must hold whatever is known about the tables: generic as
our workers ask for it (a plan made once, sequential scans discouraged), generic or custom as the
server likes, and with no statistics at all.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import psycopg
import pytest
from psycopg import Connection

from tests.sql.calls import (
    MINUTE,
    Held,
    Item,
    claim,
    dead,
    enqueue,
    enqueue_many,
    new_id,
    seed,
    settle,
)
from tests.sql.test_enqueue_many import arrays
from tests.sql.volume import (
    claiming,
    load_jobs,
    load_settled,
    never_analysed,
    renewing,
    settling,
)
from tests.support.buffers import Plan, explain
from tests.support.server import Clones

pytestmark = pytest.mark.majors

Conn = Connection[Any]

AS_OUR_WORKERS = "-c plan_cache_mode=force_generic_plan -c enable_seqscan=off"
BATCH = 100
SLOW = [pytest.mark.slow, pytest.mark.timeout(300)]
THREE_QUEUES = {"q1": 4, "q2": 3, "q3": 3}


@pytest.fixture(
    scope="module",
    params=[
        pytest.param((60_000, True), id="60k-analysed"),
        pytest.param((60_000, False), id="60k-unanalysed"),
        pytest.param((500_000, True), marks=SLOW, id="500k-analysed"),
        pytest.param((500_000, False), marks=SLOW, id="500k-unanalysed"),
    ],
)
def loaded(clones: Clones, request: pytest.FixtureRequest) -> Iterator[str]:
    """DSN of a database with jobs due and not, and as many finished ones."""
    count, analysed = request.param
    with clones.clone() as dsn:
        with psycopg.connect(dsn, autocommit=True) as conn:
            never_analysed(conn)
            load_jobs(conn, count)
            load_settled(conn, count)
            if analysed:
                conn.execute("analyze jobs.job")
                conn.execute("analyze jobs.settled")
        yield dsn


@dataclass(frozen=True)
class Way:
    """How a session has its statements planned, and queues that no other way has touched.

    What a test did is rolled back, and leaves dead rows behind for the next one.
    """

    options: str
    generic: bool
    first: int

    def queue(self, number: int) -> str:
        """Name of one of ten queues."""
        return f"q{self.first + number}"

    def three(self, number: int) -> dict[str, int]:
        """Three queues with ten free slots between them."""
        return {self.queue(number): 4, self.queue(number + 1): 3, self.queue(number + 2): 3}


@pytest.fixture(
    params=[
        pytest.param(Way(AS_OUR_WORKERS, True, 0), id="ours"),
        pytest.param(Way("", True, 10), id="generic"),
        pytest.param(Way("", False, 20), id="custom"),
    ]
)
def way(request: pytest.FixtureRequest) -> Way:
    """The three ways."""
    chosen: Way = request.param
    return chosen


@pytest.fixture
def probe(loaded: str, way: Way) -> Iterator[Conn]:
    """A session in a transaction that is rolled back."""
    with psycopg.connect(loaded, options=way.options) as conn:
        # The first of a session reads the catalogs as well.
        enqueue_many(conn, [Item(key="warm")], ids_supplied=True)
        enqueue(conn, id=new_id())
        yield conn
        conn.rollback()


BY_INDEX = {"Index Scan", "Index Only Scan", "Bitmap Heap Scan", "ModifyTable"}


def refuse_scans(plan: Plan) -> None:
    """No node reads a large table otherwise than through an index."""
    for table in ("job", "settled", "attempt"):
        assert {node.kind for node in plan.on(table)} <= BY_INDEX, str(plan)


def refuse_sorts(plan: Plan) -> None:
    """Nothing is sorted (a node that gets no row sorts nothing)."""
    sorts = [node for node in plan.nodes if "Sort" in node.kind and node.rows]
    assert not sorts, str(plan)


class TestClaim:
    def test_it_walks_the_ready_index_and_sorts_nothing(self, probe: Conn, way: Way) -> None:
        plan = explain(probe, "ClaimJobs", generic=way.generic, **claiming(way.three(0)))
        assert plan.rows == 10
        refuse_scans(plan)
        refuse_sorts(plan)
        assert {"job_ready_idx", "job_pkey"} <= plan.indexes
        assert plan.buffers < 200, str(plan)

    @pytest.mark.parametrize("free", [1, 10, 100])
    def test_what_it_reads_grows_with_what_it_takes(self, probe: Conn, way: Way, free: int) -> None:
        plan = explain(probe, "ClaimJobs", generic=way.generic, **claiming({way.queue(3): free}))
        assert plan.rows == free
        assert plan.buffers < 40 + 20 * free, str(plan)

    def test_an_idle_one_looks_once_at_each_queue_and_priority(self, probe: Conn, way: Way) -> None:
        idle = claiming({"x": 10, "y": 10, "z": 10}, rescue=True)
        plan = explain(probe, "ClaimJobs", generic=way.generic, **idle)
        assert plan.rows == 0
        refuse_scans(plan)
        # Three queues, four priorities and the running rows: three or four pages down each tree.
        assert plan.buffers < 80, str(plan)

    def test_a_rescue_walks_the_running_index(self, probe: Conn, way: Way) -> None:
        probe.execute(
            """
            update jobs.job as j
            set state = 'running', worker = 'gone', claims = 1,
                attempt = case when j.priority = 3 then 3 else 1 end,
                rescue_at = now() - interval '1 second',
                lease_expires_at = now() - interval '1 second'
            where j.id = any(array(select id from jobs.job where queue = %s limit 200))
            """,
            [way.queue(4)],
        )
        asked = claiming({way.queue(4): 50, way.queue(5): 10}, rescue=True)
        plan = explain(probe, "ClaimJobs", generic=way.generic, **asked)
        refuse_scans(plan)
        refuse_sorts(plan)
        assert {"job_running_idx", "job_ready_idx", "job_pkey"} <= plan.indexes
        # The update above left its dead entries in front of the ready index.
        assert plan.buffers < 60 * 30 + 400, str(plan)


class TestIndependence:
    def test_a_claim_does_not_see_how_many_are_finished_or_due_later(self, conn: Conn) -> None:
        """O-45 in small; in full below."""
        never_analysed(conn)
        load_jobs(conn, 4000, due=1.0)
        seen = []
        for _ in range(3):
            load_jobs(conn, 20_000, due=0.0)
            load_settled(conn, 20_000)
            with psycopg.connect(conn.info.dsn, options=AS_OUR_WORKERS) as probe:
                plan = explain(probe, "ClaimJobs", generic=True, **claiming(THREE_QUEUES))
                probe.rollback()
            assert plan.rows == 10
            seen.append(plan.buffers)
        # A page more on the way down each tree, at most.
        assert max(seen) - min(seen) < 60, seen

    def test_a_backlog_of_one_priority_is_not_read_for_another(self, conn: Conn) -> None:
        never_analysed(conn)
        seed(conn, 5000, priority="3", available_at="now() - interval '1 day'")
        seed(conn, 5, priority="2")
        with psycopg.connect(conn.info.dsn, options=AS_OUR_WORKERS) as probe:
            plan = explain(probe, "ClaimJobs", generic=True, **claiming({"q": 10}))
            probe.rollback()
        assert plan.rows == 10
        assert plan.buffers < 300, str(plan)

    def test_a_plan_made_on_empty_tables_serves_full_ones(self, conn: Conn) -> None:
        """A generic plan outlives the load: the worker was there first."""
        never_analysed(conn)
        with psycopg.connect(conn.info.dsn, options=AS_OUR_WORKERS, autocommit=True) as worker:
            for _ in range(10):
                assert claim(worker, THREE_QUEUES) == []
            load_jobs(conn, 60_000)
            load_settled(conn, 60_000)
            before = reads(worker)
            assert len(claim(worker, THREE_QUEUES)) == 10
            assert reads(worker) == before


def reads(conn: Conn) -> int:
    """Sequential scans of jobs.job that have begun so far, by this session and by others."""
    conn.execute("select pg_stat_force_next_flush()")
    row = conn.execute(
        "select seq_scan from pg_stat_user_tables where schemaname = 'jobs' and relname = 'job'"
    ).fetchone()
    assert row is not None
    count: int = row[0]
    return count


@pytest.fixture
def held(probe: Conn, way: Way) -> list[Held]:
    """Jobs that this session has claimed, in its open transaction."""
    rows = claim(probe, {way.queue(6): BATCH})
    assert len(rows) == BATCH
    return [(row.id, row.claims) for row in rows]


class TestSettleAndRenew:
    @pytest.mark.parametrize(
        ("outcomes", "limit"),
        [(["completed"], 35), (["retry"], 45), (["completed", "retry", "dead", "released"], 45)],
        ids=["completed", "retry", "mixed"],
    )
    def test_a_settle_goes_through_the_primary_keys(
        self, probe: Conn, way: Way, held: list[Held], outcomes: list[str], limit: int
    ) -> None:
        plan = explain(
            probe, "SettleJobs", generic=way.generic, **settling(held, *outcomes, error=True)
        )
        assert plan.rows == BATCH
        refuse_scans(plan)
        assert {"job_pkey", "settled_pkey"} <= plan.indexes
        assert plan.buffers < limit * BATCH, str(plan)

    def test_so_does_a_settle_of_jobs_that_are_gone(self, probe: Conn, way: Way) -> None:
        unknown = [(new_id(), 1) for _ in range(BATCH)]
        plan = explain(probe, "SettleJobs", generic=way.generic, **settling(unknown, "completed"))
        refuse_scans(plan)
        assert plan.buffers < 16 * BATCH, str(plan)

    def test_a_renewal_goes_through_the_primary_key_alone(
        self, probe: Conn, way: Way, held: list[Held]
    ) -> None:
        plan = explain(probe, "RenewLeases", generic=way.generic, **renewing(held))
        assert plan.rows == BATCH
        refuse_scans(plan)
        assert plan.indexes == {"job_pkey"}
        assert plan.buffers < 20 * BATCH, str(plan)


class TestControl:
    def test_a_cancel_goes_through_the_primary_keys(
        self, probe: Conn, way: Way, held: list[Held]
    ) -> None:
        waiting = probe.execute(
            "select id from jobs.job where queue = %s and state = 'ready' limit 50", [way.queue(6)]
        )
        ids = [id for (id,) in waiting] + [id for id, _ in held] + [new_id() for _ in range(10)]
        plan = explain(probe, "CancelJobs", generic=way.generic, ids=ids, reason="r")
        assert plan.rows == len(ids) == BATCH + 60
        refuse_scans(plan)
        assert {"job_pkey", "settled_pkey"} <= plan.indexes
        assert plan.buffers < 35 * len(ids), str(plan)

    def test_a_requeue_goes_through_keys_alone(
        self, probe: Conn, way: Way, held: list[Held]
    ) -> None:
        ended = [id for id, _ in held]
        settle(probe, *(dead(one) for one in held))
        ids = [*ended, *(new_id() for _ in range(10))]
        plan = explain(
            probe,
            "RequeueJobs",
            generic=way.generic,
            ids=ids,
            run_at=None,
            delay=MINUTE,
            completed=False,
        )
        assert plan.rows == BATCH + 10
        refuse_scans(plan)
        assert {"job_pkey", "settled_pkey", "job_unique_idx"} <= plan.indexes
        assert plan.buffers < 45 * len(ids), str(plan)


class TestEnqueue:
    def test_one_writes_its_own_entries_and_reads_nothing(self, probe: Conn, way: Way) -> None:
        one = {
            key: value
            for key, value in arrays(["k"]).items()
            if key in ("queue", "name", "max_attempts", "dead_letter", "idempotency_scope")
        } | {
            "id": new_id(),
            "run_id": new_id(),
            "tenant": "",
            "priority": 0,
            "run_at": None,
            "delay": MINUTE,
            "idempotency_key": "k",
            "traceparent": None,
            "enqueued_by": None,
            "concurrency_key": None,
            "concurrency_limit": None,
            "when_busy": None,
            "input": "{}",
            "id_supplied": True,
        }
        plan = explain(probe, "EnqueueJob", generic=way.generic, **one)
        refuse_scans(plan)
        assert plan.buffers < 40, str(plan)

    def test_many_look_up_only_what_exists(self, probe: Conn, way: Way) -> None:
        keys = [f"new{n}" for n in range(BATCH)]
        asked = arrays(keys) | {"ids_supplied": True}
        plan = explain(probe, "EnqueueJobs", generic=way.generic, **asked)
        assert plan.rows == BATCH
        refuse_scans(plan)
        assert plan.buffers < 40 * BATCH, str(plan)
        asked = arrays(keys) | {"ids_supplied": True}
        again = explain(probe, "EnqueueJobs", generic=way.generic, **asked)
        assert again.rows == BATCH
        refuse_scans(again)
        assert {"job_pkey", "job_unique_idx", "settled_pkey"} <= again.indexes
        assert again.buffers < 40 * BATCH, str(again)

    @pytest.mark.parametrize("since", [None, MINUTE], ids=["holder", "former"])
    def test_the_second_look_is_a_few_probes(self, probe: Conn, way: Way, since: Any) -> None:
        plan = explain(
            probe,
            "FindEnqueued",
            generic=way.generic,
            ids=[new_id()],
            run_ids=[new_id()],
            tenants=[""],
            idempotency_keys=["none"],
            name="n1",
            queue=way.queue(7),
            since=since,
        )
        refuse_scans(plan)
        assert plan.rows == 0
        # A job a second has settled; it reads those of the minute.
        assert plan.buffers < (100 if since else 30), str(plan)

    def test_taking_back_is_a_few_probes(self, probe: Conn, way: Way) -> None:
        ids = [new_id() for _ in range(10)]
        plan = explain(probe, "UndoRepublished", generic=way.generic, ids=ids, run_ids=ids)
        refuse_scans(plan)
        assert plan.buffers < 10 * 10, str(plan)


@pytest.fixture(scope="module")
def millions(clones: Clones) -> Iterator[str]:
    """DSN of a database with 5 million jobs due next month and 1 million finished ones."""
    with clones.clone() as dsn:
        with psycopg.connect(dsn, autocommit=True) as conn:
            never_analysed(conn)
            load_jobs(conn, 5_000_000, queues=10_000, due=0.0)
            load_settled(conn, 1_000_000, queues=10_000)
            conn.execute(
                """
                update jobs.job set available_at = now() - interval '1 second'
                where id = any(array(
                    (select id from jobs.job where queue = 'q17' limit 10)
                    union all (select id from jobs.job where queue = 'q4711' limit 6)
                    union all (select id from jobs.job where queue = 'q9999' limit 4)
                ))
                """
            )
        yield dsn


@pytest.mark.slow
@pytest.mark.serial
@pytest.mark.timeout(900)
class TestMillionsWaitingForLater:
    """O-45: 5 million due next month, 1 million finished, 20 due now in 3 of 10,000 queues."""

    @pytest.mark.parametrize("analysed", [False, True])
    def test_the_claim_of_the_twenty_touches_a_few_hundred_buffers(
        self, millions: str, analysed: bool
    ) -> None:
        if analysed:
            with psycopg.connect(millions, autocommit=True) as conn:
                conn.execute("analyze jobs.job")
        queues = {"q17": 20, "q4711": 20, "q9999": 20}
        for options, generic in ((AS_OUR_WORKERS, True), ("", True), ("", False)):
            with psycopg.connect(millions, options=options) as probe:
                asked = claiming(queues, rescue=True)
                plan = explain(probe, "ClaimJobs", generic=generic, **asked)
                probe.rollback()
            assert plan.rows == 20
            refuse_scans(plan)
            # About 330; each run leaves the dead rows of its rollback to the next.
            assert plan.buffers < 600, str(plan)
