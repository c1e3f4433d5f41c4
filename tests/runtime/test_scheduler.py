"""The scheduler in this process: arming, firing, catching up, and what operators change."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import psycopg
import pytest
from psycopg import AsyncConnection, Connection

import jobs
import jobs.control as control
from tests.runtime.ticking import (
    SECOND,
    Input,
    each_second,
    fired,
    keyed,
    make,
    registry,
    schedule,
    scheduling,
    set_back,
    store,
    work,
    yearly,
)
from tests.runtime.working import execute, leaving_nothing, logged, rows, until


def distinct_seconds(found: list[str]) -> bool:
    """Whether the occurrences are one a second, none missing and none twice."""
    instants = [datetime.fromisoformat(one) for one in found]
    return all(two - one == SECOND for one, two in pairwise(instants))


class TestFiring:
    async def test_each_occurrence_once(self, database: str):
        @each_second()
        def ticking(at: datetime) -> Iterator[jobs.Entry]:
            yield work, Input(n=at.second)

        async with scheduling(database, ticking) as scheduler:
            await until(lambda: len(fired(database, "ticking")) >= 2, "two occurrences")
            assert scheduler.stats().fired >= 1
        assert distinct_seconds(fired(database, "ticking"))
        row = rows(database, "select input::text as text, queue, enqueued_by from jobs.job")[0]
        assert (row.queue, row.enqueued_by) == ("default", "task ticking")

    async def test_the_first_sight_arms_and_fires_nothing(self, database: str):
        @yearly()
        def first() -> Iterator[jobs.Entry]:
            yield work, Input()

        async with scheduling(database, first):
            row = await until(lambda: schedule(database, "first"), "it to be armed")
        assert row.last_occurrence is None
        assert datetime.now(UTC) - row.watermark < timedelta(minutes=1)
        assert fired(database, "first") == []

    async def test_a_job_that_still_runs_hides_no_occurrence(self, database: str):
        @each_second()
        def one_key() -> Iterator[jobs.Entry]:
            yield keyed, Input()

        async with scheduling(database, one_key) as scheduler:
            await until(lambda: scheduler.stats().enqueued >= 2, "two jobs of one plain key")

    async def test_two_schedules_of_one_job_do_not_hide_each_other(self, database: str):
        for name in ("one", "two"):
            store(database, name, job="keyed")
            set_back(database, name, 2.5 * SECOND)
        async with scheduling(database) as scheduler:
            await until(lambda: scheduler.stats().fired >= 4, "both to fire")
        rows_found = rows(
            database,
            "select enqueued_by, count(*)::int as amount from jobs.job group by 1 order by 1",
        )
        assert [row.enqueued_by for row in rows_found] == ["task one", "task two"]
        assert all(row.amount >= 2 for row in rows_found)

    async def test_jobs_with_a_limit_for_a_key_keep_it(self, database: str):
        @jobs.job(
            tenant=jobs.NO_TENANT,
            idempotency_key=jobs.NO_KEY,
            concurrency=jobs.Concurrency(key=lambda i: str(i.n), limit=2),
        )
        def limited(_input: Input) -> None: ...

        @each_second()
        def mixed() -> Iterator[jobs.Entry]:
            yield limited, Input(n=5)
            yield work, Input()

        async with scheduling(database, mixed, limited):
            await until(lambda: fired(database, "mixed"), "a fire")
        found = rows(
            database,
            "select distinct name, concurrency_key as key, concurrency_limit as most, when_busy"
            " from jobs.job order by name",
        )
        assert [tuple(row) for row in found] == [
            ("limited", limited.derive_concurrency_key(Input(n=5)), 2, "wait"),
            ("work", None, None, None),
        ]

    async def test_a_worker_beside_it_is_woken_and_runs_them(self, database: str):
        done = threading.Event()

        @jobs.job(tenant=jobs.NO_TENANT, idempotency_key=jobs.NO_KEY)
        def soon(_input: Input) -> None:
            done.set()

        @each_second()
        def starting() -> Iterator[jobs.Entry]:
            yield soon, Input()

        worker = jobs.Worker(database, registry(soon))
        async with scheduling(database, starting, soon), worker:
            await until(done.is_set, "a worker to run what was scheduled")


class TestCatchUp:
    """By the row's last slot, not by the memory of a process."""

    AGO = timedelta(minutes=80)

    async def caught_up(self, database: str, **columns: Any) -> tuple[datetime, list[str]]:
        store(database, "slow", every=10 * SECOND, **columns)
        watermark = set_back(database, "slow", self.AGO)
        async with scheduling(database) as scheduler:
            await until(lambda: scheduler.stats().fired, "a fire")
            await until(
                lambda: schedule(database, "slow").watermark > datetime.now(UTC) - 30 * SECOND,
                "it to have caught up",
            )
        return watermark, fired(database, "slow")

    async def test_skip(self, database: str):
        """The true latest of 480, far beyond the cap, and then what becomes due meanwhile."""
        began = datetime.now(UTC)
        _, found = await self.caught_up(database, catch_up="skip")
        first, *later = (datetime.fromisoformat(one) for one in found)
        assert first > began - 10 * SECOND
        assert all(two - one == 10 * SECOND for one, two in pairwise([first, *later]))

    async def test_run_once(self, database: str):
        """The earliest; with it the watermark is where it fired, so that no other one follows."""
        began = datetime.now(UTC)
        watermark, found = await self.caught_up(database, catch_up="run_once")
        first, *later = (datetime.fromisoformat(one) for one in found)
        assert timedelta() < first - watermark <= 10 * SECOND
        assert all(one > began for one in later)

    async def test_the_watermark_of_run_once_moves_with_its_fire(self, database: str):
        """By the same update of the row: no other state is ever seen, however it is interrupted."""
        store(database, "slow", every=10 * SECOND, catch_up="run_once")
        watermark = set_back(database, "slow", self.AGO)
        execute(
            database,
            "create table public.seen (watermark timestamptz, at timestamptz);"
            " create function public.see() returns trigger language plpgsql as $$ begin"
            " insert into public.seen values (new.watermark, new.last_occurrence);"
            " return new; end $$;"
            " create trigger see after update of watermark on jobs.schedule for each row"
            " when (new.watermark <> old.watermark) execute function public.see()",
        )
        began = datetime.now(UTC)
        async with scheduling(database) as scheduler:
            await until(lambda: scheduler.stats().fired, "a fire")
        seen = rows(database, "select watermark, at from public.seen order by watermark")
        assert seen[0].at - watermark <= 10 * SECOND
        assert seen[0].watermark >= began

    async def test_run_all(self, database: str):
        watermark, found = await self.caught_up(database, catch_up="run_all", max_catch_up=25)
        instants = [datetime.fromisoformat(one) for one in found]
        missed = [one for one in instants if one < watermark + self.AGO - 60 * SECOND]
        assert len(missed) == 25
        assert missed == [missed[0] + n * 10 * SECOND for n in range(25)]
        assert missed[0] - watermark <= 10 * SECOND
        row = schedule(database, "slow")
        assert row.catch_up_left is None or row.watermark < row.catch_up_until

    async def test_others_fire_in_the_same_round(self, database: str):
        store(database, "a", max_catch_up=500)
        set_back(database, "a", timedelta(hours=1))
        store(database, "b")
        set_back(database, "b", 2.5 * SECOND)
        async with scheduling(database) as scheduler:
            await until(lambda: fired(database, "b"), "the other to fire")
            await until(lambda: scheduler.stats().fired >= 500, "the catch-up")
        order = rows(database, "select enqueued_by from jobs.job order by created_at limit 30")
        assert "task b" in [row.enqueued_by for row in order]


