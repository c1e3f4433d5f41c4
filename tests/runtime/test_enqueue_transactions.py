"""Whose transaction an enqueue is part of, in every state that a caller's connection can have."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from psycopg import Connection
from psycopg.pq import TransactionStatus

import jobs
from jobs.errors import DuplicateJob, EnqueueContended, InvalidInput, IsolationUnsupported
from tests.runtime.doors import Door, Payload, keyed, plain, stored
from tests.sql.calls import claim_one, settle
from tests.support.stepped import Session

Write = Callable[[Door], Awaitable[Any]]
MakeSession = Callable[..., Session]

PAIR = [Payload(key="a"), Payload(key="b")]

# Every way to enqueue, with the number of jobs it makes.
WRITES: list[Any] = [
    pytest.param(lambda door: door.enqueue(keyed, Payload()), 1, id="one"),
    pytest.param(lambda door: door.enqueue(plain, Payload(), id=uuid4()), 1, id="one-by-id"),
    pytest.param(lambda door: door.enqueue_many(plain, [Payload()] * 7), 7, id="many-in-chunks"),
    pytest.param(lambda door: door.enqueue_many(keyed, PAIR), 2, id="many-keyed"),
    pytest.param(
        lambda door: door.enqueue_many(plain, [jobs.Item(Payload(), id=uuid4())] * 2),
        1,
        id="many-by-id",
    ),
    pytest.param(
        lambda door: door.enqueue_many(keyed, PAIR, on_conflict="raise"), 2, id="many-or-raise"
    ),
    pytest.param(lambda door: door.copy_many(plain, [Payload()] * 3), 3, id="copy"),
]
IN_PIPELINE = [write for write in WRITES if write.id != "copy"]


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jobs.enqueue.CHUNK_ROWS", 3)


def count(conn: Connection[Any]) -> int:
    return len(stored(conn))


@asynccontextmanager
async def block(door: Door, kind: str) -> AsyncIterator[None]:
    """``async with`` over a context manager of either flavour."""
    manager = getattr(door.conn, kind)()
    if door.is_async:
        async with manager:
            yield
    else:
        with manager:
            yield


def status(door: Door) -> TransactionStatus:
    return TransactionStatus(door.conn.info.transaction_status)


@pytest.mark.parametrize(("write", "made"), WRITES)
async def test_in_autocommit_mode_the_jobs_are_there_at_once(
    door: Door, conn: Connection[Any], write: Write, made: int
) -> None:
    await write(door)
    assert status(door) == TransactionStatus.IDLE
    assert count(conn) == made


@pytest.mark.parametrize("begun", [False, True])
@pytest.mark.parametrize(("write", "made"), WRITES)
async def test_without_autocommit_the_caller_alone_commits(
    door: Door, conn: Connection[Any], write: Write, made: int, begun: bool
) -> None:
    await door.set_autocommit(False)
    if begun:
        await door.execute("select 1")
    await write(door)
    assert status(door) == TransactionStatus.INTRANS
    assert count(conn) == 0
    await door.rollback()
    assert count(conn) == 0
    await write(door)
    await door.commit()
    assert count(conn) == made


@pytest.mark.parametrize(("write", "made"), WRITES)
async def test_inside_a_transaction_block_the_block_decides(
    door: Door, conn: Connection[Any], write: Write, made: int
) -> None:

    async def fail_after_writing() -> None:
        async with block(door, "transaction"):
            await write(door)
            raise LookupError

    with pytest.raises(LookupError):
        await fail_after_writing()
    assert count(conn) == 0
    async with block(door, "transaction"), block(door, "transaction"):
        await write(door)
        assert count(conn) == 0
    assert count(conn) == made


@pytest.mark.parametrize("earlier", [False, True])
@pytest.mark.parametrize(("write", "made"), IN_PIPELINE)
async def test_in_a_pipeline_in_autocommit_mode(
    door: Door, conn: Connection[Any], write: Write, made: int, earlier: bool
) -> None:
    await door.execute("create table seen (n integer)")
    async with block(door, "pipeline"):
        if earlier:
            await door.execute("insert into seen values (1)")
        await write(door)
        if earlier:
            await door.execute("insert into seen values (2)")
    assert count(conn) == made
    rows = conn.execute("select count(*) from seen").fetchone()
    assert rows == (2 if earlier else 0,)


@pytest.mark.parametrize("begun", [False, True])
@pytest.mark.parametrize(("write", "made"), IN_PIPELINE)
async def test_in_a_pipeline_the_callers_transaction_stays_open(
    door: Door, conn: Connection[Any], write: Write, made: int, begun: bool
) -> None:
    await door.set_autocommit(False)
    async with block(door, "pipeline"):
        if begun:
            await door.execute("select 1")
        await write(door)
    assert count(conn) == 0
    assert status(door) == TransactionStatus.INTRANS
    await door.commit()
    assert count(conn) == made


@pytest.mark.parametrize(("write", "made"), IN_PIPELINE)
async def test_in_a_transaction_block_in_a_pipeline(
    door: Door, conn: Connection[Any], write: Write, made: int
) -> None:
    async with block(door, "pipeline"), block(door, "transaction"):
        await write(door)
        assert count(conn) == 0
    assert count(conn) == made


async def test_copy_in_a_pipeline_is_the_drivers_refusal(door: Door, conn: Connection[Any]) -> None:
    with pytest.raises(psycopg.NotSupportedError):
        async with block(door, "pipeline"):
            await door.copy_many(plain, [Payload()])
    assert count(conn) == 0


@pytest.mark.parametrize(("write", "made"), WRITES)
async def test_in_a_failed_transaction_the_drivers_error_passes(
    door: Door, conn: Connection[Any], write: Write, made: int
) -> None:
    await door.set_autocommit(False)
    with pytest.raises(psycopg.errors.DivisionByZero):
        await door.execute("select 1 / 0")
    with pytest.raises(psycopg.errors.InFailedSqlTransaction):
        await write(door)
    await door.rollback()
    await write(door)
    await door.commit()
    assert count(conn) == made


async def test_errors_of_the_server_pass_unchanged(door: Door) -> None:
    await door.execute("drop table jobs.job")
    with pytest.raises(psycopg.errors.UndefinedTable):
        await door.enqueue(plain, Payload())


# --- an error leaves the caller's transaction usable, and nothing written


async def spoil_copy(door: Door) -> None:
    def inputs() -> Iterator[Payload]:
        yield from [Payload()] * 3
        yield Payload(number=float("inf"))

    with pytest.raises(InvalidInput) as caught:
        await door.copy_many(plain, inputs())
    assert (caught.value.index, caught.value.field) == (3, "input.number")


async def spoil_copy_source(door: Door) -> None:
    def inputs() -> Iterator[Payload]:
        yield Payload()
        raise LookupError("the source failed")

    with pytest.raises(LookupError):
        await door.copy_many(plain, inputs())


async def spoil_many(door: Door) -> None:
    with pytest.raises(InvalidInput) as caught:
        await door.enqueue_many(plain, [Payload()] * 8 + [Payload(note="\x00")])
    assert (caught.value.index, caught.value.field) == (8, "input.note")


async def spoil_raising_many(door: Door) -> None:
    with pytest.raises(DuplicateJob) as caught:
        await door.enqueue_many(keyed, [Payload(key=key) for key in "abcda"], on_conflict="raise")
    assert caught.value.index == 4


SPOILED = [spoil_copy, spoil_copy_source, spoil_many, spoil_raising_many]


@pytest.mark.parametrize("spoil", SPOILED)
async def test_an_error_leaves_nothing_in_autocommit_mode(
    door: Door, conn: Connection[Any], spoil: Write
) -> None:
    await spoil(door)
    assert count(conn) == 0
    assert status(door) == TransactionStatus.IDLE


@pytest.mark.parametrize("begun", [False, True])
@pytest.mark.parametrize("spoil", SPOILED)
async def test_an_error_leaves_the_callers_transaction_usable(
    door: Door, conn: Connection[Any], spoil: Write, begun: bool
) -> None:
    await door.set_autocommit(False)
    if begun:
        await door.enqueue(plain, Payload(note="before"))
    await spoil(door)
    await door.enqueue(plain, Payload(note="after"))
    assert count(conn) == 0
    await door.commit()
    notes = [plain.parse(row.input).note for row in stored(conn)]
    assert notes == (["before", "after"] if begun else ["after"])


# --- supplied ids need fresh snapshots


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
async def test_an_id_in_a_stricter_transaction_is_refused_before_writing(
    door: Door, conn: Connection[Any], level: str
) -> None:
    await door.execute(f"set default_transaction_isolation to '{level}'")
    for autocommit in (True, False):
        await door.set_autocommit(autocommit)
        for attempt in (
            door.enqueue(plain, Payload(), id=uuid4()),
            door.enqueue_many(plain, [Payload(), jobs.Item(Payload(), id=uuid4())]),
        ):
            with pytest.raises(IsolationUnsupported, match=level.upper()):
                await attempt
        assert (await door.enqueue(keyed, Payload(key=str(autocommit)))).created
    await door.rollback()
    assert count(conn) == 1


def test_republishing_an_id_while_its_settle_is_open_makes_no_second_job(
    session: MakeSession, conn: Connection[Any]
) -> None:
    for many in (False, True):
        id = uuid4()
        first = plain.enqueue(conn, Payload(), id=id)
        held = claim_one(conn, queues={"plain": 1})
        settler = session("settler", autocommit=False)
        caller = session("caller")
        assert settler.run(settle, (held.id, held.claims)) == [("landed", "completed")]
        if many:
            caller.start(plain.enqueue_many, [jobs.Item(Payload(), id=id)])
        else:
            caller.start(plain.enqueue, Payload(), id=id)
        caller.blocked(by=settler)
        settler.run(Connection.commit)
        answer = caller.result()
        assert (answer[0] if many else answer) == (id, first.run_id, "existing")
        assert stored(conn) == []


# --- waiting for another session


def hold(session: MakeSession, **payload: Any) -> tuple[Session, jobs.Enqueued]:
    """A session whose open transaction has enqueued a job with a key."""
    holder = session("holder", autocommit=False)
    return holder, holder.run(keyed.enqueue, Payload(**payload))


@pytest.mark.parametrize("many", [False, True])
@pytest.mark.parametrize("commits", [False, True])
def test_an_enqueue_waits_for_the_open_transaction_of_its_key_and_then_knows(
    session: MakeSession, conn: Connection[Any], commits: bool, many: bool
) -> None:
    holder, first = hold(session)
    caller = session("caller")
    if many:
        caller.start(keyed.enqueue_many, [Payload(key="other"), Payload()])
    else:
        caller.start(keyed.enqueue, Payload())
    caller.blocked(by=holder)
    holder.run(Connection.commit if commits else Connection.rollback)
    answer = caller.result()[1] if many else caller.result()
    if commits:
        assert answer == (first.id, first.run_id, "existing")
    else:
        assert answer.created
    assert count(conn) == (2 if many else 1)


@pytest.mark.parametrize("many", [False, True])
async def test_a_lock_timeout_is_a_typed_error(
    door: Door, session: MakeSession, conn: Connection[Any], many: bool
) -> None:
    hold(session)
    await door.execute("set lock_timeout to '20ms'")
    if many:
        attempt = door.enqueue_many(keyed, [Payload(key=key) for key in "abcdefk"])
    else:
        attempt = door.enqueue(keyed, Payload())
    with pytest.raises(EnqueueContended) as caught:
        await attempt
    assert isinstance(caught.value.__cause__, psycopg.errors.LockNotAvailable)
    assert caught.value.code == "JOB_ENQUEUE_CONTENDED"
    assert count(conn) == 0
    assert status(door) == TransactionStatus.IDLE


async def test_a_serialization_failure_is_a_typed_error(door: Door, conn: Connection[Any]) -> None:
    await door.execute("begin isolation level repeatable read")
    await door.execute("select count(*) from jobs.job")
    keyed.enqueue(conn, Payload())
    with pytest.raises(EnqueueContended) as caught:
        await door.enqueue(keyed, Payload())
    assert isinstance(caught.value.__cause__, psycopg.errors.SerializationFailure)
    await door.rollback()
    assert (await door.enqueue(keyed, Payload())).status == "existing"


def test_o18_a_deadlock_between_callers_transactions_is_a_typed_error(
    session: MakeSession, conn: Connection[Any]
) -> None:
    one, _ = hold(session, key="a")
    two, _ = hold(session, key="b")
    one.start(keyed.enqueue, Payload(key="b"))
    one.blocked(by=two)
    two.start(keyed.enqueue, Payload(key="a"))
    answers: list[Any] = []
    for caller in (two, one):
        try:
            answers.append(caller.result())
        except EnqueueContended as error:
            answers.append(error)
            caller.run(Connection.rollback)
    contended = [one for one in answers if isinstance(one, EnqueueContended)]
    assert len(contended) == 1
    assert isinstance(contended[0].__cause__, psycopg.errors.DeadlockDetected)
    assert contended[0].cause.endswith(": deadlock detected")  # one line; the rest is in the cause
    one.run(Connection.commit)
    two.run(Connection.commit)
    assert sorted(str(row.idempotency_key) for row in stored(conn)) == ["a", "b"]
