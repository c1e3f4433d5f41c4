"""O-39: a schedule that cannot fire is marked and stops nobody else; what an idle one sends."""

from __future__ import annotations

import asyncio
import logging
import re
import threading
import time
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

import psycopg
import pytest
from psycopg import Connection
from psycopg.types.json import Json

import jobs
import jobs.control as control
from jobs.scheduler.dispatcher import Dispatcher
from jobs.scheduler.firing import storable
from tests.lint import tree
from tests.runtime.ticking import (
    SECOND,
    Input,
    each_second,
    fired,
    make,
    schedule,
    scheduling,
    set_back,
    store,
    work,
    yearly,
)
from tests.runtime.working import execute, logged, rows, until

BAD: dict[str, tuple[dict[str, Any], str]] = {
    "misspelt zone": ({"tz": "America/New_Yrok", "cron": "* * * * *", "every": None}, "tz: "),
    "offset": ({"tz": "UTC+3", "cron": "* * * * *", "every": None}, "tz: "),
    "abbreviation": ({"tz": "CEST", "cron": "* * * * *", "every": None}, "tz: "),
    "cron": ({"cron": "61 * * * *", "every": None}, "cron minute: "),
    "date": ({"cron": "0 0 30 2 *", "every": None}, "cron day of month: "),
    "payload": ({"input": Json({"n": "not a number"})}, "does not fit"),
    "job": ({"job": "gone"}, "there is no job 'gone'"),
}


def error_of(database: str, name: str) -> str:
    return schedule(database, name).error or ""


class TestBadRows:
    async def test_the_good_ones_fire_each_tick(self, database: str, conn: Connection[Any]):
        for name, (columns, _) in BAD.items():
            store(database, name, **columns)
        good = [f"good {n:02}" for n in range(20)]
        for name in good:
            store(database, name)
        async with scheduling(database) as scheduler:
            await until(
                lambda: all(len(fired(database, name)) >= 3 for name in good), "three ticks"
            )
            await until(lambda: scheduler.stats().schedules == 20, "the bad ones to be left out")
            for name, (_, said) in BAD.items():
                assert said in error_of(database, name), name
        for name in BAD:
            assert fired(database, name) == []
        marked = {one.name: one.error for one in control.schedules(conn) if one.error}
        assert marked.keys() == BAD.keys()

    async def test_a_mark_is_written_once(self, database: str, caplog: pytest.LogCaptureFixture):
        caplog.set_level(logging.WARNING, "jobs.scheduler")
        store(database, "bad", tz="CEST")
        async with scheduling(database):
            await until(lambda: error_of(database, "bad"), "the mark")
            at = schedule(database, "bad").error_at
            execute(database, "update jobs.schedule set revision = revision + 1")
            await asyncio.sleep(0.6)
            assert schedule(database, "bad").error_at == at
        assert len(logged(caplog, "jobs.scheduler.marked")) == 1

    async def test_mending_it_lets_it_fire(self, database: str, conn: Connection[Any]):
        store(database, "bad", tz="CEST", cron="* * * * *", every=None)
        async with scheduling(database):
            await until(lambda: error_of(database, "bad"), "the mark")
            control.change_schedule(conn, "bad", every=SECOND, tz="UTC")
            await until(lambda: fired(database, "bad"), "it to fire")
            assert schedule(database, "bad").error is None

    async def test_a_stored_one_under_the_name_of_a_task(self, database: str):
        @yearly()
        def taken() -> Iterator[jobs.Entry]:
            yield work, Input()

        store(database, "taken")
        async with scheduling(database, taken):
            await until(lambda: "is declared" in error_of(database, "taken"), "the mark")
        assert fired(database, "taken") == []

    async def test_a_declared_one_that_this_process_does_not_know(self, database: str):
        store(database, "foreign", source="declared", job=None, input=None)
        store(database, "good")
        async with scheduling(database):
            await until(lambda: fired(database, "good"), "the other to fire")
        assert error_of(database, "foreign") == ""
        assert schedule(database, "foreign").last_occurrence is None

    async def test_a_watermark_ahead_of_the_clock_is_said(
        self, database: str, conn: Connection[Any]
    ):
        store(database, "ahead")
        set_back(database, "ahead", -timedelta(days=365))
        async with scheduling(database):
            await until(lambda: "ahead of the database" in error_of(database, "ahead"), "the mark")
            control.rearm_schedule(conn, "ahead")
            await until(lambda: fired(database, "ahead"), "it to fire")


