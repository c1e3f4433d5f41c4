"""Enqueueing one job: what is stored, what is refused, who is answered with what."""

from __future__ import annotations

import asyncio
import os
import time
from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from uuid import UUID, uuid4
from zoneinfo import ZoneInfo

import psycopg
import pytest
from psycopg import Connection
from psycopg.rows import dict_row

import jobs
from jobs.errors import (
    ConnectionUnsupported,
    DuplicateJob,
    IdempotencyRequired,
    InvalidInput,
    TenantRequired,
)
from tests.runtime.doors import Door, Payload, keyed, plain, settled, stored, waiting
from tests.sql.calls import Settle, claim_one, settle

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


async def test_every_column_is_written_as_declared(door: Door, conn: Connection[Any]) -> None:
    answer = await door.enqueue(
        keyed, Payload(key="a", tenant="acme"), enqueued_by="user:7", traceparent=TRACE
    )
    (row,) = stored(conn)
    assert answer == jobs.Enqueued(row.id, row.run_id, "created")
    assert answer.created
    assert row.id.version == row.run_id.version == 7
    assert row[2:6] == ("keyed", "keyed", "acme", 2)
    assert row[7:] == (
        7,
        False,
        "live",
        "a",
        TRACE,
        "user:7",
        '{"key":"a","tenant":"acme","note":"","number":0.0}',
    )
    now = conn.execute("select clock_timestamp()").fetchone()
    assert now is not None
    assert row.available_at <= now[0]


async def test_defaults_for_a_plain_job(door: Door, conn: Connection[Any]) -> None:
    await door.enqueue(plain, {"note": "from a mapping"})
    (row,) = stored(conn)
    assert row[2:6] == ("plain", "plain", "", 0)
    assert row[7:13] == (3, True, "live", None, None, None)
    assert plain.parse(row.input) == Payload(note="from a mapping")


async def test_the_payload_is_kept_to_the_byte(door: Door, conn: Connection[Any]) -> None:
    text = "\U0001f600 \x01 \uffff \\u0000 é \t\n'\""
    await door.enqueue(plain, Payload(note=text, number=-0.0))
    (row,) = stored(conn)
    assert row.input == Payload(note=text, number=-0.0).model_dump_json()
    assert plain.parse(row.input).note == text


# --- the same key, the same id


async def test_a_key_that_is_taken_answers_with_its_job(door: Door, conn: Connection[Any]) -> None:
    first = await door.enqueue(keyed, Payload(key="a"))
    again = await door.enqueue(keyed, Payload(key="a", note="other payload"))
    assert again == jobs.Enqueued(first.id, first.run_id, "existing")
    assert not again.created
    assert (await door.enqueue(keyed, Payload(key="b"))).created
    assert (await door.enqueue(keyed, Payload(key="a", tenant="other"))).created
    assert len(stored(conn)) == 3


async def test_raise_on_conflict_carries_the_job_in_the_way(
    door: Door, conn: Connection[Any]
) -> None:
    first = await door.enqueue(keyed, Payload(), on_conflict="raise")
    with pytest.raises(DuplicateJob) as caught:
        await door.enqueue(keyed, Payload(), on_conflict="raise")
    assert (caught.value.id, caught.value.run_id) == (first.id, first.run_id)
    assert caught.value.code == "JOB_DUPLICATE"
    assert len(stored(conn)) == 1


async def test_an_id_of_the_callers_own_is_taken_once_live_or_finished(
    door: Door, conn: Connection[Any]
) -> None:
    id = uuid4()
    first = await door.enqueue(plain, Payload(), id=id)
    assert first.id == id
    assert first.created
    assert await door.enqueue(plain, Payload(), id=id) == (id, first.run_id, "existing")
    held = claim_one(conn, queues={"plain": 1})
    settle(conn, (held.id, held.claims))
    assert stored(conn) == []
    assert await door.enqueue(plain, Payload(), id=id) == (id, first.run_id, "existing")
    assert stored(conn) == []


async def test_o13_five_enqueues_behind_a_running_job_make_one_further_job(
    door: Door, conn: Connection[Any]
) -> None:
    first = await door.enqueue(waiting, Payload())
    held = claim_one(conn, queues={"waiting": 1})
    answers = [await door.enqueue(waiting, Payload()) for _ in range(5)]
    assert [answer.status for answer in answers] == ["created"] + ["existing"] * 4
    assert {answer.id for answer in answers} == {answers[0].id} != {first.id}
    assert len(stored(conn)) == 2
    assert settle(conn, (held.id, held.claims)) == [("landed", "completed")]
    assert claim_one(conn, queues={"waiting": 1}).id == answers[0].id


