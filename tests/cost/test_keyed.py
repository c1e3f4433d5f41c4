"""What a job with a concurrency key costs, and that a busy key costs the others nothing."""

from __future__ import annotations

import itertools
import statistics
import sys
import time
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from jobs_sql.claim import claim_jobs
from jobs_sql.settle import settle_jobs
from tests.cost import seeded
from tests.cost.test_budget import keep, refuse_scans
from tests.sql.calls import claim, settle
from tests.sql.volume import settling
from tests.support.buffers import explain
from tests.support.server import Clones

pytestmark = pytest.mark.lone

Conn = psycopg.Connection[Any]
CROWD = 10_000
# Ids in order of creation, as those that the library makes, and none twice.
_FIRST = itertools.count(1_000_000, 100_000)


@pytest.fixture
def worker(database: str) -> Iterator[Conn]:
    """A session planned as a worker's, on a seeded database."""
    with psycopg.connect(database, autocommit=True, options=seeded.AS_OUR_WORKERS) as conn:
        seeded.seed(conn)
        seed_keyed(conn, 4, key="'warm ' || i", queue="warm")
        explain(conn, "ClaimJobs", generic=True, **seeded.claiming({"warm": 2}))
        claim(conn, {"warm": 2})
        settle(conn, *seeded.held(conn))
        yield conn


def seed_keyed(
    conn: Conn, count: int, key: str = "'busy'", queue: str = "keyed", state: str = "ready"
) -> None:
    """Jobs with a concurrency key of limit 1; the key is an SQL expression over ``i``."""
    conn.execute(
        """
        insert into jobs.job (
            id, run_id, queue, name, max_attempts, available_at, concurrency_key,
            concurrency_limit, when_busy, state, waiting_since, input
        )
        select lpad(to_hex(%(first)s + i), 32, '0')::uuid, md5(i::text)::uuid, %(queue)s, 'send', 3,
            now() - interval '1 hour' + i * interval '1 millisecond', KEY, 1, 'wait',
            %(state)s, case when %(state)s = 'blocked' then now() end, '{"n": 12345}'
        from generate_series(1, %(count)s::integer) as s (i)
        """.replace("KEY", key).encode(),
        {"count": count, "queue": queue, "state": state, "first": next(_FIRST)},
    )
    conn.execute("vacuum (analyze) jobs.job")


@pytest.mark.parametrize("count", [1, 30])
def test_a_claim_and_a_settle_of_jobs_with_keys(worker: Conn, count: int) -> None:
    seed_keyed(worker, 2 * count, key="'k' || i")
    plan = explain(worker, "ClaimJobs", generic=True, **seeded.claiming({"keyed": count}))
    assert plan.rows == count
    refuse_scans(plan)
    keep(plan, "claim_keyed", str(count))
    held = seeded.held(worker)
    assert worker.execute("select count(*) from jobs.slot").fetchone() == (count,)
    plan = explain(worker, "SettleJobs", generic=True, **seeded.settling(held, "completed"))
    refuse_scans(plan)
    keep(plan, "settle_keyed", str(count))


def test_a_promotion(worker: Conn) -> None:
    seed_keyed(worker, 50, state="blocked")
    plan = explain(
        worker,
        "PromoteKeys",
        generic=True,
        keys=["busy"],
        after="",
        most=0,
        tidy=False,
        limited=[],
        limits=[],
    )
    assert plan.rows == 1
    refuse_scans(plan)
    keep(plan, "promote", "1")


def test_ten_thousand_that_wait_for_one_key_do_not_slow_the_others(worker: Conn) -> None:
    before = explain(worker, "ClaimJobs", generic=True, **seeded.claim(10))
    settle(worker, *seeded.held(worker))
    seed_keyed(worker, CROWD, queue=seeded.QUEUE, state="blocked")
    worker.execute("insert into jobs.slot values (1, gen_random_uuid(), 'busy')")
    after = explain(worker, "ClaimJobs", generic=True, **seeded.claim(10))
    assert before.rows == after.rows == 10
    assert after.buffers <= before.buffers * 1.5, f"{before.buffers} {after.buffers}"
    more = dict(seeded.claim(10)) | {"sweep": True}
    swept = explain(worker, "ClaimJobs", generic=True, **more)
    assert swept.buffers <= before.buffers * 1.5, f"{before.buffers} {swept.buffers}"


def drained(conn: Conn, count: int) -> float:
    """Jobs a second, of so many that one session claims and settles fifty at a time."""
    began = time.monotonic()
    for _ in range(count // 50):
        rows = claim_jobs(conn, **seeded.claim(50))
        settle_jobs(conn, **settling([(row.id, row.claims) for row in rows], "completed"))
    return count / (time.monotonic() - began)


@pytest.mark.slow
@pytest.mark.serial
def test_nor_do_they_lower_the_rate_of_the_others(
    worker: Conn, lone_clones: Clones, capsys: pytest.CaptureFixture[str]
) -> None:
    """Medians of interleaved rounds, with them and without them in two databases."""
    with (
        lone_clones.clone() as other,
        psycopg.connect(other, autocommit=True, options=seeded.AS_OUR_WORKERS) as beside,
    ):
        seeded.seed(beside)
        seed_keyed(beside, CROWD, queue=seeded.QUEUE, state="blocked")
        beside.execute("insert into jobs.slot values (1, gen_random_uuid(), 'busy')")
        rates: dict[str, list[float]] = {"alone": [], "beside them": []}
        for conn in (worker, beside):
            drained(conn, 500)
        for _ in range(9):
            rates["alone"].append(drained(worker, 1_000))
            rates["beside them"].append(drained(beside, 1_000))
    alone, beside_them = (statistics.median(found) for found in rates.values())
    with capsys.disabled():
        for name, found in rates.items():
            sys.stdout.write(f"{name}: {min(found):.0f} to {max(found):.0f} jobs/s\n")
        sys.stdout.write(f"ratio of the medians {beside_them / alone:.2f}\n")
    assert beside_them >= 0.9 * alone


def test_ten_thousand_that_are_ready_are_parked_in_few_claims(worker: Conn) -> None:
    """The price of a crowd is paid once, in bounded pieces."""
    seed_keyed(worker, CROWD, queue="crowd")
    claim(worker, {"crowd": 1})
    rounds = 0
    while any(row.verdict == "parked" for row in claim(worker, {"crowd": 5}, park_limit=500)):
        rounds += 1
    assert rounds <= CROWD // 500 + 1
    assert worker.execute("select count(*) from jobs.job where state = 'blocked'").fetchone() == (
        CROWD - 1,
    )


def test_jobs_without_a_key_do_not_touch_slots(worker: Conn) -> None:
    for name, asked in (("ClaimJobs", seeded.claim(10)), ("SettleJobs", None)):
        plan = explain(worker, name, generic=True, **(asked or seeded.settle(worker)))
        looked = [node for node in plan.on("slot") if "Scan" in node.kind and node.buffers]
        assert looked == [], f"{name}\n{plan}"
        assert plan.rows == 10
