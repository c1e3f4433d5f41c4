"""How the library is used, for the type checker: this file must pass it, and is never run.

A line that must *not* pass carries an ignore comment for exactly that error; if it passed, the
comment would be unused, which is an error as well.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Coroutine, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, Never, assert_type
from uuid import UUID

from psycopg import AsyncConnection, Connection
from psycopg.rows import DictRow
from psycopg_pool import AsyncConnectionPool, ConnectionPool
from pydantic import BaseModel, RootModel

import jobs
from jobs.control import Schedule, create_schedule, pause_task


class Onboard(BaseModel):
    org_id: UUID
    email: str


class Other(BaseModel):
    number: int


Numbers = RootModel[list[int]]


def org_of(input: Onboard) -> str:
    return str(input.org_id)


# --- declaring


@jobs.job(
    queue="onboarding",
    tenant=lambda i: str(i.org_id),
    idempotency_key=lambda i: f"onboard:{i.org_id}",
    retry=jobs.Retry(attempts=5, backoff="exponential", delay=timedelta(seconds=1)),
    timeout=timedelta(minutes=5),
)
async def onboard(input: Onboard, run: jobs.Run) -> None: ...


@jobs.job(tenant=org_of, idempotency_key=jobs.NO_KEY, idempotency_scope="live", priority=3)
async def greet(input: Onboard) -> None: ...


@jobs.job(tenant=jobs.NO_TENANT, idempotency_key=jobs.NO_KEY)
def add(input: Numbers) -> None: ...


@jobs.job(tenant=jobs.NO_TENANT, idempotency_key=jobs.NO_KEY)
def count(input: Other, run: jobs.Run) -> int:
    return input.number + run.attempt


assert_type(onboard, jobs.JobHandle[Onboard, None])
assert_type(greet, jobs.JobHandle[Onboard, None])
assert_type(add, jobs.JobHandle[RootModel[list[int]], None])
assert_type(count, jobs.JobHandle[Other, int])


@jobs.job(tenant=jobs.NO_TENANT, idempotency_key=jobs.NO_KEY)
async def look_up(input: Other, run: jobs.Run) -> list[Onboard]:
    return [Onboard(org_id=run.id, email=str(input.number))]


@jobs.job(tenant=jobs.NO_TENANT, idempotency_key=jobs.NO_KEY, executor="process")
def factor(input: Other) -> int | None:
    return input.number or None


assert_type(look_up, jobs.JobHandle[Other, list[Onboard]])
assert_type(factor, jobs.JobHandle[Other, int | None])
# What a job returns matters to nobody who does not say so.
some: jobs.JobHandle[Other] = count


# --- errors, hooks, middleware


def told(settled: jobs.Settled[Onboard]) -> None:
    assert_type(settled.input, Onboard)
    assert_type(settled.outcome, Literal["completed", "dead", "failed", "refused"])


async def told_later(settled: jobs.Settled[Other]) -> int:
    return settled.input.number


def read(error: OSError) -> jobs.ErrorClass | None:
    return "terminal" if error.errno else timedelta(minutes=1)


@jobs.job(
    tenant=jobs.NO_TENANT,
    idempotency_key=jobs.NO_KEY,
    errors={KeyError: "terminal", ValueError: timedelta(seconds=1), OSError: read},
    on_settled=told,
)
async def fails(input: Onboard, run: jobs.Run) -> int:
    if input.email:
        raise jobs.RetryAfter(2.5, "soon") from jobs.Terminal()
    assert_type(run.snooze(timedelta(minutes=1)), Never)  # no value has to be returned after it


@contextlib.asynccontextmanager
async def around(_: jobs.Run) -> AsyncIterator[None]:
    yield


jobs.job(tenant=jobs.NO_TENANT, idempotency_key=jobs.NO_KEY, on_settled=told_later)
jobs.Registry.of(
    errors={KeyError: "retry"}, middleware=[around, lambda _: contextlib.nullcontext()]
)
jobs.Registry.of(middleware=[told])  # type: ignore[list-item]
jobs.job(tenant=jobs.NO_TENANT, idempotency_key=jobs.NO_KEY, errors={KeyError: 5})  # type: ignore[dict-item]
jobs.job(tenant=jobs.NO_TENANT, idempotency_key=jobs.NO_KEY, on_settled=5)  # type: ignore[arg-type]

jobs.job(tenant=jobs.NO_TENANT, idempotency_key=jobs.NO_KEY, executor="fork")  # type: ignore[arg-type]

jobs.job(idempotency_key=jobs.NO_KEY)  # type: ignore[call-arg]
jobs.job(tenant=jobs.NO_TENANT)  # type: ignore[call-arg]
jobs.job(tenant="acme", idempotency_key=jobs.NO_KEY)  # type: ignore[arg-type]
jobs.job(tenant=jobs.NO_KEY, idempotency_key=jobs.NO_KEY)  # type: ignore[arg-type]
jobs.job(tenant=jobs.NO_TENANT, idempotency_key=jobs.NO_KEY, timeout=5)  # type: ignore[arg-type]
jobs.Retry(backoff="quadratic")  # type: ignore[arg-type]
jobs.Retry(5)  # type: ignore[call-arg]
jobs.Retry(backoff=lambda attempt: timedelta(seconds=attempt))
jobs.Retry(backoff=lambda attempt: attempt * 1.5)


@jobs.job(tenant=jobs.NO_TENANT, idempotency_key=jobs.NO_KEY)  # type: ignore[arg-type]
def without_input() -> None: ...


@jobs.job(tenant=jobs.NO_TENANT, idempotency_key=jobs.NO_KEY)  # type: ignore[type-var]
async def without_model(input: dict[str, int]) -> None: ...


# --- enqueueing on a synchronous connection


def sync_use(conn: Connection[Any], rows: Connection[DictRow], pool: ConnectionPool) -> None:
    order = Onboard(org_id=UUID(int=1), email="a@example.org")
    answer = onboard.enqueue(conn, order)
    assert_type(answer, jobs.Enqueued)
    assert_type(answer.id, UUID)
    assert_type(answer.created, bool)
    onboard.enqueue(rows, order, delay=timedelta(minutes=1), priority=0, enqueued_by="me")
    onboard.enqueue(conn, order, run_at=datetime.now(UTC), id=UUID(int=2), on_conflict="raise")
    onboard.enqueue(conn, {"org_id": UUID(int=1), "email": "b@example.org"})
    add.enqueue(conn, Numbers([1, 2]))
    assert_type(onboard.enqueue_many(conn, [order, order]), list[jobs.Enqueued])
    onboard.enqueue_many(conn, (jobs.Item(order, priority=n) for n in range(3)))
    mixed: list[Onboard | jobs.Item[Onboard]] = [order, jobs.Item(order)]
    onboard.enqueue_many(conn, mixed)
    assert_type(greet.copy_many(conn, iter([order])), int)

    onboard.enqueue(conn, Other(number=1))  # type: ignore[call-overload]
    onboard.enqueue(conn, "a@example.org")  # type: ignore[call-overload]
    onboard.enqueue(pool, order)  # type: ignore[call-overload]
    onboard.enqueue(conn, order, delay=5)  # type: ignore[call-overload]
    onboard.enqueue(conn, order, run_at="2026-01-01")  # type: ignore[call-overload]
    onboard.enqueue(conn, order, on_conflict="ignore")  # type: ignore[call-overload]
    onboard.enqueue(conn, order, timedelta(1))  # type: ignore[call-overload]
    onboard.enqueue_many(conn, [Other(number=1)])  # type: ignore[list-item]
    onboard.enqueue_many(conn, [jobs.Item(Other(number=1))])  # type: ignore[arg-type]
    onboard.copy_many(conn, [Other(number=1)])  # type: ignore[list-item]
    onboard(order)  # type: ignore[operator]
    onboard.queue = "other"  # type: ignore[misc]


# --- and on an asynchronous one


async def async_use(conn: AsyncConnection[Any], pool: AsyncConnectionPool) -> None:
    order = Onboard(org_id=UUID(int=1), email="a@example.org")
    pending: Coroutine[Any, Any, jobs.Enqueued] = onboard.enqueue(conn, order)
    assert_type(await pending, jobs.Enqueued)
    assert_type(await onboard.enqueue(conn, order), jobs.Enqueued)
    assert_type(await onboard.enqueue_many(conn, [order]), list[jobs.Enqueued])
    assert_type(await greet.copy_many(conn, [order]), int)
    async with pool.connection() as own, own.transaction():
        await onboard.enqueue(own, order)

    onboard.enqueue(conn, order)  # type: ignore[unused-coroutine]
    await onboard.enqueue(conn, Other(number=1))  # type: ignore[call-overload]
    await onboard.enqueue(pool, order)  # type: ignore[call-overload]


def either(conn: Connection[Any] | AsyncConnection[Any], order: Onboard) -> None:
    assert_type(onboard.enqueue(conn, order), jobs.Enqueued | Coroutine[Any, Any, jobs.Enqueued])


# --- waiting for results


def sync_results(conn: Connection[Any], id: UUID) -> None:
    assert_type(count.result(conn, id), int)
    assert_type(factor.result(conn, id, timeout=timedelta(seconds=5)), int | None)
    assert_type(look_up.result(conn, id, timeout=None), list[Onboard])
    assert_type(onboard.result(conn, id), None)
    count.result(conn, id, timeout=5)  # type: ignore[call-overload]
    count.result(conn, "an id")  # type: ignore[call-overload]


async def async_results(conn: AsyncConnection[Any], id: UUID) -> None:
    assert_type(await count.result(conn, id), int)
    assert_type(await look_up.result(conn, id), list[Onboard])
    count.result(conn, id)  # type: ignore[unused-coroutine]


# --- reading


def reading(registry: jobs.Registry) -> None:
    assert_type(onboard.parse("{}"), Onboard)
    assert_type(onboard.derive_tenant(onboard.parse("{}")), str | None)
    assert_type(registry.get("onboard"), jobs.JobHandle[Any] | None)
    assert_type(onboard.describe(), dict[str, Any])
    assert_type(onboard.retry.delay_for(1), timedelta)
    assert_type(jobs.uuid7(), UUID)
    for handle in registry:
        assert_type(handle, jobs.JobHandle[Any])
    print(jobs.no_such_name)  # type: ignore[attr-defined]  # noqa: T201


def failing(conn: Connection[Any], order: Onboard) -> UUID | None:
    try:
        onboard.enqueue(conn, order, on_conflict="raise")
    except jobs.DuplicateJob as error:
        assert_type(error.id, UUID)
        return error.id
    except jobs.InvalidInput as error:
        assert_type(error.field, str)
        assert_type(error.index, int | None)
        raise
    return None


# --- schedules


@jobs.task(cron="0 3 * * *", tz="Europe/Zurich", catch_up="run_once")
def nightly(at: datetime) -> Iterator[jobs.Entry]:
    yield count, Other(number=at.hour)
    yield onboard, jobs.Item({"org_id": "0"}, priority=1)


@jobs.task(every=timedelta(minutes=10))
def often() -> list[tuple[jobs.JobHandle[Other, int], Other]]:
    return [(count, Other(number=1))]


assert_type(nightly, jobs.TaskHandle)
assert_type(nightly.next(datetime.now(UTC), 5), list[datetime])
jobs.task(cron="0 3 * * *", tz="UTC", catch_up="always")  # type: ignore[arg-type]
jobs.task(cron="0 3 * * *", tz="UTC")(count)  # type: ignore[call-overload]


def fire_by_hand(conn: Connection[DictRow]) -> None:
    assert_type(often.fire(conn), list[jobs.Enqueued])
    assert_type(create_schedule(conn, "x", count, Other(number=1), every=timedelta(1)), Schedule)
    create_schedule(conn, "x", count, Onboard(org_id=UUID(int=0), email=""))  # type: ignore[misc]


async def fire_by_hand_async(conn: AsyncConnection[Any]) -> None:
    assert_type(await nightly.fire(conn), list[jobs.Enqueued])
    assert_type(await pause_task(conn, "x"), bool)
