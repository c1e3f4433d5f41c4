"""An enqueue that loses every race tries its insert twice, and no more."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest
from psycopg import Connection
from pydantic import BaseModel

import jobs
from jobs_sql import conflict
from jobs_sql import enqueue as sql


class Input(BaseModel):
    """Nothing."""


@jobs.job(tenant=jobs.NO_TENANT, idempotency_key=lambda _: "k")
def work(input: Input) -> None:
    """Does nothing."""


@pytest.mark.parametrize("supplied", [False, True])
def test_the_insert_is_tried_at_most_twice(
    conn: Connection[Any], monkeypatch: pytest.MonkeyPatch, supplied: bool
) -> None:
    calls = []

    def lose(*_: Any, **__: Any) -> None:
        calls.append("insert")

    def see_nobody(*_: Any, **__: Any) -> list[Any]:
        calls.append("look")
        return []

    monkeypatch.setattr(sql, "enqueue_job", lose)
    monkeypatch.setattr(conflict, "find_enqueued", see_nobody)
    with pytest.raises(jobs.EnqueueContended):
        work.enqueue(conn, Input(), id=uuid4() if supplied else None)
    assert calls == ["insert", "look"] * 2
