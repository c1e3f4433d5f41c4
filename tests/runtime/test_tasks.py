"""Declaring tasks: what is refused, what the handle offers, and a fire by hand."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from types import ModuleType
from typing import Any

import pytest
from psycopg import AsyncConnection, Connection
from pydantic import BaseModel

import jobs
from jobs.errors import DeclarationError, DuplicateName, InvalidInput, ScheduleInvalid
from jobs.firing import scoped_key, shots

AT = datetime(2026, 5, 4, 1, 0, tzinfo=UTC)
NIGHTLY: dict[str, Any] = {"cron": "0 3 * * *", "tz": "Europe/Zurich"}


class Input(BaseModel):
    """A number."""

    n: int = 0


@jobs.job(tenant=jobs.NO_TENANT, idempotency_key=lambda i: f"k{i.n}", queue="keyed")
def keyed(input: Input) -> None:
    """Has a key."""


@jobs.job(tenant=jobs.NO_TENANT, idempotency_key=jobs.NO_KEY)
def keyless(input: Input) -> None:
    """Has none."""


@jobs.task(**NIGHTLY, name="pinned for a test")
def nightly(occurrence: datetime) -> Iterator[jobs.Entry]:
    """Two jobs."""
    yield keyed, Input(n=occurrence.hour)
    yield keyless, {"n": 2}


class TestDeclaration:
    def test_the_function_may_take_nothing(self):
        @jobs.task(**NIGHTLY)
        def plain() -> list[jobs.Entry]:
            return [(keyed, Input(n=1))]

        assert not plain.takes_occurrence
        assert [handle.name for handle, _ in plain.entries(AT)] == ["keyed"]
        assert (plain.name, plain.catch_up, plain.max_catch_up) == ("plain", "skip", 10)

    def test_the_function_is_given_the_occurrence_in_the_zone(self):
        seen = []

        @jobs.task(**NIGHTLY)
        def told(at: datetime) -> list[jobs.Entry]:
            seen.append(at)
            return []

        told.entries(AT)
        assert seen[0].isoformat() == "2026-05-04T03:00:00+02:00"
        assert seen[0].tzinfo.key == "Europe/Zurich"

    @pytest.mark.parametrize(
        ("field", "given"),
        [
            ("tz", {"tz": None}),
            ("tz", {"tz": "CEST"}),
            ("tz", {"tz": "UTC+3"}),
            ("cron hour", {"cron": "0 24 * * *"}),
            ("cron day of month", {"cron": "0 0 30 2 *"}),
            ("catch_up", {"catch_up": "run-once"}),
            ("catch_up", {"catch_up": None}),
            ("max_catch_up", {"max_catch_up": 0}),
            ("max_catch_up", {"max_catch_up": 1.5}),
            ("max_catch_up", {"max_catch_up": True}),
            ("max_catch_up", {"max_catch_up": 10_001}),
        ],
    )
    def test_what_could_only_fail_later_is_refused(self, field: str, given: dict[str, Any]):
        with pytest.raises(ScheduleInvalid) as caught:
            jobs.task(**(NIGHTLY | given))
        assert caught.value.field == field

    @pytest.mark.parametrize("name", ["", "x" * 256, "a\0b", "\ud800", 5], ids=ascii)
    def test_names_follow_the_rules_of_jobs(self, name: Any):
        with pytest.raises(DeclarationError, match="name: "):
            jobs.task(**NIGHTLY, name=name)

    def test_a_name_that_is_stated_twice(self):
        def another() -> list[jobs.Entry]:
            return []

        with pytest.raises(DuplicateName, match="pinned for a test"):
            jobs.task(**NIGHTLY, name="pinned for a test")(another)

    def test_functions_that_cannot_be_called_so(self):
        def two(_a: object, _b: object) -> list[jobs.Entry]:
            return []

        def keyword(*, _a: object) -> list[jobs.Entry]:
            return []

        async def asynchronous() -> list[jobs.Entry]:
            return []

        async def generator() -> Any:
            yield keyed, Input()

        for function in (two, keyword, asynchronous, generator, Input, "text"):
            with pytest.raises(DeclarationError):
                jobs.task(**NIGHTLY)(function)  # type: ignore[call-overload]

    def test_nobody_makes_one_by_hand(self):
        fields = {field.name: getattr(nightly, field.name) for field in dataclasses.fields(nightly)}
        with pytest.raises(DeclarationError, match="by hand"):
            jobs.TaskHandle(**fields, proof=None)

    def test_it_is_copied_as_itself(self):
        assert copy.deepcopy(nightly) is nightly
        assert pickle.loads(pickle.dumps(nightly)) is nightly


class TestRegistry:
    def module(self, **names: object) -> ModuleType:
        module = ModuleType("made_for_a_test")
        vars(module).update(names)
        return module

    def test_it_has_the_tasks_beside_the_jobs(self):
        registry = jobs.Registry.of(self.module(nightly=nightly, keyed=keyed, other=5))
        assert registry.tasks == (nightly,)
        assert registry.get_task("pinned for a test") is nightly
        assert registry.get_task("keyed") is None
        assert [job.name for job in registry] == ["keyed"]

    def test_they_are_in_order_of_name(self):
        made = {n: jobs.task(**NIGHTLY, name=n)(lambda: []) for n in ("b", "a", "B")}
        registry = jobs.Registry.of(self.module(**made))
        assert [task.name for task in registry.tasks] == ["B", "a", "b"]

    def test_two_of_one_name(self):
        def one() -> list[jobs.Entry]:
            return []

        first, second = jobs.task(**NIGHTLY)(one), jobs.task(**NIGHTLY)(one)
        with pytest.raises(DuplicateName, match="two tasks have the name 'one'"):
            jobs.Registry.of(self.module(first=first, second=second))

    def test_one_exported_twice(self):
        with pytest.raises(DuplicateName, match="exported as"):
            jobs.Registry.of(self.module(a=nightly, b=nightly))

    def test_a_job_and_a_task_may_share_a_name(self):
        @jobs.task(**NIGHTLY)
        def keyed() -> list[jobs.Entry]:
            return []

        registry = jobs.Registry.of(self.module(task=keyed, job=globals()["keyed"]))
        assert registry.get_task("keyed") is keyed
        assert registry.get("keyed") is globals()["keyed"]


class TestHandle:
    def test_next_is_in_the_zone(self):
        assert [one.isoformat() for one in nightly.next(AT, 2)] == [
            "2026-05-05T03:00:00+02:00",
            "2026-05-06T03:00:00+02:00",
        ]

    @pytest.mark.parametrize("n", [-1, 1.0, True, 10_001])
    def test_next_of_an_odd_number(self, n: Any):
        with pytest.raises(InvalidInput, match="n: "):
            nightly.next(AT, n)

    @pytest.mark.parametrize(
        "after", [datetime(2026, 5, 4), "2026-05-04", datetime(1899, 1, 1, tzinfo=UTC)], ids=str
    )
    def test_next_of_what_is_no_instant(self, after: Any):
        with pytest.raises(InvalidInput, match="after: "):
            nightly.next(after)

    def test_entries_of_what_is_no_instant(self):
        with pytest.raises(InvalidInput, match="time zone"):
            nightly.entries(datetime(2026, 5, 4))

    def test_describe(self):
        assert nightly.describe() == {
            "name": "pinned for a test",
            "cron": "0 3 * * *",
            "every": None,
            "anchor": None,
            "tz": "Europe/Zurich",
            "catch_up": "skip",
            "max_catch_up": 10,
            "jobs": ["keyed", "keyless"],
        }

    def test_describe_an_interval(self):
        @jobs.task(every=timedelta(minutes=10), catch_up="run_all", max_catch_up=3)
        def often() -> list[jobs.Entry]:
            return []

        said = often.describe()
        assert (said["every"], said["tz"]) == (600, "UTC")
        assert said["anchor"] == "1970-01-01T00:00:00+00:00"
        assert (said["catch_up"], said["max_catch_up"], said["jobs"]) == ("run_all", 3, [])

    @pytest.mark.parametrize(
        "yielded",
        [
            *(None, 5, "text", {"a": 1}, Input(), [keyed], [(keyed,)], [(keyed, Input(), 1)]),
            *([("keyed", Input())], [[keyed, Input()]]),
        ],
        ids=repr,
    )
    def test_what_is_no_pair_of_job_and_input(self, yielded: Any):
        @jobs.task(**NIGHTLY)
        def odd() -> Any:
            return yielded

        with pytest.raises(InvalidInput):
            odd.entries(AT)

    def test_endless_ones(self):
        @jobs.task(**NIGHTLY)
        def endless() -> Iterator[jobs.Entry]:
            while True:
                yield keyed, Input()

        with pytest.raises(InvalidInput, match="at most 10,000"):
            endless.entries(AT)


class TestFireByHand:
    def test_each_job_has_its_plain_key(self, conn: Connection[Any]):
        made = nightly.fire(conn, occurrence=AT, enqueued_by="me")
        assert [one.status for one in made] == ["created", "created"]
        rows = conn.execute(
            "select name, queue, idempotency_key, input::text, enqueued_by"
            " from jobs.job order by id"
        ).fetchall()
        assert rows == [
            ("keyed", "keyed", "k3", '{"n":3}', "me"),
            ("keyless", "default", None, '{"n":2}', "me"),
        ]

    def test_a_second_fire_meets_the_first(self, conn: Connection[Any]):
        first = nightly.fire(conn, occurrence=AT)
        second = nightly.fire(conn, occurrence=AT)
        assert [one.status for one in second] == ["existing", "created"]
        assert second[0].id == first[0].id

    def test_it_never_meets_a_scheduled_one(self, conn: Connection[Any]):
        nightly.fire(conn, occurrence=AT)
        scheduled = shots(nightly.entries(AT), scope=(nightly.name, AT), enqueued_by=None)
        assert scheduled[0].row.key == "task:pinned for a test@2026-05-04T01:00:00+00:00=k3"
        assert scheduled[1].row.key == "task:pinned for a test@2026-05-04T01:00:00+00:00#1"

    def test_it_is_in_the_transaction_of_the_caller(self, connect: Any, conn: Connection[Any]):
        mine = connect(autocommit=False)
        nightly.fire(mine)
        assert conn.execute("select count(*) from jobs.job").fetchone() == (0,)
        mine.commit()
        assert conn.execute("select count(*) from jobs.job").fetchone() == (2,)

    async def test_an_asynchronous_connection(self, aconn: AsyncConnection[Any]):
        made = await nightly.fire(aconn)
        assert [one.status for one in made] == ["created", "created"]

    def test_all_or_nothing(self, conn: Connection[Any]):
        @jobs.task(**NIGHTLY)
        def half() -> Iterator[jobs.Entry]:
            yield keyed, Input(n=1)
            yield keyed, {"n": "x"}

        with pytest.raises(InvalidInput) as caught:
            half.fire(conn)
        assert caught.value.index == 1
        assert conn.execute("select count(*) from jobs.job").fetchone() == (0,)

    def test_all_or_nothing_where_the_database_refuses_one(
        self, connect: Any, conn: Connection[Any]
    ):
        @jobs.task(**NIGHTLY)
        def both() -> Iterator[jobs.Entry]:
            yield keyless, Input(n=1)
            yield keyed, Input(n=1)

        other = connect(autocommit=False)
        keyed.enqueue(other, Input(n=1))
        conn.execute("set lock_timeout = '100ms'")
        with pytest.raises(jobs.EnqueueContended):
            both.fire(conn)
        other.rollback()
        assert conn.execute("select count(*) from jobs.job").fetchone() == (0,)

    def test_items_bring_options(self, conn: Connection[Any]):
        @jobs.task(**NIGHTLY)
        def later() -> Iterator[jobs.Entry]:
            yield keyed, jobs.Item(Input(n=1), delay=timedelta(hours=1), priority=3)

        later.fire(conn)
        row = conn.execute("select priority, available_at > now() from jobs.job").fetchone()
        assert row == (3, True)

    def test_a_scheduled_entry_brings_no_id(self):
        entry = (keyed, jobs.Item(Input(), id=jobs.uuid7()))
        with pytest.raises(InvalidInput, match="item 0: id"):
            shots([entry], scope=("t", AT), enqueued_by=None)

    def test_something_else_than_a_connection(self):
        with pytest.raises(jobs.ConnectionUnsupported):
            nightly.fire(5)  # type: ignore[call-overload]

    def test_what_the_function_raises_is_the_callers(self, conn: Connection[Any]):
        @jobs.task(**NIGHTLY)
        def broken() -> list[jobs.Entry]:
            raise KeyError("mine")

        with pytest.raises(KeyError, match="mine"):
            broken.fire(conn)


class TestKeys:
    def test_two_tasks_of_one_job_and_time_differ(self):
        assert scoped_key("a", AT, "k", 0) != scoped_key("b", AT, "k", 0)
        assert scoped_key("a", AT, None, 0) != scoped_key("a", AT, None, 1)
        assert scoped_key("a", AT, None, 0) != scoped_key("a", AT, "0", 0)
        assert scoped_key("a", AT, "k", 0) != scoped_key("a", AT + timedelta(seconds=1), "k", 0)

    def test_one_instant_is_one_key_in_any_zone(self):
        there = AT.astimezone(datetime.fromisoformat("2026-01-01T00:00+05:30").tzinfo)
        assert scoped_key("a", AT, "k", 0) == scoped_key("a", there, "k", 0)

    def test_the_longest_key_fits(self):
        long = [scoped_key("t" * 255, AT, letter * 16_384, 0) for letter in "ab"]
        assert long[0] != long[1]
        assert all(len(one.encode()) <= 16_384 for one in long)