class TestOperators:
    async def test_a_pause_acts_and_keeps_the_watermark(self, database: str, conn: Connection[Any]):
        store(database, "ticking")
        async with scheduling(database) as scheduler:
            await until(lambda: fired(database, "ticking"), "a fire")
            control.pause_task(conn, "ticking", paused_by="me")
            before = schedule(database, "ticking").watermark
            count = len(fired(database, "ticking"))
            await asyncio.sleep(1.5)
            assert schedule(database, "ticking").watermark == before
            assert len(fired(database, "ticking")) == count
            assert scheduler.stats().failed == 0
            control.resume_task(conn, "ticking")
            await until(lambda: len(fired(database, "ticking")) > count, "it to go on")
        assert distinct_seconds(fired(database, "ticking"))  # what it missed was caught up

    async def test_a_short_pause_does_not_outlast_its_end(
        self, database: str, conn: Connection[Any]
    ):
        """Paused and resumed between two looks at what was changed, which see no difference."""
        store(database, "ticking")
        rarely = {"lease": timedelta(minutes=5), "refresh": timedelta(seconds=5)}
        async with scheduling(database, **rarely) as scheduler:
            await until(lambda: fired(database, "ticking"), "a fire")
            control.pause_task(conn, "ticking")
            await until(
                lambda: scheduler._dispatcher._plans["ticking"].paused, "a fire to meet the pause"
            )
            control.resume_task(conn, "ticking")
            count = len(fired(database, "ticking"))
            await until(lambda: len(fired(database, "ticking")) > count, "it to go on")

    async def test_a_schedule_made_at_run_time_fires(self, database: str, conn: Connection[Any]):
        async with scheduling(database):
            made = control.create_schedule(
                conn, "dynamic", work, Input(n=7), every=SECOND, catch_up="run_all"
            )
            assert (made.source, made.job, made.input) == ("stored", "work", '{"n":7}')
            await until(lambda: fired(database, "dynamic"), "it to fire")
            control.change_schedule(conn, "dynamic", job=work, input={"n": 8})
            await until(
                lambda: rows(database, "select 1 from jobs.job where input::text = '{\"n\":8}'"),
                "the change to act",
            )
            assert control.remove_schedule(conn, "dynamic")
            await asyncio.sleep(0.5)
            count = len(fired(database, "dynamic"))
            await asyncio.sleep(1.5)
            assert len(fired(database, "dynamic")) == count

    async def test_asynchronous_connections(self, aconn: AsyncConnection[Any]):
        made = await control.create_schedule(
            aconn, "dynamic", work, {"n": 1}, cron="0 3 * * *", tz="Europe/Zurich"
        )
        assert (await control.get_schedule(aconn, "dynamic")).cron == made.cron == "0 3 * * *"
        changed = await control.change_schedule(aconn, "dynamic", tz="UTC")
        assert (changed.tz, changed.cron, changed.revision) == ("UTC", "0 3 * * *", 2)
        assert changed.next()[0].isoformat().endswith("T03:00:00+00:00")
        assert await control.pause_task(aconn, "dynamic")
        assert not await control.pause_task(aconn, "dynamic")
        assert [one.paused for one in await control.schedules(aconn)] == [True]
        assert await control.resume_task(aconn, "dynamic")
        assert (await control.rearm_schedule(aconn, "dynamic")).revision == 3
        assert await control.remove_schedule(aconn, "dynamic")
        assert await control.schedules(aconn) == []

    def test_what_is_refused(self, conn: Connection[Any]):
        with pytest.raises(jobs.ScheduleInvalid, match="cron day of month"):
            control.create_schedule(conn, "x", work, Input(), cron="0 0 30 2 *", tz="UTC")
        with pytest.raises(jobs.ScheduleInvalid, match="tz"):
            control.create_schedule(conn, "x", work, Input(), cron="0 0 * * *", tz="CEST")
        with pytest.raises(jobs.InvalidInput, match="input"):
            control.create_schedule(conn, "x", work, {"n": "y"}, every=SECOND)
        with pytest.raises(jobs.ControlInvalid, match="name"):
            control.create_schedule(conn, "", work, Input(), every=SECOND)
        with pytest.raises(jobs.ScheduleNotFound):
            control.change_schedule(conn, "x", catch_up="skip")
        control.create_schedule(conn, "x", work, Input(), every=SECOND)
        with pytest.raises(jobs.ScheduleExists):
            control.create_schedule(conn, "x", work, Input(), every=SECOND)
        with pytest.raises(jobs.ControlInvalid, match="together"):
            control.change_schedule(conn, "x", job=work)
        with pytest.raises(jobs.ScheduleInvalid, match="tz"):
            control.change_schedule(conn, "x", tz="CEST")
        with pytest.raises(jobs.ScheduleInvalid, match="max_catch_up"):
            control.change_schedule(conn, "x", max_catch_up=0)
        assert control.get_schedule(conn, "x").revision == 1

    def test_an_interval_becomes_a_cron_expression_and_back(self, conn: Connection[Any]):
        anchor = datetime(2026, 1, 1, tzinfo=UTC)
        control.create_schedule(conn, "x", work, Input(), every=SECOND, anchor=anchor)
        row = control.change_schedule(conn, "x", cron="@daily")
        assert (row.cron, row.every, row.anchor, row.tz) == ("@daily", None, None, "UTC")
        row = control.change_schedule(conn, "x", every=2 * SECOND, anchor=anchor)
        assert (row.cron, row.every, row.anchor) == (None, 2 * SECOND, anchor)
        with pytest.raises(jobs.ScheduleInvalid):
            control.change_schedule(conn, "x", cron="@daily", every=SECOND)

    async def test_a_declared_one_is_not_changed(self, database: str, conn: Connection[Any]):
        @yearly()
        def declared() -> Iterator[jobs.Entry]:
            yield work, Input()

        async with scheduling(database, declared):
            await until(lambda: schedule(database, "declared"), "it to be armed")
            with pytest.raises(jobs.ControlInvalid, match="declared in code"):
                control.change_schedule(conn, "declared", tz="UTC")
            with pytest.raises(jobs.ScheduleExists):
                control.create_schedule(conn, "declared", work, Input(), every=SECOND)
            control.remove_schedule(conn, "declared")
            await until(lambda: schedule(database, "declared"), "it to come back, armed anew")