class TestOpenTransactions:
    async def test_whoever_holds_a_schedule_stops_only_it(
        self, database: str, caplog: pytest.LogCaptureFixture
    ):
        def declared(**options: Any) -> Any:
            @yearly(**options)
            def version() -> Iterator[jobs.Entry]:
                yield work, Input()

            return version

        async with scheduling(database, declared()):
            await until(lambda: schedule(database, "version"), "it to be armed")
        for name in ("held", "good"):
            store(database, name)
        with psycopg.connect(database) as operator:
            control.rearm_schedule(operator, "held")
            control.rearm_schedule(operator, "version")
            async with scheduling(database, declared(cron="0 0 2 1 *")) as scheduler:
                await until(lambda: len(fired(database, "good")) >= 3, "three ticks of the other")
                assert fired(database, "held") == []
                assert schedule(database, "version").cron == "0 0 1 1 *"
                operator.rollback()
                await until(lambda: fired(database, "held"), "it to fire")
                await until(
                    lambda: schedule(database, "version").cron == "0 0 2 1 *", "the new definition"
                )
                stats = scheduler.stats()
        assert (stats.failed, stats.overtaken) == (0, 0)
        assert logged(caplog, "jobs.scheduler.trouble") == []


class TestFunctions:
    async def test_one_that_raises_stops_only_itself(
        self, database: str, caplog: pytest.LogCaptureFixture
    ):
        broken = True

        @each_second()
        def raising(at: datetime) -> Iterator[jobs.Entry]:
            yield work, Input(n=at.second)
            if broken:
                raise KeyError("not today")

        @each_second()
        def fine() -> Iterator[jobs.Entry]:
            yield work, Input()

        async with scheduling(database, raising, fine) as scheduler:
            await until(lambda: "not today" in error_of(database, "raising"), "the mark")
            await until(lambda: len(fired(database, "fine")) >= 2, "the other to fire")
            assert fired(database, "raising") == []  # not even the first entry
            assert scheduler.stats().failed >= 1
            broken = False
            await until(lambda: fired(database, "raising"), "it to fire at last")
            assert schedule(database, "raising").error is None
        occurrences = [datetime.fromisoformat(one) for one in fired(database, "raising")]
        assert occurrences == sorted(set(occurrences))
        assert logged(caplog, "jobs.scheduler.task_failed") != []

    async def test_one_whose_error_has_no_text_stops_only_itself(self, database: str):
        class Mute(Exception):  # noqa: N818
            def __str__(self) -> str:
                raise OSError

        @each_second()
        def raising() -> list[jobs.Entry]:
            raise Mute

        @each_second()
        def fine() -> Iterator[jobs.Entry]:
            yield work, Input()

        async with scheduling(database, raising, fine) as scheduler:
            await until(lambda: "Mute" in error_of(database, "raising"), "the mark")
            await until(lambda: len(fired(database, "fine")) >= 2, "the other to fire")
            assert scheduler.stats().failed >= 1

    async def test_what_cannot_fire_is_waited_for(
        self, database: str, monkeypatch: pytest.MonkeyPatch
    ):
        """A schedule that is due and fails is no reason to go round without a pause."""
        rounds = 0
        honest = Dispatcher._round

        async def counted(self: Dispatcher) -> None:
            nonlocal rounds
            rounds += 1
            await honest(self)

        monkeypatch.setattr(Dispatcher, "_round", counted)

        @each_second()
        def failing() -> list[jobs.Entry]:
            raise KeyError("always")

        async with scheduling(database, failing) as scheduler:
            await until(lambda: scheduler.stats().failed >= 2, "two tries")
            assert rounds < 200

    async def test_what_does_not_fit_a_model(self, database: str):
        @each_second()
        def odd() -> Iterator[jobs.Entry]:
            yield work, {"n": "x"}

        async with scheduling(database, odd):
            await until(lambda: "JOB_INPUT_INVALID" in error_of(database, "odd"), "the mark")

    async def test_one_that_hangs_stops_only_itself(self, database: str):
        release = threading.Event()

        @each_second()
        def hanging() -> Iterator[jobs.Entry]:
            release.wait(60)
            yield work, Input()

        @each_second()
        def fine() -> Iterator[jobs.Entry]:
            yield work, Input()

        options = {"patience": timedelta(milliseconds=300)}
        try:
            async with scheduling(database, hanging, fine, **options):
                await until(lambda: "did not return" in error_of(database, "hanging"), "the mark")
                await until(lambda: len(fired(database, "fine")) >= 2, "the other to fire")
                await until(
                    lambda: "earlier call" in error_of(database, "hanging"), "no second thread"
                )
                release.set()
                await until(lambda: fired(database, "hanging"), "it to fire at last")
        finally:
            release.set()

    async def test_the_others_do_not_wait_for_one_that_takes_its_time(self, database: str):
        """Nor does the lease: whoever waited for the function would have lost it."""
        release = threading.Event()

        @each_second()
        def hanging() -> Iterator[jobs.Entry]:
            release.wait(60)
            yield work, Input()

        @each_second()
        def fine() -> Iterator[jobs.Entry]:
            yield work, Input()

        try:
            async with scheduling(database, hanging, fine, patience=timedelta(minutes=1)) as leader:
                await until(lambda: len(fired(database, "fine")) >= 3, "the other to fire")
                assert fired(database, "hanging") == []
                assert leader.stats().leading
                release.set()
                await until(lambda: fired(database, "hanging"), "it to fire at last")
                assert leader.stats().failed == 0
        finally:
            release.set()

    async def test_one_that_takes_longer_than_the_lease_fires_all_the_same(self, database: str):
        @each_second(catch_up="skip")
        def slow() -> Iterator[jobs.Entry]:
            time.sleep(1.5)
            yield work, Input()

        patient = {"patience": timedelta(minutes=1), "lease": timedelta(seconds=1)}
        async with scheduling(database, slow, **patient) as leader:
            await until(lambda: len(fired(database, "slow")) >= 2, "two fires")
            assert leader.stats().leading

    @pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt, StopIteration])
    async def test_one_that_would_end_the_process(self, database: str, error: Any):
        @each_second()
        def ending() -> list[jobs.Entry]:
            raise error("no more")

        async with scheduling(database, ending):
            await until(lambda: "no more" in error_of(database, "ending"), "the mark")

    async def test_an_error_that_cannot_be_stored_as_it_is(self, database: str):
        @each_second()
        def binary() -> list[jobs.Entry]:
            raise ValueError("a\0b" + "x" * 10_000)

        async with scheduling(database, binary):
            await until(lambda: "a\\0bx" in error_of(database, "binary"), "the mark")
        assert len(error_of(database, "binary")) <= 2_000

    def test_what_no_database_takes_is_spelt_out(self):
        assert storable("a\0b\ud800") == "a\\0b\\ud800"
        assert len(storable("x" * 10_000)) == 2_000

    async def test_a_stop_does_not_wait_for_one_that_hangs(self, database: str):
        """It keeps the lease: whoever is next waits for its end, in case the round still acts."""
        release, called = threading.Event(), threading.Event()
        options = {"drain": timedelta(milliseconds=200), "lease": timedelta(minutes=5)}

        @each_second()
        def stuck() -> list[jobs.Entry]:
            called.set()
            release.wait(60)
            return []

        try:
            async with asyncio.timeout(15):
                async with make(database, stuck, **options) as scheduler:
                    await until(called.is_set, "the call")
            assert [row.holder for row in rows(database, "select holder from jobs.leader")] == [
                scheduler.name
            ]
        finally:
            release.set()


