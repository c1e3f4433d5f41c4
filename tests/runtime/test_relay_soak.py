"""O-56 at full speed: sessions that wait, commit and roll back while relays publish."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from typing import Any
from uuid import UUID

import pytest
from psycopg import Connection

from tests.runtime.relaying import Taker, make, noted, outbox
from tests.runtime.working import Input, leaving_nothing, until
from tests.sql.soak import soak

pytestmark = pytest.mark.serial

SESSIONS = 16


@pytest.mark.parametrize(
    "seconds",
    [5, pytest.param(60, marks=[pytest.mark.slow, pytest.mark.timeout(180)])],
)
async def test_every_committed_row_is_published_once_and_no_other(
    database: str, seconds: float
) -> None:
    """Rows commit in another order than they were staged in, from microseconds to a second late."""
    committed: list[list[UUID]] = [[] for _ in range(SESSIONS)]
    rolled_back: list[UUID] = []
    lock = threading.Lock()

    def stager(number: int) -> Any:
        def step(conn: Connection[Any], chance: random.Random) -> None:
            made: list[UUID] = []
            with conn.transaction(force_rollback=chance.random() < 0.2) as block:
                for _ in range(chance.randint(1, 3)):
                    made.append(noted.stage(conn, Input(n=number)).id)
                    time.sleep(chance.choice([0, 0, 0.005, 0.05, chance.random()]))
            with lock:
                if block.force_rollback:
                    rolled_back.extend(made)
                else:
                    committed[number].extend(made)

        return step

    taker = Taker()
    async with (
        leaving_nothing(database),
        make(database, taker, batch=7) as relay,
        make(database, taker, batch=7),
    ):
        await asyncio.to_thread(soak, database, seconds, [stager(n) for n in range(SESSIONS)])
        await until(lambda: all(row.published_at for row in outbox(database)), "every row")
        await until(lambda: relay.stats().state == "running", "the relay")
    published = [message.id for message in taker.messages]
    expected = [id for ids in committed for id in ids]
    assert rolled_back, "some were to be rolled back"
    assert len(expected) > SESSIONS
    assert sorted(published) == sorted(expected), "each once, and nothing else"
    place = {id: at for at, id in enumerate(published)}
    for ids in committed:
        assert [place[id] for id in ids] == sorted(place[id] for id in ids), "its session's order"
    staged_order = [row.id for row in outbox(database)]
    assert published != staged_order, "some were to commit late"