class TestLife:
    async def test_one_leads_and_another_takes_over_at_once(self, database: str):
        async with leaving_nothing(database):
            one, two = make(database, lease=timedelta(minutes=5)), make(database)
            await one.start()
            await until(lambda: one.stats().leading, "the first to lead")
            await two.start()
            await asyncio.sleep(0.5)
            assert not two.stats().leading
            one.stop()
            await one.wait()
            await until(lambda: two.stats().leading, "the second to lead")
            two.stop()
            await two.wait()

    async def test_a_demotion_is_logged(self, database: str, caplog: pytest.LogCaptureFixture):
        caplog.set_level(logging.INFO, "jobs.scheduler")
        async with scheduling(database) as scheduler:
            execute(
                database,
                "update jobs.leader set holder = 'another', expires_at = now() + interval '1 s'",
            )
            await until(lambda: not scheduler.stats().leading, "it to notice")
            await until(lambda: scheduler.stats().leading, "it to lead again")
        assert logged(caplog, "jobs.scheduler.demoted") != []

    async def test_it_goes_on_when_its_session_is_ended(self, database: str):
        store(database, "ticking")
        async with scheduling(database):
            await until(lambda: fired(database, "ticking"), "a fire")
            execute(
                database,
                "select pg_terminate_backend(pid) from pg_stat_activity"
                " where application_name like 'jobs:%%' and datname = current_database()",
            )
            count = len(fired(database, "ticking"))
            await until(lambda: len(fired(database, "ticking")) > count, "it to go on")
        assert distinct_seconds(fired(database, "ticking"))

    async def test_a_stop_lets_the_lease_go(self, database: str):
        async with scheduling(database, lease=timedelta(minutes=5)):
            pass
        assert rows(database, "select 1 from jobs.leader") == []

    async def test_a_database_that_is_not_there(self):
        scheduler = make("host=127.0.0.1 port=1")
        with pytest.raises(jobs.DatabaseUnreachable):
            await scheduler.start()
        assert scheduler.stats().state == "idle"

    @pytest.mark.parametrize(
        "options",
        [
            {"lease": timedelta(0)},
            {"lease": SECOND, "refresh": SECOND},
            {"refresh": 5},
            {"patience": timedelta(0)},
            {"drain": timedelta(seconds=-1)},
            {"name": "x" * 256},
        ],
        ids=str,
    )
    def test_settings_that_cannot_be_kept(self, options: dict[str, Any]):
        with pytest.raises(jobs.ConfigError):
            make("", **options)

    def test_something_else_than_a_registry(self):
        with pytest.raises(jobs.ConfigError, match="registry"):
            jobs.Scheduler("", [])  # type: ignore[arg-type]

    async def test_it_does_not_start_twice(self, database: str):
        async with scheduling(database) as scheduler:
            with pytest.raises(jobs.ConfigError, match="cannot be started again"):
                await scheduler.start()

    async def test_another_definition_is_taken_up_by_the_next_leader(self, database: str):
        def declared(**options: Any) -> Any:
            @yearly(**options)
            def version() -> Iterator[jobs.Entry]:
                yield work, Input()

            return version

        async with scheduling(database, declared()):
            await until(lambda: schedule(database, "version"), "it to be armed")
        async with scheduling(database, declared(cron="0 0 2 1 *")):
            await until(
                lambda: schedule(database, "version").cron == "0 0 2 1 *", "the new one to be there"
            )


@pytest.mark.parametrize("isolation", ["serializable", "repeatable read"])
async def test_a_stricter_isolation_of_the_role_does_not_matter(database: str, isolation: str):
    with psycopg.connect(database, autocommit=True) as conn:
        name = conn.info.dbname
        conn.execute(
            f"alter database \"{name}\" set default_transaction_isolation = '{isolation}'".encode()
        )
    store(database, "ticking")
    async with scheduling(database):
        await until(lambda: len(fired(database, "ticking")) >= 2, "two fires")
