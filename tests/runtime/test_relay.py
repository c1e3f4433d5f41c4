"""A relay in this process: order, failures, refusals, leases, pruning."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from psycopg_pool import AsyncConnectionPool

import jobs
import jobs.outbox
from jobs.relay import Message, Outcome, Published
from jobs.relay import publisher as publisher_module
from jobs.service.link import Target
from tests.runtime.relaying import (
    Taker,
    make,
    outbox,
    queued,
    relaying,
    stage,
)
from tests.runtime.working import Input, execute, job, leaving_nothing, logged, rows, until
from tests.support.server import Clones

SECOND = timedelta(seconds=1)


@pytest.fixture
def queue_database(clones: Clones) -> Iterator[str]:
    """Another database than the outbox's."""
    with clones.clone() as dsn:
        yield dsn


@pytest.fixture(params=["the same database", "another database"])
def to(request: pytest.FixtureRequest, database: str, queue_database: str) -> str:
    return database if request.param == "the same database" else queue_database


class TestPublishing:
    async def test_every_row_becomes_its_job(self, database: str, to: str) -> None:
        ids = stage(database, *range(25))
        stats = await make(database, to, batch=10).run_until_idle()
        assert (stats.published, stats.existing, stats.state) == (25, 0, "stopped")
        assert queued(to) == ids
        found = outbox(database)
        assert [row.id for row in found] == ids
        assert {row.outcome for row in found} == {"created"}
        assert [row.published_as for row in found] == ids
        assert {row.published_by for row in found} == {stats.name}
        assert all(row.published_at is not None for row in found)
        runs = rows(to, "select id, run_id from jobs.job")
        assert {(row.id, row.run_id) for row in runs} == {(row.id, row.run_id) for row in found}

    async def test_a_batch_is_a_few_statements_whatever_its_size(
        self, database: str, to: str
    ) -> None:
        stage(database, *range(250))
        for place in {database, to}:
            execute(place, "create extension if not exists pg_stat_statements schema public")
            execute(
                place,
                "select pg_stat_statements_reset(0, oid, 0) from pg_database"
                " where datname = current_database()",
            )
        await make(database, to, batch=100).run_until_idle()
        sent = {
            row.name: row.calls
            for place in {database, to}
            for row in rows(
                place,
                "select substring(s.query from 'jobs:([a-z_]+)') as name, s.calls::int as calls"
                " from pg_stat_statements as s join pg_database as d on d.oid = s.dbid"
                " where d.datname = current_database() and s.query like '%%/* jobs:%%'"
                " and s.query not like '%%pg_stat_statements%%'",
            )
        }
        batches = {"publish_jobs": 3, "undo_republished": 3, "mark_outbox": 3}
        assert {name: sent.get(name) for name in batches} == batches
        assert sent["claim_outbox"] <= 5, "one a batch, and the looks that find nothing"
        assert len(queued(to)) == 250

    async def test_a_limit_on_concurrency_goes_along(self, database: str, to: str) -> None:
        def limited_fn(input: Input) -> None: ...

        limit = jobs.Concurrency(key=lambda input: f"k{input.n}", limit=2, when_busy="fail")
        limited = job(name="limited", concurrency=limit)(limited_fn)
        stage(database, 1, handle=limited)
        with psycopg.connect(to, autocommit=True) as conn:
            limited.enqueue(conn, Input(n=1))
        await make(database, to).run_until_idle()
        found = rows(to, "select concurrency_key, concurrency_limit, when_busy from jobs.job")
        assert len(found) == 2
        assert found[0] == found[1]
        assert found[0][1:] == (2, "fail")

    async def test_what_is_staged_while_it_serves(self, database: str, to: str) -> None:
        async with relaying(database, to):
            ids = stage(database, 1)
            await until(lambda: queued(to) == ids, "the job")
            ids += stage(database, 2)
            await until(lambda: queued(to) == ids, "the next job")

    async def test_a_pool_names_the_database(
        self, database: str, pool: AsyncConnectionPool[Any]
    ) -> None:
        stage(database, 1)
        stats = await make(pool).run_until_idle()
        assert stats.published == 1

    async def test_a_repeat_makes_no_second_job(self, database: str, to: str) -> None:
        """As after a crash between publish and mark, with one job live and one finished."""
        ids = stage(database, 1, 2)
        await make(database, to).run_until_idle()
        execute(
            to,
            "with gone as (delete from jobs.job where id = %s returning *) insert into jobs.settled"
            " (id, run_id, claims, revoked, attempt, state, created_at, max_attempts, priority,"
            " dead_letter, queue, name, tenant, idempotency_scope, input) select id, run_id, 1, 0,"
            " 1, 'completed', created_at, max_attempts, priority, dead_letter, queue, name, tenant,"
            " idempotency_scope, input from gone",
            ids[0],
        )
        execute(
            database,
            "update jobs.outbox set published_at = null, outcome = null, published_as = null",
        )
        stats = await make(database, to).run_until_idle()
        assert (stats.published, stats.existing) == (2, 2)
        assert queued(to) == ids[1:]

    async def test_a_taken_key_is_merged_and_says_into_what(self, database: str, to: str) -> None:
        keyed = job(name="keyed", idempotency_key=lambda _: "k")(_keyed)
        first, _ = stage(database, 1, 2, handle=keyed)
        await make(database, to).run_until_idle()
        assert [(row.outcome, row.published_as) for row in outbox(database)] == [
            ("created", first),
            ("existing", first),
        ]

    async def test_a_key_that_others_take_at_the_same_time(self, database: str, to: str) -> None:
        """O-16: each row ends as created or as existing, whatever happens meanwhile."""
        keyed = job(name="keyed", idempotency_key=lambda input: f"k{input.n}")(_keyed)
        done = asyncio.Event()

        async def churn() -> None:
            async with await psycopg.AsyncConnection.connect(to, autocommit=True) as conn:
                while not done.is_set():
                    for n in range(3):
                        with contextlib.suppress(jobs.EnqueueContended):  # deleted by another
                            await keyed.enqueue(conn, {"n": n})
                    await conn.execute("delete from jobs.job where enqueued_by is null")

        churning = [asyncio.create_task(churn()) for _ in range(3)]
        try:
            async with relaying(database, to, batch=7):
                for _ in range(30):
                    stage(database, 0, 1, 2, handle=keyed, enqueued_by="relay")
                await until(lambda: all(row.published_at for row in outbox(database)), "every row")
        finally:
            done.set()
            await asyncio.gather(*churning)
        assert {row.outcome for row in outbox(database)} <= {"created", "existing"}
        assert {row.refusals for row in outbox(database)} == {0}

    async def test_a_holder_that_appears_while_the_publish_waits_for_it_is_found(
        self, database: str, to: str
    ) -> None:
        keyed = job(name="keyed", idempotency_key=lambda input: f"k{input.n}")(_keyed)
        waiting = (
            "select pid from pg_stat_activity"
            " where datname = current_database() and wait_event_type = 'Lock'"
        )
        with psycopg.connect(to) as other:
            holder = keyed.enqueue(other, {"n": 2})
            ids = stage(database, 1, 2, handle=keyed)
            async with relaying(database, to) as relay:
                await until(lambda: rows(to, waiting), "the publish to wait")
                other.commit()
                await until(lambda: relay.stats().published == 2, "both")
        assert relay.stats().failed == 0
        assert [row.published_as for row in outbox(database)] == [ids[0], holder.id]

    async def test_a_key_that_an_open_transaction_holds_stops_its_row_and_not_those_before(
        self, database: str, to: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        real = Target.with_options
        monkeypatch.setattr(
            Target, "with_options", lambda target: real(target).replace("=5s", "=100ms")
        )
        keyed = job(name="keyed", idempotency_key=lambda input: f"k{input.n}")(_keyed)
        with psycopg.connect(to) as other:
            holder = keyed.enqueue(other, {"n": 2})
            ids = stage(database, 1, 2, 3, handle=keyed)
            async with relaying(database, to) as relay:
                await until(lambda: relay.stats().failed >= 2, "two tries")
                assert queued(to) == ids[:1]
                assert "lock timeout" in outbox(database)[1].last_error
                assert relay.stats().refused == 0
                other.commit()
                await until(lambda: relay.stats().published == 3, "the rest")
        assert [row.published_as for row in outbox(database)] == [ids[0], holder.id, ids[2]]


def _keyed(input: Input) -> None: ...


class TestOrder:
    async def test_is_that_of_the_stages(self, database: str) -> None:
        taker = Taker()
        stage(database, *range(10))
        await make(database, taker, batch=4).run_until_idle()
        assert taker.batches == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
        assert (taker.opened, taker.closed) == (1, 1)

    async def test_nothing_overtakes_a_batch_that_fails(
        self, database: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        taker = Taker()
        taker.answers = [
            Published(2, ConnectionError("gone")),
            ConnectionError("gone"),
            Published(0, OSError("still")),
        ]
        ids = stage(database, *range(6))
        async with relaying(database, taker, batch=4) as relay:
            await until(lambda: len(taker.numbers) == 6, "all of them")
            await until(lambda: relay.stats().published == 6, "all marks")
        assert taker.batches[:4] == [[0, 1, 2, 3], [2, 3, 4, 5], [2, 3, 4, 5], [2, 3, 4, 5]]
        assert taker.numbers == list(range(6))
        stats = relay.stats()
        assert (stats.failed, stats.refused, stats.last_error) == (3, 0, None)
        [row] = [row for row in outbox(database) if row.last_error]
        assert (row.id, row.last_error, row.refusals) == (ids[2], "OSError: still", 0)
        assert "gone" in logged(caplog, "jobs.relay.publish_failed")[0]

    async def test_a_sink_that_hangs_is_given_up_after_a_third_of_the_lease(
        self, database: str
    ) -> None:
        hung: list[int] = []

        class Hanging(Taker):
            async def publish(self, messages: Sequence[Message]) -> Published:
                if not hung:
                    hung.append(1)
                    await asyncio.Event().wait()
                return await super().publish(messages)

        taker = Hanging()
        stage(database, 1)
        async with relaying(database, taker, lease=SECOND):
            await until(lambda: taker.numbers == [1], "the second try")


class TestRefusals:
    """A row that its target does not take: O-57 of the brief and B13.06."""

    def poison(self, database: str, n: int) -> None:
        execute(
            database,
            "alter table jobs.job add constraint poison check"
            f" (input::jsonb ->> 'n' <> '{n}') not valid",
        )

    async def test_what_is_before_it_passes_and_it_holds_the_rest_back(
        self, database: str, to: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        self.poison(to, 2)
        ids = stage(database, *range(5))
        stats = await make(database, to).run_until_idle()
        assert (stats.published, stats.refused, stats.parked) == (2, 1, 0)
        assert queued(to) == ids[:2]
        row = outbox(database)[2]
        assert (row.refusals, row.published_at, row.parked_at) == (1, None, None)
        assert "poison" in row.last_error
        assert row.retry_at is not None
        [said] = logged(caplog, "jobs.relay.refused")
        assert str(ids[2]) in said

    async def test_after_so_many_refusals_it_is_set_aside_and_the_others_go_on(
        self,
        database: str,
        to: str,
        caplog: pytest.LogCaptureFixture,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setattr(publisher_module, "_REFUSED_PAUSE", 0.01)
        self.poison(to, 2)
        ids = stage(database, *range(5))
        async with relaying(database, to, park_after=3) as relay:
            await until(lambda: relay.stats().published == 4, "the others")
        assert queued(to) == [*ids[:2], *ids[3:]]
        row = outbox(database)[2]
        assert (row.refusals, row.published_at) == (3, None)
        assert row.parked_at is not None
        assert (relay.stats().refused, relay.stats().parked) == (3, 1)
        assert len(logged(caplog, "jobs.relay.parked")) == 1

    async def test_an_operator_has_it_tried_again(self, database: str, to: str) -> None:
        self.poison(to, 2)
        ids = stage(database, 2, 3)
        async with relaying(database, to, park_after=1) as relay:
            await until(lambda: relay.stats().published == 1, "the other")
            assert queued(to) == ids[1:]
            execute(to, "alter table jobs.job drop constraint poison")
            with psycopg.connect(database, autocommit=True) as conn:
                assert jobs.outbox.retry(conn, ids) == {ids[0]: "waiting", ids[1]: "published"}
            await until(lambda: set(queued(to)) == set(ids), "both")

    async def test_it_can_be_told_never_to_set_aside(
        self, database: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(publisher_module, "_REFUSED_PAUSE", 0.0)
        taker = Taker()
        taker.answers = [Published(0, ValueError("no"), refused=True) for _ in range(30)]
        stage(database, 1, 2)
        async with relaying(database, taker, park_after=None) as relay:
            await until(lambda: taker.numbers == [1, 2], "the end of it")
        assert (relay.stats().refused, relay.stats().parked) == (30, 0)

    async def test_trouble_of_the_whole_target_is_no_refusal(self, database: str, to: str) -> None:
        execute(to, "alter table jobs.job rename to gone")
        ids = stage(database, 1)
        async with relaying(database, to, park_after=1) as relay:
            await until(lambda: relay.stats().failed >= 2, "two tries")
            row = outbox(database)[0]
            assert (row.refusals, row.parked_at) == (0, None)
            assert "does not exist" in row.last_error
            execute(to, "alter table jobs.gone rename to job")
            await until(lambda: queued(to) == ids, "the job")


class TestLeases:
    async def test_one_of_three_publishes_and_each_row_once(self, database: str) -> None:
        takers = [Taker() for _ in range(3)]
        async with (
            leaving_nothing(database),
            make(database, takers[0], batch=5),
            make(database, takers[1], batch=5),
            make(database, takers[2], batch=5),
        ):
            for n in range(40):
                stage(database, n)
            await until(lambda: all(row.published_at for row in outbox(database)), "every row")
        assert sorted(taker.numbers for taker in takers) == [[], [], list(range(40))]

    async def test_a_stopped_one_leaves_the_lease_to_the_next_at_once(self, database: str) -> None:
        first, second = Taker(), Taker()
        stage(database, 1)
        async with relaying(database, first, lease=timedelta(hours=1)):
            await until(lambda: first.numbers == [1], "the first")
        stage(database, 2)
        async with relaying(database, second, lease=timedelta(hours=1)):
            await until(lambda: second.numbers == [2], "the second")

    async def test_one_that_lost_its_lease_in_mid_batch_marks_nothing(
        self, database: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        """O-57: the marks are refused by the token, and the batch ends there."""
        going, taken = asyncio.Event(), asyncio.Event()

        class Slow(Taker):
            async def publish(self, messages: Sequence[Message]) -> Published:
                going.set()
                await taken.wait()
                return await super().publish(messages)

        slow, successor = Slow(), Taker()
        stage(database, 1, 2)
        async with relaying(database, slow, name="slow") as relay:
            await going.wait()
            execute(database, "update jobs.relay set expires_at = now() - interval '1 second'")
            async with make(database, successor, name="successor") as other:
                await until(lambda: other.stats().published == 2, "the successor")
                stamps = [row.published_at for row in outbox(database)]
                taken.set()
                await until(lambda: relay.stats().lost == 1, "the refusal")
                stage(database, 3)
                await until(lambda: other.stats().published == 3, "the next")
        assert slow.numbers == [1, 2]
        assert [row.published_at for row in outbox(database)][:2] == stamps
        assert {row.published_by for row in outbox(database)} == {"successor"}
        assert relay.stats().published == 0
        assert len(logged(caplog, "jobs.relay.lease_lost")) == 1

    async def test_in_one_database_one_that_lost_its_lease_publishes_nothing_either(
        self, database: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The insert and the mark are one transaction."""
        real = publisher_module.insert

        async def and_lose(conn: Any, messages: Any) -> list[Outcome]:
            outcomes = await real(conn, messages)
            execute(database, "update jobs.relay set token = token + 1, expires_at = 'infinity'")
            return outcomes

        monkeypatch.setattr(publisher_module, "insert", and_lose)
        stage(database, 1)
        async with relaying(database) as relay:
            await until(lambda: relay.stats().lost == 1, "the loss")
        assert queued(database) == []
        assert [row.published_at for row in outbox(database)] == [None]


class TestPruning:
    async def test_published_rows_go_after_their_time(
        self, database: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(publisher_module, "_PRUNE_EVERY", 0.0)
        stage(database, 1, 2)
        async with relaying(database, keep=timedelta(0)) as relay:
            await until(lambda: relay.stats().pruned == 2, "the pruning")
        assert outbox(database) == []

    @pytest.mark.parametrize("keep", [None, timedelta(days=7)])
    async def test_wakes_go_where_no_worker_removes_them(
        self, database: str, monkeypatch: pytest.MonkeyPatch, keep: timedelta | None
    ) -> None:
        """The queue may be in another database, and the workers with it."""
        monkeypatch.setattr(publisher_module, "_PRUNE_EVERY", 0.0)
        execute(database, "insert into jobs.wake (queue, at) values ('', '2000-01-01')")
        stage(database, 1)
        await make(database, keep=keep).run_until_idle()
        assert rows(database, "select * from jobs.wake where at < '2001-01-01'") == []

    async def test_or_never(self, database: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(publisher_module, "_PRUNE_EVERY", 0.0)
        stage(database, 1)
        await make(database, keep=None).run_until_idle()
        execute(database, "update jobs.outbox set published_at = '2000-01-01'")
        stage(database, 2)
        await make(database, keep=None).run_until_idle()
        assert len(outbox(database)) == 2
