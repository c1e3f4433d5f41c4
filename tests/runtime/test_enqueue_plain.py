"""Bulk enqueues of jobs that nothing can be in the way of, and which ones these are."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from psycopg import Connection

import jobs
from jobs_sql import bulk
from jobs_sql import enqueue as sql
from tests.runtime.doors import Door, Payload, plain, stored
from tests.sql.calls import claim_one


def statuses(answers: list[jobs.Enqueued]) -> str:
    """The first letter of each."""
    return "".join(answer.status[0] for answer in answers)


@pytest.fixture
def statements(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the bulk statements that are sent."""
    sent: list[str] = []
    for module, name in ((sql, "enqueue_jobs"), (bulk, "insert_jobs")):
        for flavour in (name, f"{name}_async"):
            real = getattr(module, flavour)

            monkeypatch.setattr(module, flavour, _noting(sent, name, real))
    return sent


def _noting(sent: list[str], name: str, real: Any) -> Any:
    def noting(conn: Any, **named: Any) -> Any:
        sent.append(name)
        return real(conn, **named)

    return noting


async def test_jobs_without_key_and_id_of_their_own_are_inserted_without_a_look(
    door: Door, conn: Connection[Any], statements: list[str]
) -> None:
    answers = await door.enqueue_many(plain, [Payload(note=str(n)) for n in range(30)])
    assert statements == ["insert_jobs"]
    assert statuses(answers) == "c" * 30
    rows = {row.id: row for row in stored(conn)}
    assert [rows[answer.id].run_id for answer in answers] == [one.run_id for one in answers]
    found = [plain.parse(rows[answer.id].input).note for answer in answers]
    assert found == [str(n) for n in range(30)]
    claimed = [claim_one(conn, queues={plain.queue: 1}).id for _ in answers]
    assert claimed == [answer.id for answer in answers]
    assert statuses(await door.enqueue_many(plain, [Payload()], on_conflict="raise")) == "c"


@pytest.mark.parametrize(
    "items",
    [
        [Payload(), jobs.Item(Payload(), run_at=datetime(2040, 1, 1, tzinfo=UTC))],
        [Payload(), jobs.Item(Payload(), delay=timedelta(seconds=9))],
        [Payload(), jobs.Item(Payload(), id=UUID(int=7))],
    ],
    ids=["a time", "a delay", "an id"],
)
async def test_with_an_option_of_one_of_them_all_are_looked_at(
    door: Door, conn: Connection[Any], statements: list[str], items: list[Any]
) -> None:
    assert statuses(await door.enqueue_many(plain, items)) == "cc"
    assert statements == ["enqueue_jobs"]
    assert len(stored(conn)) == 2


async def test_jobs_with_a_concurrency_key_keep_it(
    door: Door, conn: Connection[Any], statements: list[str]
) -> None:
    @jobs.job(
        tenant=jobs.NO_TENANT,
        idempotency_key=jobs.NO_KEY,
        concurrency=jobs.Concurrency(key=lambda input: input.note, limit=1),
    )
    def limited(input: Payload) -> None: ...

    await door.enqueue_many(limited, [Payload(note="a"), Payload(note="b")])
    assert statements == ["enqueue_jobs"]
    found = conn.execute("select count(distinct concurrency_key) from jobs.job").fetchone()
    assert found == (2,)
