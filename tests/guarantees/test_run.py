"""What a job function is given, and what it never sees."""

from __future__ import annotations

import sys
from datetime import timedelta
from typing import Any

import pytest
from psycopg import Connection
from pydantic import BaseModel

import jobs
from jobs.inspect import get_job, list_attempts

Conn = Connection[Any]

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
AT_ONCE = jobs.Retry(attempts=3, delay=timedelta(), max_delay=timedelta())


class Order(BaseModel):
    number: int


@jobs.job(tenant=lambda _: "acme", idempotency_key=jobs.NO_KEY, retry=AT_ONCE)
async def fail(input: Order, run: jobs.Run) -> None:
    seen.append((input, run))
    raise RuntimeError("on purpose")


@jobs.job(tenant=jobs.NO_TENANT, idempotency_key=jobs.NO_KEY, retry=AT_ONCE)
def in_thread(input: Order, run: jobs.Run) -> None:
    seen.append((input, run))


seen: list[tuple[Order, jobs.Run]] = []
registry = jobs.Registry.of(sys.modules[__name__])


@pytest.fixture(autouse=True)
def _nothing_seen() -> None:
    seen.clear()


async def run_all(database: str) -> jobs.WorkerStats:
    return await jobs.Worker(database, registry).run_until_idle()


async def test_the_body_is_told_who_asked_for_what_and_which_attempt_it_is(
    database: str, conn: Conn
) -> None:
    made = fail.enqueue(conn, Order(number=7), enqueued_by="user:7", traceparent=TRACE)
    stats = await run_all(database)
    assert (stats.claimed, stats.retried, stats.ended) == (3, 2, 1)
    assert [input for input, _ in seen] == [Order(number=7)] * 3
    runs = [run for _, run in seen]
    assert [(run.attempt, run.claims, run.final) for run in runs] == [
        (1, 1, False),
        (2, 2, False),
        (3, 3, True),
    ]
    for run in runs:
        assert (run.id, run.run_id, run.name) == (made.id, made.run_id, "fail")
        assert (run.tenant, run.enqueued_by, run.traceparent) == ("acme", "user:7", TRACE)
        assert (run.queue, run.max_attempts, run.cancelled) == ("default", 3, False)
    row = get_job(conn, made.id)
    assert (row.state, row.stop_reason, row.run_id) == ("dead", "exhausted", made.run_id)
    assert (row.enqueued_by, row.traceparent) == ("user:7", TRACE)
    assert len(list_attempts(conn, made.id)) == 3


async def test_no_tenant_is_none_and_a_thread_is_given_the_same(database: str, conn: Conn) -> None:
    in_thread.enqueue(conn, Order(number=1))
    await run_all(database)
    ((input, run),) = seen
    assert (input, run.tenant, run.attempt, run.final) == (Order(number=1), None, 1, False)


@pytest.mark.parametrize(
    ("stored", "path"), [('{"nummer": 7}', "input.number"), ('{"number": "x"}', "input.number")]
)
@pytest.mark.parametrize("handle", [fail, in_thread], ids=lambda handle: handle.name)
async def test_a_stored_payload_that_no_longer_fits_never_reaches_the_body(
    database: str, conn: Conn, handle: jobs.JobHandle[Order], stored: str, path: str
) -> None:
    bad = handle.enqueue(conn, Order(number=1))
    conn.execute("update jobs.job set input = %s where id = %s", [stored, bad.id])
    good = in_thread.enqueue(conn, Order(number=2))
    await run_all(database)
    assert [run.id for _, run in seen] == [good.id]
    row = get_job(conn, bad.id)
    assert (row.state, row.attempt) == ("dead", 3)
    assert row.last_error is not None
    assert row.last_error.startswith("PayloadUnreadable: ")
    assert path in row.last_error
    assert get_job(conn, good.id).state == "completed"


@pytest.mark.parametrize("queues", [[], {}, (), {"a": 0}, {"a": 0, "b": 0}])
def test_no_queue_to_claim_from_is_refused(database: str, queues: Any) -> None:
    with pytest.raises(jobs.ClaimQueuesEmpty) as caught:
        jobs.Worker(database, registry, queues=queues)
    assert caught.value.code == "JOB_CLAIM_QUEUES_EMPTY"


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("lease", timedelta()),
        ("lease", timedelta(seconds=-30)),
        ("lease", timedelta.max),
        ("lease", 30),
        ("lease", float("inf")),
        ("poll", timedelta()),
        ("poll", 0.25),
        ("poll", float("nan")),
        ("idle_poll", timedelta(milliseconds=1)),
        ("idle_poll", timedelta.max),
        ("idle_poll", 2),
        ("listen", True),
        ("listen", 0),
        ("drain", timedelta(seconds=-1)),
        ("drain", "30"),
        ("queues", "default"),
        ("queues", {"a": -1}),
        ("queues", {"a": 1.0}),
        ("queues", {"a": True}),
        ("queues", {"a": float("inf")}),
        ("queues", {"": 1}),
        ("queues", [7]),
        ("name", ""),
        ("name", "a\x00"),
        ("name", "é" * 128),
        ("registry", None),
    ],
)
def test_a_setting_that_a_worker_cannot_keep_is_refused_by_name(
    database: str, setting: str, value: Any
) -> None:
    settings: dict[str, Any] = {"registry": registry} | {setting: value}
    with pytest.raises(jobs.ConfigError) as caught:
        jobs.Worker(database, **settings)
    words = {"queues": "queue", "registry": "registry"}
    assert words.get(setting, setting) in caught.value.cause
