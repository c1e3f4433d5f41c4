"""How far back an enqueue looks that has lost twice: to before its call, however long that took."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, cast
from uuid import uuid4

import pytest
from psycopg import Connection

import jobs.enqueue as under_test
from jobs.errors import EnqueueContended
from jobs.flavour import drive
from jobs_sql.conflict import FindEnqueuedRow

MINUTE = timedelta(minutes=1)
TARGET = under_test.Target("q", "work", 3, True, "live", None, None)
ROW = under_test.Row(uuid4(), uuid4(), False, "", 0, None, timedelta(0), "key", "{}")


class Stub:
    """A database in which each insert waits a minute for another job, which ends meanwhile."""

    def __init__(self) -> None:
        self.now = 0.0
        self.asked: list[timedelta | None] = []
        self.ended_at = MINUTE.total_seconds() * 0.5  # while the first insert waited

    def insert(self, *_: Any, **__: Any) -> None:
        self.now += MINUTE.total_seconds()

    def find(self, *_: Any, since: timedelta | None, **__: Any) -> list[FindEnqueuedRow]:
        self.asked.append(since)
        if since is None or self.ended_at < self.now - since.total_seconds():
            return []
        return [FindEnqueuedRow(ROW.run_id, ROW.id, ROW.run_id)]


@pytest.fixture
def stub(monkeypatch: pytest.MonkeyPatch) -> Stub:
    stub = Stub()
    monkeypatch.setattr(under_test, "monotonic", lambda: stub.now)
    monkeypatch.setattr(under_test.sql, "enqueue_job", stub.insert)
    monkeypatch.setattr(under_test.conflict, "find_enqueued", stub.find)
    return stub


def enqueue() -> under_test.Enqueued:
    return drive(cast(Connection[Any], None), under_test.enqueue_one(TARGET, ROW))


def test_one_that_ended_while_the_inserts_waited_is_the_answer(stub: Stub) -> None:
    assert enqueue().status == "existing"
    first, last = stub.asked
    assert first is None
    assert last is not None
    assert 2 * MINUTE <= last < 3 * MINUTE


def test_one_that_ended_long_before_the_call_is_not(stub: Stub) -> None:
    stub.ended_at = -MINUTE.total_seconds()
    with pytest.raises(EnqueueContended):
        enqueue()