async def test_o13_the_default_scope_merges_into_the_running_job_and_says_so(
    door: Door, conn: Connection[Any]
) -> None:
    first = await door.enqueue(keyed, Payload())
    claim_one(conn, queues={"keyed": 1})
    assert await door.enqueue(keyed, Payload()) == (first.id, first.run_id, "existing")
    assert len(stored(conn)) == 1


async def test_o14_a_retry_that_meets_a_waiting_sibling_leaves_the_sibling(
    door: Door, conn: Connection[Any]
) -> None:
    await door.enqueue(waiting, Payload())
    held = claim_one(conn, queues={"waiting": 1})
    second = await door.enqueue(waiting, Payload())
    failed = Settle((held.id, held.claims), "retry", timedelta(), "ValueError", "no", "trace")
    ((verdict, _),) = settle(conn, failed)
    assert verdict == "landed"
    assert (await door.enqueue(waiting, Payload())).id == second.id
    assert [row.id for row in stored(conn)] == [second.id]


async def test_o15_a_conflict_in_one_queue_does_not_hold_up_another(
    door: Door, conn: Connection[Any]
) -> None:
    await door.enqueue(waiting, Payload())
    claim_one(conn, queues={"waiting": 1})
    await door.enqueue(waiting, Payload())
    other = await door.enqueue(plain, Payload())
    assert claim_one(conn, queues={"plain": 5}).id == other.id