class TestIdle:
    @pytest.mark.serial
    @pytest.mark.timeout(120)
    async def test_statements_an_idle_minute(self, database: str):
        """Six each, one leads and one waits, with a hundred schedules.

        Transaction control is not counted, and there is none.
        """
        for n in range(100):
            store(database, f"stored {n}", cron="0 0 1 1 *", every=None)

        @yearly()
        def idle() -> Iterator[jobs.Entry]:
            yield work, Input()

        execute(database, "create extension if not exists pg_stat_statements schema public")

        def reset() -> None:
            execute(
                database,
                "select pg_stat_statements_reset(0, oid, 0) from pg_database"
                " where datname = current_database()",
            )

        usual = {"lease": timedelta(seconds=30), "refresh": timedelta(seconds=10)}
        async with (
            scheduling(database, idle, **usual) as scheduler,
            make(database, idle, **usual) as standby,
        ):
            await until(lambda: scheduler.stats().schedules == 101, "all to be known")
            await asyncio.sleep(1)  # what the start of the other sends
            reset()
            await asyncio.sleep(60)
            found = rows(
                database,
                "select s.query, s.calls::int as calls from pg_stat_statements as s"
                " join pg_database as d on d.oid = s.dbid where d.datname = current_database()"
                " and s.query not like '%%pg_stat_statements%%'"
                " and s.query not like '%%jobs.schedule where%%'",
            )
            assert not standby.stats().leading
        assert sum(row.calls for row in found) <= 2 * 6, found
        assert all("tick_scheduler" in row.query for row in found)
        assert sum(row.calls for row in found) >= 2 * 5

    async def test_a_round_that_has_nothing_to_fire_sends_nothing(self, database: str):
        store(database, "later", cron="0 0 1 1 *", every=None)
        rarely = {"lease": timedelta(minutes=5), "refresh": timedelta(minutes=1)}
        async with scheduling(database, **rarely) as scheduler:
            await until(lambda: scheduler.stats().schedules == 1, "it to be known")
            execute(database, "create extension if not exists pg_stat_statements schema public")
            execute(
                database,
                "select pg_stat_statements_reset(0, oid, 0) from pg_database"
                " where datname = current_database()",
            )
            await asyncio.sleep(1)
            found = rows(
                database,
                "select s.query from pg_stat_statements as s"
                " join pg_database as d on d.oid = s.dbid"
                " where d.datname = current_database() and s.query like '%%/* jobs:%%'"
                " and s.query not like '%%pg_stat_statements%%'",
            )
        assert found == []


async def test_nothing_fires_before_its_time_by_the_clock_of_the_database(database: str):
    store(database, "ticking")
    async with scheduling(database):
        await until(lambda: len(fired(database, "ticking")) >= 2, "two fires")
    with psycopg.connect(database) as conn:
        late = conn.execute(
            "select bool_and(created_at >= split_part(split_part(idempotency_key, '@', 2), '#', 1)"
            "::timestamptz) from jobs.job"
        ).fetchone()
    assert late == (True,)


def test_the_clock_of_the_process_is_never_asked():
    for path in tree.files("jobs/scheduler/*.py"):
        text = tree.read(path)
        assert not re.search(r"datetime\.now|time\.time\(|utcnow|today\(", text), path
    assert re.search(r"time\.monotonic", tree.read(tree.ROOT / "jobs/scheduler/clock.py"))
