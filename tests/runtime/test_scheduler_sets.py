"""Applications, and versions of one, with different tasks on one database: all of them fire."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

import pytest

import jobs
from jobs.scheduler.leading import role_of
from tests.runtime.test_scheduler import distinct_seconds
from tests.runtime.ticking import (
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
from tests.runtime.working import execute, rows, until
from tests.support.server import ROOT

HOUR = timedelta(hours=1)


@jobs.job(tenant=jobs.NO_TENANT, idempotency_key=jobs.NO_KEY)
def extra(input: Input) -> None:
    """A job that one of two applications knows."""


def ticking(name: str) -> Any:
    """A task of each second."""

    @each_second(name=name)
    def task(at: datetime) -> Iterator[jobs.Entry]:
        yield work, Input(n=at.second)

    return task


class TestFiring:
    async def test_two_applications_with_different_tasks(self, database: str):
        async with (
            scheduling(database, ticking("one")) as first,
            make(database, ticking("two")) as second,
        ):
            await until(lambda: len(fired(database, "two")) >= 2, "the other's to fire")
            count = len(fired(database, "one"))
            await until(lambda: len(fired(database, "one")) > count, "the first to go on")
            assert first.stats().leading
            assert second.stats().leading
            assert (first.stats().overtaken, second.stats().overtaken) == (0, 0)
        assert distinct_seconds(fired(database, "one"))
        assert distinct_seconds(fired(database, "two"))

    async def test_what_a_new_version_adds_fires_beside_the_old_leader(self, database: str):
        """And what both declare fires once an occurrence."""
        async with (
            scheduling(database, ticking("shared")) as old,
            make(database, ticking("shared"), ticking("added")) as new,
        ):
            await until(lambda: len(fired(database, "added")) >= 3, "what it adds to fire")
            await until(lambda: len(fired(database, "shared")) >= 4, "the other to go on")
            assert old.stats().leading
            assert new.stats().leading
        assert distinct_seconds(fired(database, "shared"))
        assert distinct_seconds(fired(database, "added"))

    async def test_a_standby_takes_over_for_its_own_set(self, database: str):
        store(database, "ticking")  # known to all of them
        one, other = ticking("one"), ticking("other")
        async with (
            scheduling(database, one) as first,
            make(database, other) as second,
            make(database, one) as standby,
        ):
            await until(lambda: fired(database, "one"), "a fire")
            await until(lambda: fired(database, "other"), "one of the other")
            assert not standby.stats().leading
            first.stop()
            await first.wait()
            await until(lambda: standby.stats().leading, "it to lead")
            assert second.stats().leading
            count = len(fired(database, "one"))
            await until(lambda: len(fired(database, "one")) > count, "it to fire")
        assert distinct_seconds(fired(database, "ticking"))

    async def test_two_definitions_of_one_task(self, database: str):
        """What its row says counts for both; that of the one that is left, in the end."""
        later = {"name": "shared", "cron": "0 0 2 1 *"}

        def declared(**options: Any) -> Any:
            @yearly(**({"name": "shared"} | options))
            def version() -> Iterator[jobs.Entry]:
                yield work, Input()

            return version

        async with scheduling(database, declared(**later), ticking("added")) as new:
            await until(lambda: fired(database, "added"), "it to lead")
            assert schedule(database, "shared").cron == "0 0 2 1 *"
            async with make(database, declared()) as old:  # a restart of the old version
                await until(lambda: schedule(database, "shared").cron == "0 0 1 1 *", "its timing")
                await until(lambda: old.stats().schedules == 1, "it to know it")
                revision = schedule(database, "shared").revision

                def planned(scheduler: jobs.Scheduler) -> Any:
                    return scheduler._dispatcher._plans["shared"]

                await until(lambda: planned(new).revision == revision, "the other to know it")
                assert planned(new).next_due == planned(old).next_due
                assert schedule(database, "shared").revision == revision
            await until(lambda: schedule(database, "shared").cron == "0 0 2 1 *", "the new timing")


class TestStored:
    """A schedule whose job one of two applications knows."""

    async def test_it_is_no_error_that_one_does_not_know_its_job(self, database: str):
        store(database, "theirs", job="extra")
        store(database, "yearly", job="extra", cron="0 0 1 1 *", every=None)
        async with scheduling(database, extra), make(database, ticking("own")) as other:
            await until(lambda: fired(database, "own"), "the other to know the schedules")
            assert schedule(database, "yearly").error is None
            execute(database, "update jobs.schedule set revision = revision + 1")
            count = len(fired(database, "theirs"))
            await until(lambda: len(fired(database, "theirs")) > count + 1, "it to go on")
            assert other.stats().leading
            assert schedule(database, "yearly").error is None
        assert distinct_seconds(fired(database, "theirs"))

    async def test_a_mark_goes_when_one_comes_that_knows_its_job(self, database: str):
        store(database, "theirs", job="extra", cron="0 0 1 1 *", every=None)
        async with scheduling(database) as first:
            await until(lambda: schedule(database, "theirs").error, "the mark")
            async with make(database, extra):
                await until(lambda: schedule(database, "theirs").error is None, "it to go")
                await until(lambda: not first._dispatcher._alone, "the first to have seen it")
            await until(lambda: schedule(database, "theirs").error, "the mark, once it is gone")

    async def test_one_that_nobody_knows_is_marked_once_it_is_overdue(self, database: str):
        async with scheduling(database, ticking("one")), make(database, ticking("two")):
            await until(lambda: fired(database, "two"), "both to lead")
            store(database, "nobody's", job="gone", every=HOUR)
            set_back(database, "nobody's", 3 * HOUR)
            execute(database, "update jobs.schedule set revision = revision + 1")
            await until(
                lambda: "no job 'gone'" in (schedule(database, "nobody's").error or ""), "the mark"
            )

    async def test_one_that_falls_behind_later_is_marked_as_well(
        self, database: str, monkeypatch: pytest.MonkeyPatch
    ):
        monkeypatch.setattr("jobs.scheduler.dispatcher.LOOK", 0.5)
        store(database, "nobody's", job="gone", every=HOUR)
        async with (
            scheduling(database, ticking("two")) as first,
            make(database, ticking("one")) as second,
        ):
            one, two = first._dispatcher, second._dispatcher
            await until(lambda: fired(database, "one"), "both to lead")
            await until(
                lambda: not one._alone and one._loaded == two._loaded is not None,
                "neither to have anything new to read",
            )
            execute(database, "update jobs.schedule set error = null")
            set_back(database, "nobody's", 3 * HOUR)  # as if that time had passed
            await until(lambda: schedule(database, "nobody's").error, "the mark")


class TestRole:
    def test_it_is_the_same_in_any_process_and_order(self):
        one, two = ticking("one"), ticking("two")
        expected = role_of(registry(one, two, extra))
        assert role_of(registry(extra, two, one)) == expected
        program = (
            "import sys; from tests.runtime.test_scheduler_sets import *;"
            "print(role_of(registry(extra, ticking('two'), ticking('one'))))"
        )
        for seed in ("1", "2"):
            found = subprocess.run(
                [sys.executable, "-c", program],
                cwd=ROOT,
                env={"PYTHONPATH": ":".join(sys.path), "PYTHONHASHSEED": seed},
                capture_output=True,
                text=True,
                check=True,
            )
            assert found.stdout.strip() == expected

    def test_another_set_is_another_role(self):
        found = {
            role_of(registry(*handles))
            for handles in ((), (extra,), (ticking("extra"),), (ticking("one"), ticking("two")))
        }
        assert len(found) == 4
        assert all(one.startswith("scheduler:") and len(one) < 40 for one in found)

    def test_a_job_is_not_taken_for_a_task(self):
        one = registry(ticking("work"))
        assert {task.name for task in one.tasks} == {"work"}
        assert work in list(one)
        assert keyed in list(one)
        assert role_of(one) != role_of(registry())

    async def test_a_stop_removes_what_is_left_of_others(self, database: str):
        async with scheduling(database):
            execute(
                database,
                "insert into jobs.leader (role, holder, lease, expires_at) values"
                " ('scheduler:old', 'gone', '30 s', now() - interval '25 hours'),"
                " ('scheduler:new', 'gone', '30 s', now() - interval '23 hours')",
            )
        assert [row.role for row in rows(database, "select role from jobs.leader")] == [
            "scheduler:new"
        ]
