"""Bulk enqueues block by block: order, indexes of bad items, and how far a stream is read ahead."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from psycopg import AsyncConnection, Connection
from psycopg.pq import TransactionStatus
from pydantic import BaseModel

import jobs
from jobs.errors import InvalidInput
from tests.conftest import Connect
from tests.runtime.doors import Door, Payload, keyed, plain, stored


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jobs.definition.BLOCK_ROWS", 3)


def numbered(count: int, bad: int | None = None) -> Iterator[Payload]:
    """Payloads that carry their number, one of them with what JSON does not know."""
    for n in range(count):
        yield Payload(key=str(n), note=str(n), number=float("nan") if n == bad else 0.0)


Enqueue = Callable[[Door, Iterator[Payload]], Any]
CALLS: list[Any] = [
    pytest.param(lambda door, items: door.enqueue_many(plain, items), id="plain"),
    pytest.param(lambda door, items: door.enqueue_many(keyed, items), id="keyed"),
    pytest.param(lambda door, items: door.copy_many(plain, items), id="copy"),
]


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("bad", [0, 2, 3, 7, 9])
async def test_a_bad_item_in_any_block_is_named_and_nothing_is_written(
    door: Door, conn: Connection[Any], call: Enqueue, bad: int
) -> None:
    with pytest.raises(InvalidInput) as caught:
        await call(door, numbered(10, bad))
    assert caught.value.index == bad
    assert stored(conn) == []
    assert door.conn.info.transaction_status == TransactionStatus.IDLE
    await call(door, numbered(10))
    assert [plain.parse(row.input).note for row in stored(conn)] == [str(n) for n in range(10)]


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("handle", [plain, keyed])
async def test_ids_follow_the_order_given_whoever_has_options_of_his_own(
    door: Door, conn: Connection[Any], handle: Any
) -> None:
    items: list[Any] = [
        jobs.Item(payload, delay=timedelta(minutes=1)) if n in (1, 2, 5, 9) else payload
        for n, payload in enumerate(numbered(11))
    ]
    answers = await door.enqueue_many(handle, items)
    ids = [id for answer in answers for id in (answer.id, answer.run_id)]
    assert ids == sorted(set(ids))
    assert [plain.parse(row.input).note for row in stored(conn)] == [str(n) for n in range(11)]


async def test_what_is_derived_from_an_input_stays_with_it(
    door: Door, conn: Connection[Any]
) -> None:
    @jobs.job(
        queue="derived",
        tenant=lambda input: f"t{input.note}",
        idempotency_key=lambda input: f"k{input.note}",
        concurrency=jobs.Concurrency(key=lambda input: f"c{input.note}", limit=1),
    )
    def derived(input: Payload) -> None: ...

    await door.enqueue_many(derived, numbered(600))
    found = conn.execute(
        "select input ->> 'note', tenant, idempotency_key, concurrency_key from jobs.job"
    ).fetchall()
    assert len(found) == 600
    for note, tenant, key, concurrency_key in found:
        assert (tenant, key) == (f"t{note}", f"k{note}")
        assert concurrency_key.endswith(f"c{note}")


class TestReadingAhead:
    """A stream is never held all at once."""

    @pytest.mark.parametrize(
        ("letters", "most"), [(1, 500), (1_000, 63), (200_000, 1)], ids=["rows", "size", "large"]
    )
    def test_blocks_are_bounded_in_rows_and_in_characters(self, letters: int, most: int) -> None:
        read = 0

        def feed() -> Iterator[Payload]:
            nonlocal read
            for _ in range(1_200):
                read += 1
                yield Payload(note="x" * letters)

        sizes = []
        for block in plain.blocks(feed(), None, None, None):
            sizes.append(len(block))
            assert read == sum(sizes), "nothing is read beyond the block"
        assert sum(sizes) == 1_200
        assert max(sizes) == most

    async def test_the_server_has_the_first_rows_before_the_last_are_made(
        self, door: Door, conn: Connection[Any]
    ) -> None:
        seen = []

        def feed() -> Iterator[Payload]:
            for n in range(60):
                if n == 59:  # what was sent is read by the server at once
                    seen.append(_copied(conn))
                yield Payload(note="x" * 32_000)

        assert await door.copy_many(plain, feed()) == 60
        assert seen == [True]


def _copied(conn: Connection[Any]) -> bool:
    statement = "select exists (select 1 from pg_stat_progress_copy where tuples_processed > 0)"
    for _ in range(500):
        if conn.execute(statement).fetchone() == (True,):
            return True
        threading.Event().wait(0.01)
    return False


async def test_a_connection_lost_in_the_middle_leaves_nothing(
    door: Door, conn: Connection[Any]
) -> None:
    pid = door.conn.info.backend_pid

    def feed() -> Iterator[Payload]:
        for n in range(5_000):
            if n == 1_500:
                conn.execute("select pg_terminate_backend(%s, 5000)", [pid])
            yield Payload(note="x" * 500)

    with pytest.raises(psycopg.OperationalError):
        await door.copy_many(plain, feed())
    assert stored(conn) == []


@pytest.mark.parametrize(
    "call",
    [
        lambda own: plain.copy_many(own, numbered(2_000)),
        lambda own: plain.enqueue_many(own, numbered(6_000)),
    ],
    ids=["copy", "many"],
)
async def test_a_cancel_in_the_middle_leaves_nothing(
    database: str, conn: Connection[Any], connect: Connect, call: Callable[[Any], Any]
) -> None:
    locker = connect(autocommit=False)
    locker.execute("lock table jobs.wake in access exclusive mode")
    own = await AsyncConnection.connect(database, autocommit=True)
    state = "select wait_event_type from pg_stat_activity where pid = %s and state = 'active'"
    pid = own.info.backend_pid

    async def until(wanted: object) -> None:
        for _ in range(1_000):
            if conn.execute(state, [pid]).fetchone() == wanted:
                return
            await asyncio.sleep(0.01)
        raise AssertionError("it does not happen")

    task = asyncio.ensure_future(call(own))
    await until(("Lock",))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    locker.rollback()
    await until(None)
    assert stored(conn) == []
    # The driver has cancelled the statement, or closed the connection where that failed.
    assert own.closed or own.info.transaction_status == TransactionStatus.IDLE
    await own.close()


# --- models that pydantic's own serialiser and validator do not tell all about


class Sealed(BaseModel):
    """Writes and reads an envelope of its own."""

    token: int

    def model_dump_json(self, **_: Any) -> str:
        return f"[{self.token}]"

    @classmethod
    def model_validate_json(cls, json_data: Any, **_: Any) -> Any:
        return cls(token=int(json_data[1:-1]))


class Lossy(BaseModel):
    """Comes back as the same one always."""

    token: int

    @classmethod
    def model_validate_json(cls, *_: Any, **__: Any) -> Any:
        return cls(token=0)


async def test_methods_of_a_model_for_json_are_used(door: Door, conn: Connection[Any]) -> None:
    @jobs.job(tenant=jobs.NO_TENANT, idempotency_key=jobs.NO_KEY)
    def sealed(input: Sealed) -> None: ...

    @jobs.job(tenant=jobs.NO_TENANT, idempotency_key=jobs.NO_KEY)
    def lossy(input: Lossy) -> None: ...

    await door.enqueue_many(sealed, [Sealed(token=5)])
    (row,) = stored(conn)
    assert row.input == "[5]"
    assert sealed.parse(row.input) == Sealed(token=5)
    with pytest.raises(InvalidInput, match="comes back"):
        await door.enqueue_many(lossy, [Lossy(token=0), Lossy(token=1)])