async def test_o16_the_job_in_the_way_that_just_started_is_the_answer(
    door: Door, conn: Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It lets go of its key between the insert and the look-up, twice."""
    first = await door.enqueue(waiting, Payload())
    held = claim_one(conn, queues={"waiting": 1})

    async def nothing(*_: object, **__: object) -> None:
        return None

    # As if each insert had met the job a moment before it started.
    monkeypatch.setattr("jobs_sql.enqueue.enqueue_job", lambda *_, **__: None)
    monkeypatch.setattr("jobs_sql.enqueue.enqueue_job_async", nothing)
    assert await door.enqueue(waiting, Payload()) == (first.id, first.run_id, "existing")
    settle(conn, (held.id, held.claims))
    assert await door.enqueue(waiting, Payload()) == (first.id, first.run_id, "existing")
    with pytest.raises(jobs.EnqueueContended) as caught:
        await door.enqueue(waiting, Payload(key="nobody had this one"))
    assert caught.value.__cause__ is None


# --- refused before anything is sent


@pytest.mark.parametrize("bad", ["a\x00b", "high \ud800", "low \udfff"])
async def test_o22_bad_text_is_refused_wherever_it_is_given(refusing_door: Door, bad: str) -> None:
    cases: list[tuple[str, Any, dict[str, Any]]] = [
        ("input.note", Payload(note=bad), {}),
        ("input.key", {"key": bad}, {}),
        ("enqueued_by", Payload(), {"enqueued_by": bad}),
        ("traceparent", Payload(), {"traceparent": bad}),
    ]
    for field, input, options in cases:
        with pytest.raises(InvalidInput) as caught:
            await refusing_door.enqueue(keyed, input, **options)
        assert caught.value.field == field


@pytest.mark.parametrize(
    ("field", "options"),
    [
        ("run_at", {"run_at": datetime(2026, 3, 8, 2, 30)}),
        ("run_at", {"run_at": "2026-03-08T02:30:00"}),
        ("run_at", {"run_at": 1_772_000_000}),
        ("run_at", {"run_at": datetime(1, 1, 1, tzinfo=UTC)}),
        ("run_at", {"run_at": datetime.max.replace(tzinfo=UTC)}),
        ("run_at", {"run_at": datetime(2030, 1, 1, tzinfo=UTC), "delay": timedelta(1)}),
        ("delay", {"delay": 30}),
        ("delay", {"delay": float("inf")}),
        ("delay", {"delay": timedelta(seconds=-1)}),
        ("delay", {"delay": timedelta.max}),
        ("delay", {"delay": timedelta(days=3_654)}),
        ("priority", {"priority": 4}),
        ("priority", {"priority": -1}),
        ("priority", {"priority": True}),
        ("priority", {"priority": 1.0}),
        ("id", {"id": "0190163d-8694-739b-aea5-966c26f8ad91"}),
        ("id", {"id": 5}),
        ("enqueued_by", {"enqueued_by": ""}),
        ("enqueued_by", {"enqueued_by": "é" * 513}),
        ("enqueued_by", {"enqueued_by": 7}),
        ("traceparent", {"traceparent": "00-abc"}),
        ("traceparent", {"traceparent": TRACE.upper()}),
        ("traceparent", {"traceparent": TRACE + "-" + "x" * 500}),
        ("traceparent", {"traceparent": TRACE + "\n"}),
        ("on_conflict", {"on_conflict": "ignore"}),
    ],
)
async def test_o24_a_bad_option_is_refused_by_name(
    refusing_door: Door, field: str, options: dict[str, Any]
) -> None:
    with pytest.raises(InvalidInput) as caught:
        await refusing_door.enqueue(plain, Payload(), **options)
    assert caught.value.field == field
    assert caught.value.code == "JOB_INPUT_INVALID"
    assert caught.value.index is None


async def test_empty_tenants_and_keys_are_refused(refusing_door: Door) -> None:
    with pytest.raises(TenantRequired):
        await refusing_door.enqueue(keyed, Payload(tenant=""))
    with pytest.raises(IdempotencyRequired):
        await refusing_door.enqueue(keyed, Payload(key=""))


async def test_o17_keys_and_tenants_at_their_limit_are_stored(
    door: Door, conn: Connection[Any]
) -> None:
    rest = "".join(chr(0x4E00 + i * 7919 % 20_000) for i in range(5_461))
    key, tenant = rest + "x", "\U0001f600" * 63 + "abc"
    assert (len(key.encode()), len(tenant.encode())) == (16_384, 255)
    first = await door.enqueue(keyed, Payload(key=key, tenant=tenant))
    assert (await door.enqueue(keyed, Payload(key=key, tenant=tenant))).id == first.id
    assert [(row.idempotency_key, row.tenant) for row in stored(conn)] == [(key, tenant)]
    for field, payload in (
        ("idempotency_key", Payload(key=key + "x")),
        ("tenant", Payload(tenant=tenant + "x")),
    ):
        with pytest.raises(InvalidInput) as caught:
            await door.enqueue(keyed, payload)
        assert caught.value.field == field
        assert "limit is" in caught.value.reason


@pytest.mark.parametrize("thing", [None, "postgresql://", object(), 5])
def test_anything_but_a_psycopg_connection_is_refused(thing: Any) -> None:
    calls: list[Any] = [plain.enqueue, plain.enqueue_many, plain.copy_many]
    for call in calls:
        with pytest.raises(ConnectionUnsupported, match=type(thing).__name__):
            call(thing, [])


# --- times


async def test_o24_aware_times_are_one_instant_in_every_zone(
    door: Door, conn: Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", "America/Los_Angeles")
    time.tzset()
    try:
        await door.execute("set timezone to 'Asia/Kolkata'")
        instant = datetime(2026, 11, 1, 5, 30, tzinfo=UTC)
        new_york = ZoneInfo("America/New_York")
        spellings = [
            instant,
            instant.astimezone(),
            instant.astimezone(timezone(timedelta(hours=5, minutes=45))),
            instant.astimezone(timezone(timedelta(seconds=-18_000, microseconds=7))),
            datetime(2026, 11, 1, 1, 30, tzinfo=new_york, fold=0),
        ]
        for run_at in spellings:
            await door.enqueue(plain, Payload(), run_at=run_at)
        await door.enqueue(
            plain, Payload(), run_at=datetime(2026, 11, 1, 1, 30, tzinfo=new_york, fold=1)
        )
    finally:
        monkeypatch.undo()
        time.tzset()
    due = [row.available_at for row in stored(conn)]
    assert due == [instant] * len(spellings) + [instant + timedelta(hours=1)]


async def test_a_delay_counts_from_the_databases_clock(door: Door, conn: Connection[Any]) -> None:
    await door.execute("set intervalstyle to 'sql_standard'")
    delay = timedelta(days=40, hours=1, microseconds=3)
    before = conn.execute("select clock_timestamp()").fetchone()
    await door.enqueue(plain, Payload(), delay=delay)
    after = conn.execute("select clock_timestamp()").fetchone()
    (row,) = stored(conn)
    assert before is not None
    assert after is not None
    assert before[0] + delay <= row.available_at <= after[0] + delay


# --- O-25: names of any length the limits allow


@pytest.mark.parametrize(
    "queue",
    ["q" * 43, "q" * 44, "q" * 63, "q" * 64, "q" * 200, "é" * 32, "\U0001f600" * 20],
    ids=["43", "44", "63", "64", "200", "32-two-byte", "20-emoji"],
)
async def test_o25_long_queue_names_do_not_break_the_enqueue(
    door: Door, conn: Connection[Any], queue: str
) -> None:
    @jobs.job(queue=queue, tenant=jobs.NO_TENANT, idempotency_key=jobs.NO_KEY)
    def long(input: Payload) -> None: ...

    answer = await door.enqueue(long, Payload())
    await door.enqueue_many(long, [Payload()] * 3)
    await door.copy_many(long, [Payload()] * 3)
    assert {row.queue for row in stored(conn)} == {queue}
    assert claim_one(conn, queues={queue: 1}).id == answer.id


async def test_o25_many_queues_in_one_transaction(door: Door, conn: Connection[Any]) -> None:
    handles = [
        jobs.job(queue=f"queue-{n:03}", tenant=jobs.NO_TENANT, idempotency_key=jobs.NO_KEY)(
            plain.fn
        )
        for n in range(50)
    ]
    await door.set_autocommit(False)
    for handle in handles:
        await door.enqueue_many(handle, [Payload()] * 10)
    await door.commit()
    assert len(stored(conn)) == 500


# --- flavours


async def test_an_asynchronous_connection_gives_a_coroutine_that_checks_when_awaited(
    aconn: psycopg.AsyncConnection[Any], conn: Connection[Any]
) -> None:
    pending = plain.enqueue(aconn, Payload(number=float("nan")))
    with pytest.raises(InvalidInput):
        await pending
    task = asyncio.create_task(plain.enqueue(aconn, Payload()))
    assert (await task).created
    assert len(stored(conn)) == 1


async def test_the_callers_row_and_cursor_factories_do_not_matter(
    door: Door, conn: Connection[Any]
) -> None:
    door.conn.row_factory = dict_row
    door.conn.cursor_factory = psycopg.AsyncClientCursor if door.is_async else psycopg.ClientCursor
    first = await door.enqueue(keyed, Payload())
    assert (await door.enqueue(keyed, Payload())).id == first.id
    assert isinstance(first.id, UUID)
    many = await door.enqueue_many(keyed, [Payload(key="a"), Payload(key="a"), Payload()])
    assert [answer.status for answer in many] == ["created", "existing", "existing"]
    assert await door.copy_many(plain, [Payload()] * 2) == 2
    assert len(stored(conn)) == 4
    (row,) = await settled((await settled(door.conn.execute("select 1 as one"))).fetchall())
    assert row == {"one": 1}


def test_one_plan_is_prepared_whatever_the_values(conn: Connection[Any]) -> None:
    conn.prepare_threshold = 1
    many: list[dict[str, Any]] = [
        {},
        {"delay": timedelta(seconds=1)},
        {"run_at": datetime(2030, 1, 1, tzinfo=UTC)},
        {"priority": 3},
        {"enqueued_by": "x" * 1_000, "traceparent": TRACE},
    ]
    for options in many:
        for _ in range(2):
            plain.enqueue(conn, Payload(note=os.urandom(9).hex()), **options)
    row = conn.execute(
        "select count(*) from pg_prepared_statements where statement like '%enqueue_job %'"
    ).fetchone()
    assert row == (1,)


# --- encodings


async def test_a_session_whose_encoding_lacks_a_character_is_refused_and_goes_on(
    door: Door, conn: Connection[Any]
) -> None:
    await door.execute("set client_encoding to 'LATIN1'")
    for attempt in (
        lambda: door.enqueue(plain, Payload(note="日")),
        lambda: door.enqueue(keyed, Payload(key="é日")),
        lambda: door.enqueue_many(plain, [Payload(), Payload(note="日")]),
        lambda: door.copy_many(plain, [Payload(), Payload(note="日")]),
    ):
        with pytest.raises(ConnectionUnsupported, match="client_encoding of the connection"):
            await attempt()
    assert stored(conn) == []
    assert (await door.enqueue(keyed, Payload(key="é"))).created
    assert [row.idempotency_key for row in stored(conn)] == ["é"]


async def test_a_session_without_an_encoding_is_answered_like_any_other(door: Door) -> None:
    await door.execute("set client_encoding to 'SQL_ASCII'")
    first = await door.enqueue(keyed, Payload(key="日"))
    assert [
        one.status for one in await door.enqueue_many(keyed, [{"key": "日"}, {"key": "x"}])
    ] == [
        "existing",
        "created",
    ]
    assert (await door.enqueue(plain, Payload(), id=first.id)).id == first.id
