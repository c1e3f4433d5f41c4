"""Enqueueing in bulk: answers in order, repeats, chunks, bad items, and streams through COPY."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from psycopg import Connection

import jobs
from jobs.errors import (
    DuplicateJob,
    EnqueueContended,
    IdempotencyRequired,
    InvalidInput,
    TenantRequired,
)
from jobs_sql import bulk
from jobs_sql import enqueue as sql
from tests.runtime.doors import Door, Payload, keyed, plain, stored, waiting
from tests.sql.calls import claim_one, settle
from tests.support.stepped import Session

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def by_key(keys: str) -> list[Payload]:
    return [Payload(key=key) for key in keys]


def statuses(answers: list[jobs.Enqueued]) -> str:
    return "".join(answer.status[0] for answer in answers)


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jobs.enqueue.CHUNK_ROWS", 3)


# --- answers


async def test_all_rows_are_written_as_declared_and_answered_in_order(
    door: Door, conn: Connection[Any]
) -> None:
    answers = await door.enqueue_many(
        keyed, by_key("cab"), delay=timedelta(hours=1), enqueued_by="me", traceparent=TRACE
    )
    rows = stored(conn)
    assert [row.id for row in rows] == [answer.id for answer in answers]
    assert [row.run_id for row in rows] == [answer.run_id for answer in answers]
    assert [row.idempotency_key for row in rows] == ["c", "a", "b"]
    assert statuses(answers) == "ccc"
    for row in rows:
        assert row[2:6] == ("keyed", "keyed", "t", 2)
        assert row[7:10] == (7, False, "live")
        assert row[11:13] == (TRACE, "me")
        assert keyed.parse(row.input).key == row.idempotency_key


async def test_bulk_jobs_of_one_priority_run_in_the_order_given(
    door: Door, conn: Connection[Any]
) -> None:
    answers = await door.enqueue_many(keyed, by_key("qwertyuiop"))
    claimed = [claim_one(conn, queues={"keyed": 1}).id for _ in answers]
    assert claimed == [answer.id for answer in answers]


@pytest.mark.usefixtures("small_chunks")
def test_each_chunk_of_a_large_batch_keeps_the_order_given(
    conn: Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[list[UUID]] = []
    real = sql.enqueue_jobs

    def noting(conn: Connection[Any], **named: Any) -> Any:
        sent.append(named["run_ids"])
        return real(conn, **named)

    monkeypatch.setattr(sql, "enqueue_jobs", noting)
    answers = keyed.enqueue_many(conn, by_key("qwertyuiop"))
    asked = [answer.run_id for answer in answers]
    assert sorted(run_id for chunk in sent for run_id in chunk) == asked
    assert all(chunk == sorted(chunk) for chunk in sent)
    assert [run_id for chunk in sent for run_id in chunk] != asked  # chunks are cut by key


async def test_items_carry_options_of_their_own(door: Door, conn: Connection[Any]) -> None:
    at, id = datetime.now(UTC) + timedelta(days=1_000), uuid4()
    answers = await door.enqueue_many(
        plain,
        [
            Payload(note="a"),
            {"note": "b"},
            jobs.Item(Payload(note="c"), priority=0, run_at=at),
            jobs.Item({"note": "d"}, id=id, delay=timedelta()),
        ],
        priority=3,
        delay=timedelta(days=3_000),
    )
    rows = {row.id: row for row in stored(conn)}
    ordered = [rows[answer.id] for answer in answers]
    assert [plain.parse(row.input).note for row in ordered] == ["a", "b", "c", "d"]
    assert [row.priority for row in ordered] == [3, 3, 0, 3]
    assert ordered[2].available_at == at
    assert ordered[3].id == id
    assert ordered[3].available_at < at < min(row.available_at for row in ordered[:2])


async def test_nothing_to_enqueue_sends_nothing(door: Door) -> None:
    await door.set_autocommit(False)
    for on_conflict in ("return", "raise"):
        assert await door.enqueue_many(plain, iter(()), on_conflict=on_conflict) == []
    assert door.conn.info.transaction_status == psycopg.pq.TransactionStatus.IDLE


@pytest.mark.usefixtures("small_chunks")
async def test_existing_jobs_are_named_and_left_alone(door: Door, conn: Connection[Any]) -> None:
    first = await door.enqueue_many(keyed, by_key("bd"))
    before = conn.execute("select id, xmin::text, ctid::text from jobs.job order by id").fetchall()
    again = await door.enqueue_many(keyed, by_key("abcdefg"))
    assert statuses(again) == "cececcc"
    assert [again[1], again[3]] == [(a.id, a.run_id, "existing") for a in first]
    after = conn.execute(
        "select id, xmin::text, ctid::text from jobs.job where id = any(%s) order by id",
        [[answer.id for answer in first]],
    ).fetchall()
    assert after == before


# --- repeats inside the batch


@pytest.mark.usefixtures("small_chunks")
async def test_of_a_repeated_key_the_first_is_created(door: Door, conn: Connection[Any]) -> None:
    answers = await door.enqueue_many(keyed, by_key("abacabda"))
    assert statuses(answers) == "cceceece"
    assert [answers[i].id for i in (2, 4, 7)] == [answers[0].id] * 3
    assert answers[5].id == answers[1].id
    assert len(stored(conn)) == 4
    tenants = await door.enqueue_many(keyed, [Payload(key="n", tenant=t) for t in "xyx"])
    assert statuses(tenants) == "cce"


@pytest.mark.usefixtures("small_chunks")
async def test_of_a_repeated_id_the_first_is_created(door: Door, conn: Connection[Any]) -> None:
    high, low = UUID(int=2**127), UUID(int=5)
    items = [
        jobs.Item(Payload(note=note), id=id)
        for note, id in zip("abcd", (high, low) * 2, strict=True)
    ]
    answers = await door.enqueue_many(plain, items)
    assert statuses(answers) == "ccee"
    assert [answer.id for answer in answers] == [high, low, high, low]
    assert sorted(plain.parse(row.input).note for row in stored(conn)) == ["a", "b"]
    assert statuses(await door.enqueue_many(plain, items)) == "eeee"


async def test_a_key_is_not_lost_with_an_item_whose_id_is_taken(
    door: Door, conn: Connection[Any]
) -> None:
    """The first item repeats a finished id, so it does not take the key that the others have."""
    id = uuid4()
    await door.enqueue(plain, Payload(), id=id)
    held = claim_one(conn, queues={"plain": 1})
    settle(conn, (held.id, held.claims))
    answers = await door.enqueue_many(
        keyed, [jobs.Item(Payload(key="k"), id=id), Payload(key="k"), Payload(key="k")]
    )
    assert statuses(answers) == "ece"
    assert answers[0].id == id
    assert answers[1].id == answers[2].id != id
    (row,) = stored(conn)
    assert (row.id, row.idempotency_key) == (answers[1].id, "k")


async def test_an_id_is_not_lost_with_an_item_whose_key_is_taken(
    door: Door, conn: Connection[Any]
) -> None:
    first = await door.enqueue(keyed, Payload(key="k"))
    id = uuid4()
    answers = await door.enqueue_many(
        keyed, [jobs.Item(Payload(key="k"), id=id), jobs.Item(Payload(key="other"), id=id)]
    )
    assert statuses(answers) == "ec"
    assert [answer.id for answer in answers] == [first.id, id]
    assert {row.id for row in stored(conn)} == {first.id, id}


# --- bad items


@pytest.mark.parametrize(
    ("bad", "error", "says"),
    [
        (Payload(note="\x00"), InvalidInput, "item 250: input.note: contains a NUL"),
        ({"note": "\ud800"}, InvalidInput, "item 250: input.note: "),
        (Payload(number=float("nan")), InvalidInput, "item 250: input.number: is not a finite"),
        ({"number": "x"}, InvalidInput, "item 250: input.number: "),
        (5, InvalidInput, "item 250: input: "),
        (Payload(key="\x00"), InvalidInput, "item 250: input.key: "),
        (Payload(key=""), IdempotencyRequired, "item 250: idempotency_key: "),
        (Payload(tenant=""), TenantRequired, "item 250: tenant: "),
        (Payload(tenant="é" * 128), InvalidInput, "item 250: tenant: is 256 bytes"),
        (jobs.Item(Payload(), priority=9), InvalidInput, "item 250: priority: "),
        (jobs.Item(Payload(), delay=timedelta(-1)), InvalidInput, "item 250: delay: "),
        (jobs.Item(Payload(), run_at=datetime(2026, 1, 1)), InvalidInput, "item 250: run_at: "),
        (jobs.Item(Payload(note="\x00")), InvalidInput, "item 250: input.note: "),
    ],
)
async def test_o22_one_bad_item_among_500_is_named_and_none_is_written(
    refusing_door: Door, bad: Any, error: type[jobs.JobsError], says: str
) -> None:
    items: list[Any] = [Payload(key=str(n)) for n in range(500)]
    items[250] = bad
    with pytest.raises(error) as caught:
        await refusing_door.enqueue_many(keyed, items)
    assert caught.value.index == 250
    assert str(caught.value).startswith(says)


@pytest.mark.parametrize("thing", [Payload(), {"key": "a"}, "text", b"text", 5, None])
async def test_one_payload_is_not_taken_for_many(refusing_door: Door, thing: Any) -> None:
    for call in (refusing_door.enqueue_many, refusing_door.copy_many):
        with pytest.raises(InvalidInput, match=type(thing).__name__) as caught:
            await call(plain, thing)
        assert caught.value.field == "items"
        assert caught.value.index is None


async def test_options_of_the_call_are_checked_before_any_item(door: Door) -> None:
    def items() -> Iterator[Payload]:
        raise AssertionError("an item was asked for")
        yield Payload()

    for options in ({"delay": 5}, {"run_at": datetime(2026, 1, 1)}, {"enqueued_by": "\x00"}):
        with pytest.raises(InvalidInput) as caught:
            await door.enqueue_many(plain, items(), **options)
        assert caught.value.index is None


@pytest.mark.usefixtures("small_chunks")
async def test_raise_on_conflict_names_the_first_one_and_leaves_nothing(
    door: Door, conn: Connection[Any]
) -> None:
    first = await door.enqueue(keyed, Payload(key="e"))
    with pytest.raises(DuplicateJob) as caught:
        await door.enqueue_many(keyed, by_key("abcdefg"), on_conflict="raise")
    assert (caught.value.index, caught.value.id) == (4, first.id)
    assert len(stored(conn)) == 1
    assert statuses(await door.enqueue_many(keyed, by_key("abcd"), on_conflict="raise")) == "cccc"


# --- what one statement could not tell


@pytest.mark.usefixtures("small_chunks")
async def test_o16_rows_that_lost_their_race_are_found_or_told_apart(
    door: Door, conn: Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every statement answers unknown, as when the holder of each key just started."""
    first = await door.enqueue_many(waiting, by_key("ab"))
    for _ in first:
        claim_one(conn, queues={"waiting": 1})
    sent: list[int] = []

    def unknown(*_: object, **named: Any) -> list[Any]:
        sent.append(len(named["ids"]))
        return []

    async def unknown_async(*_: object, **named: Any) -> list[Any]:
        return unknown(**named)

    monkeypatch.setattr("jobs_sql.enqueue.enqueue_jobs", unknown)
    monkeypatch.setattr("jobs_sql.enqueue.enqueue_jobs_async", unknown_async)
    answers = await door.enqueue_many(waiting, by_key("ab"))
    assert answers == [(answer.id, answer.run_id, "existing") for answer in first]
    assert sent == [2, 2]  # at most two insert tries
    with pytest.raises(EnqueueContended):
        await door.enqueue_many(waiting, by_key("abc"))


