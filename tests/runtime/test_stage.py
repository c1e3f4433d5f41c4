"""Staging through a handle: on either flavour of connection, in the transaction of the caller."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from psycopg import AsyncConnection, Connection

import jobs
from tests.runtime.doors import Door, Payload, keyed, plain, settled
from tests.runtime.working import job

HOUR = timedelta(hours=1)


@jobs.job(
    name="strict", tenant=jobs.NO_TENANT, idempotency_key=jobs.NO_KEY, require_transaction=True
)
def strict(input: Payload) -> None:
    """A job that is enqueued in transactions only."""


async def staged(door: Door) -> list[Any]:
    return await door.execute("select id, run_id from jobs.outbox order by staged_at, id")


class TestStage:
    async def test_answers_the_final_ids_and_writes_everything(
        self, door: Door, conn: Connection[Any]
    ) -> None:
        parent = f"00-{'a' * 32}-{'b' * 16}-01"
        input = Payload(key="k", tenant="t", note="é")
        answer = await settled(
            keyed.stage(
                door.conn, input, delay=HOUR, priority=3, enqueued_by="me", traceparent=parent
            )
        )
        assert type(answer) is jobs.Staged
        row = conn.execute(
            "select id, run_id, queue, name, tenant, priority, delay, run_at, max_attempts,"
            " dead_letter, idempotency_scope, idempotency_key, enqueued_by, traceparent,"
            " input::text, published_at, refusals from jobs.outbox"
        ).fetchone()
        assert row is not None
        assert row[:14] == (
            *answer,
            "keyed",
            "keyed",
            "t",
            3,
            HOUR,
            None,
            7,
            False,
            "live",
            "k",
            "me",
            parent,
        )
        assert keyed.parse(row[14]) == input
        assert row[15:] == (None, 0)
        assert conn.execute("select count(*) from jobs.job").fetchone() == (0,)

    async def test_at_an_instant(self, door: Door) -> None:
        at = datetime(2100, 1, 1, tzinfo=UTC)
        await settled(plain.stage(door.conn, {}, run_at=at))
        assert await door.execute("select run_at, delay from jobs.outbox") == [(at, timedelta())]

    async def test_many_answer_in_order_and_keep_it(self, door: Door) -> None:
        items = [Payload(), jobs.Item({"note": "own"}, delay=HOUR, priority=3), {"note": "map"}]
        answers = await settled(plain.stage_many(door.conn, items, priority=1))
        assert await staged(door) == [tuple(answer) for answer in answers]
        found = await door.execute("select priority, delay from jobs.outbox order by staged_at, id")
        assert found == [(1, timedelta()), (3, HOUR), (1, timedelta())]

    async def test_none_of_none(self, door: Door) -> None:
        assert await settled(plain.stage_many(door.conn, [])) == []

    async def test_belongs_to_the_transaction_of_the_caller(
        self, door: Door, conn: Connection[Any]
    ) -> None:
        await door.set_autocommit(False)
        await settled(plain.stage(door.conn, {}))
        await settled(plain.stage_many(door.conn, [{}, {}]))
        assert conn.execute("select count(*) from jobs.outbox").fetchone() == (0,)
        await door.rollback()
        await settled(plain.stage(door.conn, {}))
        await door.commit()
        assert conn.execute("select count(*) from jobs.outbox").fetchone() == (1,)

    async def test_several_statements_are_all_or_nothing(
        self, door: Door, conn: Connection[Any], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("jobs.enqueue.CHUNK_ROWS", 2)
        conn.execute(
            "alter table jobs.outbox add constraint x check (input::jsonb ->> 'note' <> 'bad')"
        )
        with pytest.raises(psycopg.errors.CheckViolation):
            await settled(
                plain.stage_many(
                    door.conn, [{"note": str(n)} for n in range(4)] + [{"note": "bad"}]
                )
            )
        assert await staged(door) == []
        await settled(plain.stage_many(door.conn, [{"note": str(n)} for n in range(5)]))
        assert len(await staged(door)) == 5


class TestRefusals:
    async def test_are_those_of_an_enqueue_and_write_nothing(self, door: Door) -> None:
        for options, field in (
            ({"delay": timedelta(seconds=-1)}, "delay"),
            ({"run_at": datetime(2100, 1, 1)}, "run_at"),
            ({"priority": 4}, "priority"),
            ({"enqueued_by": "\0"}, "enqueued_by"),
            ({"traceparent": "x"}, "traceparent"),
            ({"require_transaction": 1}, "require_transaction"),
        ):
            with pytest.raises(jobs.InvalidInput) as caught:
                await settled(plain.stage(door.conn, {}, **options))  # type: ignore[arg-type]
            assert caught.value.field == field
        with pytest.raises(jobs.InvalidInput, match=r"input\.note"):
            await settled(plain.stage(door.conn, {"note": "a\0b"}))
        with pytest.raises(jobs.TenantRequired):
            await settled(keyed.stage(door.conn, {"tenant": ""}))
        with pytest.raises(jobs.IdempotencyRequired):
            await settled(keyed.stage(door.conn, {"key": ""}))
        assert await staged(door) == []

    async def test_of_many_say_which(self, door: Door) -> None:
        with pytest.raises(jobs.InvalidInput) as caught:
            await settled(plain.stage_many(door.conn, [{}, {"number": float("nan")}]))
        assert caught.value.index == 1
        items = [{}, {}, jobs.Item({}, id=jobs.uuid7())]
        with pytest.raises(jobs.InvalidInput) as caught:
            await settled(plain.stage_many(door.conn, items))
        assert (caught.value.index, caught.value.field) == (2, "id")
        assert await staged(door) == []

    def test_something_else_than_a_connection(self) -> None:
        with pytest.raises(jobs.ConnectionUnsupported):
            plain.stage(object(), {})  # type: ignore[call-overload]


class TestRequiredTransaction:
    @pytest.fixture(params=["stage", "stage_many", "enqueue", "enqueue_many", "copy_many"])
    def verb(self, request: pytest.FixtureRequest) -> str:
        return str(request.param)

    async def call(self, door: Door, handle: Any, verb: str, **options: Any) -> None:
        input: Any = [{}] if verb.endswith("many") else {}
        await settled(getattr(handle, verb)(door.conn, input, **options))

    async def count(self, conn: Connection[Any]) -> int:
        query = "select (select count(*) from jobs.job) + (select count(*) from jobs.outbox)"
        row = conn.execute(query).fetchone()
        assert row is not None
        return int(row[0])

    async def test_is_refused_outside_of_one(
        self, door: Door, conn: Connection[Any], verb: str
    ) -> None:
        with pytest.raises(jobs.TransactionRequired) as caught:
            await self.call(door, strict, verb)
        assert caught.value.code == "OUTBOX_NO_TX"
        with pytest.raises(jobs.TransactionRequired):
            await self.call(door, plain, verb, require_transaction=True)
        assert await self.count(conn) == 0
        await self.call(door, strict, verb, require_transaction=False)
        await self.call(door, plain, verb)
        assert await self.count(conn) == 2

    async def test_passes_inside_of_one(self, door: Door, conn: Connection[Any], verb: str) -> None:
        if door.is_async:
            async with door.conn.transaction():
                await self.call(door, strict, verb)
        else:
            with door.conn.transaction():
                await self.call(door, strict, verb)
        assert await self.count(conn) == 1

    async def test_passes_where_the_driver_begins_one(
        self, door: Door, conn: Connection[Any], verb: str
    ) -> None:
        await door.set_autocommit(False)
        await self.call(door, strict, verb)
        assert await self.count(conn) == 0
        await door.commit()
        assert await self.count(conn) == 1

    def test_in_a_pipeline(self, conn: Connection[Any]) -> None:
        with conn.pipeline():
            with pytest.raises(jobs.TransactionRequired):
                strict.stage(conn, {})
            with conn.transaction():
                strict.stage(conn, {})
        assert conn.execute("select count(*) from jobs.outbox").fetchone() == (1,)

    def test_is_part_of_the_description(self) -> None:
        assert strict.describe()["require_transaction"] is True
        assert plain.describe()["require_transaction"] is False

    def test_is_true_or_false(self) -> None:
        with pytest.raises(jobs.DeclarationError, match="require_transaction"):
            job(require_transaction="yes")


async def test_the_row_is_committed_with_what_the_caller_writes(
    aconn: AsyncConnection[Any], conn: Connection[Any]
) -> None:
    conn.execute("create table org (id int primary key)")

    async def write() -> None:
        async with aconn.transaction():
            await aconn.execute("insert into org values (1)")
            await strict.stage(aconn, {})

    await write()
    with pytest.raises(psycopg.errors.UniqueViolation):
        await write()
    assert conn.execute("select count(*) from jobs.outbox").fetchone() == (1,)
