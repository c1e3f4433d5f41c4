"""A claim whose answer is lost: the process asks what it was given. Nobody waits for a lease."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

import jobs
from devkit.proxy import Proxy
from jobs.service.link import Link, Target
from jobs.worker.config import WorkerConfig, configure
from jobs.worker.held import Held, Holding
from jobs.worker.strays import Strays, _may_have_landed
from jobs_sql.claim import ClaimJobsRow
from tests.runtime.working import Input, Table, execute, job, logged, rows, serving, until
from tests.sql.calls import claim
from tests.support.server import Clones

LONG: dict[str, Any] = {"lease": timedelta(minutes=5), "listen": False}
ledger: Counter[tuple[UUID, int]] = Counter()


@job()
async def effect(_: Input, run: jobs.Run) -> None:
    """Its effect is known by the claim that it belongs to."""
    ledger[run.id, run.claims] += 1


@pytest.fixture(autouse=True)
def _empty_ledger() -> None:
    ledger.clear()


@pytest.fixture
def proxy(clones: Clones) -> Iterator[Proxy]:
    with Proxy(Path(clones.host)) as proxy:
        yield proxy


@pytest.fixture
def through(proxy: Proxy, database: str) -> str:
    """DSN of `database` through the proxy, without encryption, so that each chunk is protocol."""
    name = conninfo_to_dict(database)["dbname"]
    return f"{proxy.dsn(str(name))}?sslmode=disable&gssencmode=disable&connect_timeout=2"


async def lose_the_answer(table: Table, proxy: Proxy, count: int) -> list[UUID]:
    """Enqueue jobs, and cut the connection between their claim and its answer."""
    proxy.delay(0.3)
    ids = table.enqueue(effect, count)
    await until(lambda: table.live(ids[0]).state == "running", "the claim to land")
    proxy.cut("down")
    await until(proxy.was_cut.is_set, "its answer to be lost")
    proxy.ok()
    return ids


@pytest.mark.parametrize("count", [1, 5])
async def test_what_it_claimed_runs_at_once_and_costs_no_attempt(
    database: str, proxy: Proxy, through: str, count: int, caplog: pytest.LogCaptureFixture
) -> None:
    table = Table(database)
    async with serving(database, effect, dsn=through, **LONG) as worker:
        ids = await lose_the_answer(table, proxy, count)
        await until(lambda: worker.stats().completed == count, "the end")
        assert worker.stats().lost == 0
    assert ledger == Counter((id, 1) for id in ids)
    assert [table.attempts(id) for id in ids] == [[]] * count
    assert {table.settled(id).claims for id in ids} == {1}
    assert table.counters() == {"completed": count}
    (said,) = logged(caplog, "jobs.worker.claim_recovered")
    assert f"has found the {count} jobs" in said


async def test_under_a_name_that_others_may_have_the_lease_decides(
    database: str, proxy: Proxy, through: str, caplog: pytest.LogCaptureFixture
) -> None:
    """What a row says of its holder is a name, and a namesake may live."""
    table = Table(database)
    options = LONG | {"lease": timedelta(seconds=1), "name": "web-0"}
    async with serving(database, effect, dsn=through, **options) as worker:
        (one,) = await lose_the_answer(table, proxy, 1)
        await until(lambda: worker.stats().completed == 1, "the end")
    assert ledger == Counter([(one, 2)])
    assert [attempt.error_type for attempt in table.attempts(one)] == ["LeaseLapsed"]
    assert table.counters() == {"rescued": 1, "completed": 1}
    assert logged(caplog, "jobs.worker.claim_recovered") == []


async def test_a_claim_that_lands_after_the_first_look(
    database: str, proxy: Proxy, through: str
) -> None:
    """The server is still at it when the process has connected anew."""
    table = Table(database)
    async with serving(database, effect, dsn=through, **LONG) as worker:
        with psycopg.connect(database) as holder:
            holder.execute("lock table jobs.pause in access exclusive mode")  # a claim reads it
            (one,) = table.enqueue(effect)
            await until(
                lambda: rows(
                    database,
                    "select 1 from pg_stat_activity where wait_event_type = 'Lock'"
                    " and query like '%%jobs:claim_jobs%%' and datname = current_database()",
                ),
                "the claim to wait",
            )
            proxy.reset()
            await until(lambda: len(worker._strays._looks) == 2, "the first look")
        await until(lambda: worker.stats().completed == 1, "the end")
    assert ledger == Counter([(one, 1)])
    assert table.attempts(one) == []


async def test_sessions_ended_in_the_middle_of_claims(database: str) -> None:
    """Again and again: each job has one effect, in its first attempt."""
    table = Table(database)
    ids = table.enqueue(effect, 300)
    options = LONG | {"queues": {"default": 3}}
    async with serving(database, effect, **options) as worker:
        while table.count_live() > 20:
            execute(
                database,
                "select pg_terminate_backend(pid) from pg_stat_activity"
                " where datname = current_database() and query like '%%jobs:claim_jobs%%'"
                " and pid <> pg_backend_pid()",
            )
            await asyncio.sleep(0.02)
        await until(lambda: not table.count_live(), "all to end")
        await until(lambda: not worker.stats().in_flight, "the answers")
    assert ledger == Counter((id, 1) for id in ids), "none waited for a lease, none ran twice"


class TestWhatIsFound:
    """The rows that a process takes for its own, and those that it never may."""

    NAME = "host:1:0123456789ab"

    @pytest.fixture
    def config(self) -> WorkerConfig:
        config = configure(
            name=self.NAME,
            queues=None,
            lease=timedelta(seconds=30),
            poll=timedelta(seconds=1),
            idle_poll=None,
            drain=timedelta(0),
        )
        object.__setattr__(config, "own_name", True)
        return config

    def claimed(self, database: str, name: str | None = None) -> list[ClaimJobsRow]:
        """Three jobs that were claimed under a name."""
        Table(database).enqueue(effect, 3)
        with psycopg.connect(database, autocommit=True) as conn:
            return claim(conn, {"default": 3}, worker=name or self.NAME)

    async def found(self, database: str, strays: Strays) -> set[UUID]:
        """Ids of one look that follows a claim lost just now."""
        strays.failed(asyncio.get_running_loop().time(), TimeoutError())
        assert strays.due
        link = Link(Target.of(database, "jobs:test"))
        try:
            return {row.id for row in await strays.find(link, 5)}
        finally:
            await link.close()

    async def test_all_that_it_does_not_know_of(self, database: str, config: WorkerConfig) -> None:
        mine, others = self.claimed(database), self.claimed(database, "other:1:0123456789ab")
        assert len(others) == 3
        found = await self.found(database, Strays(config, Holding()))
        assert found == {row.id for row in mine}

    async def test_not_what_it_holds(self, database: str, config: WorkerConfig) -> None:
        first, second, third = self.claimed(database)
        holding = Holding()
        holding.add(held(row) for row in (first, second))
        assert await self.found(database, Strays(config, holding)) == {third.id}

    async def test_not_what_it_has_given_up(self, database: str, config: WorkerConfig) -> None:
        """A body that does not stop may still be at it, under the same claim number."""
        first, second, third = self.claimed(database)
        strays = Strays(config, Holding())
        for row in (second, third):
            strays.disown(held(row))
        assert await self.found(database, strays) == {first.id}

    async def test_it_looks_three_times_and_then_no_more(
        self, database: str, config: WorkerConfig, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("jobs.worker.strays._LOOKS", (0.0, 0.0, 0.0))
        strays = Strays(config, Holding())
        link = Link(Target.of(database, "jobs:test"))
        strays.failed(0.0, TimeoutError())
        for _ in range(3):
            assert strays.due
            assert await strays.find(link, 5) == []
        assert not strays.due
        await link.close()

    async def test_not_under_a_name_of_the_users(self, config: WorkerConfig) -> None:
        object.__setattr__(config, "own_name", False)
        strays = Strays(config, Holding())
        strays.failed(0.0, TimeoutError())
        assert not strays.due


def held(row: ClaimJobsRow) -> Any:
    """The record of a claimed row."""
    return Held(row, "w", 0.0)


@pytest.mark.parametrize(
    ("error", "wanted"),
    [
        (TimeoutError(), True),
        (OSError(), True),
        (psycopg.OperationalError("the connection is lost"), True),
        (psycopg.errors.AdminShutdown(), True),
        (psycopg.errors.CrashShutdown(), True),
        (psycopg.errors.LockNotAvailable(), False),
        (psycopg.errors.ReadOnlySqlTransaction(), False),
        (psycopg.errors.UndefinedTable(), False),
        (ValueError(), False),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else str(value),
)
def test_which_failures_may_hide_a_claim(error: Exception, wanted: bool) -> None:
    assert _may_have_landed(error) is wanted