@pytest.mark.usefixtures("small_chunks")
async def test_contention_in_a_later_chunk_leaves_nothing(
    door: Door, conn: Connection[Any], session: Callable[..., Session]
) -> None:
    holder = session("holder", autocommit=False)
    holder.run(keyed.enqueue, Payload(key="z", tenant="z"))
    await door.execute("set lock_timeout to '20ms'")
    items = [Payload(key=str(n), tenant="a") for n in range(7)] + [Payload(key="z", tenant="z")]
    with pytest.raises(EnqueueContended):
        await door.enqueue_many(keyed, items)
    assert stored(conn) == []


def test_o18_bulk_enqueues_of_the_same_keys_in_any_order_never_deadlock(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Several chunks each, and tenants that a linguistic collation sorts unlike their bytes."""
    monkeypatch.setattr("jobs.enqueue.CHUNK_ROWS", 7)
    payloads = [Payload(key=str(n), tenant=t) for n in range(20) for t in ("a", "B", "_c", "é")]
    start = threading.Barrier(3)

    def enqueue(seed: int) -> int:
        rng = random.Random(seed)
        created = 0
        with psycopg.connect(database) as own:
            start.wait()
            for _ in range(15):
                answers = keyed.enqueue_many(own, rng.sample(payloads, 60))
                created += statuses(answers).count("c")
                own.rollback()  # so that who waits for a key finds it free
        return created

    with ThreadPoolExecutor(3) as threads:
        counts = [f.result() for f in [threads.submit(enqueue, seed) for seed in range(3)]]
    assert counts == [15 * 60] * 3


@pytest.mark.usefixtures("small_chunks")
async def test_o18_a_deadlock_in_a_transaction_of_our_own_is_tried_again(
    door: Door, conn: Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    real, real_async = sql.enqueue_jobs, sql.enqueue_jobs_async
    broken: list[int] = []

    def breaks() -> bool:
        broken.append(1)
        return len(broken) % 3 == 2  # the second chunk, once in three statements

    def failing(conn: Any, **named: Any) -> Any:
        if breaks():
            raise psycopg.errors.DeadlockDetected("as if")
        return real(conn, **named)

    async def failing_async(conn: Any, **named: Any) -> Any:
        if breaks():
            raise psycopg.errors.DeadlockDetected("as if")
        return await real_async(conn, **named)

    monkeypatch.setattr(sql, "enqueue_jobs", failing)
    monkeypatch.setattr(sql, "enqueue_jobs_async", failing_async)
    assert statuses(await door.enqueue_many(keyed, by_key("abcd"))) == "cccc"
    assert len(broken) == 4
    assert len(stored(conn)) == 4

    await door.set_autocommit(False)
    broken.clear()
    with pytest.raises(EnqueueContended):
        await door.enqueue_many(keyed, by_key("efgh"))
    assert len(broken) == 2


def test_chunks_are_bounded_in_rows_and_in_characters(
    conn: Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    real = bulk.insert_jobs

    def noting(conn: Connection[Any], **named: Any) -> Any:
        sizes.append(len(named["ids"]))
        return real(conn, **named)

    monkeypatch.setattr(bulk, "insert_jobs", noting)
    monkeypatch.setattr("jobs.enqueue.CHUNK_CHARACTERS", 10_000)
    plain.enqueue_many(conn, [Payload(note="x" * 3_000)] * 4 + [Payload(note="x" * 20_000)] * 2)
    assert sizes == [3, 1, 1, 1]
    sizes.clear()
    monkeypatch.undo()
    monkeypatch.setattr(bulk, "insert_jobs", noting)
    assert len(plain.enqueue_many(conn, [Payload()] * 5_001)) == 5_001
    assert sizes == [5_000, 1]


# --- COPY


async def test_copy_writes_what_an_enqueue_would(door: Door, conn: Connection[Any]) -> None:
    @jobs.job(
        queue="copied",
        tenant=lambda input: input.tenant,
        idempotency_key=jobs.NO_KEY,
        retry=jobs.Retry(attempts=4, dead_letter=False),
        priority=1,
    )
    def copied(input: Payload) -> None: ...

    text = "tab\t line\n back\\slash \\N \\. \r é \U0001f600 \x01"
    inputs = [Payload(note=text, tenant="a\tb"), {"note": "b"}]
    assert await door.copy_many(copied, iter(inputs), enqueued_by="me\n", traceparent=TRACE) == 2
    first, second = stored(conn)
    assert first[2:6] == ("copied", "copied", "a\tb", 1)
    assert first[7:13] == (4, False, "live", None, TRACE, "me\n")
    assert first.input == Payload(note=text, tenant="a\tb").model_dump_json()
    assert copied.parse(second.input).note == "b"
    assert await door.copy_many(copied, [Payload()], priority=3) == 1
    assert stored(conn)[2].priority == 3
    assert await door.copy_many(copied, []) == 0


async def test_copy_reads_its_source_as_it_goes(door: Door, conn: Connection[Any]) -> None:
    behind = 0

    def inputs() -> Iterator[Payload]:
        nonlocal behind
        for _ in range(3_000):
            behind += 1
            yield Payload(note="x" * 100)

    assert await door.copy_many(plain, inputs()) == 3_000
    assert behind == 3_000
    assert len(stored(conn)) == 3_000


async def test_copy_refuses_jobs_with_keys(door: Door) -> None:
    with pytest.raises(InvalidInput, match="COPY cannot look") as caught:
        await door.copy_many(keyed, [Payload()])
    assert caught.value.field == "idempotency_key"
    assert "enqueue_many" in caught.value.fix
