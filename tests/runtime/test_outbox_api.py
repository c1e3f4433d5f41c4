"""What operators ask of the outbox from Python, on either flavour of connection."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import jobs
from jobs.outbox import (
    discard,
    get_staged,
    list_staged,
    outbox_stats,
    prune,
    retry,
)
from tests.runtime.doors import Door, settled
from tests.runtime.relaying import make, stage
from tests.runtime.working import execute


async def test_pages_in_the_order_of_publishing(door: Door, database: str) -> None:
    ids = stage(database, *range(5))
    execute(database, "update jobs.outbox set parked_at = now() where id = %s", ids[1])
    seen: list[Any] = []
    cursor = None
    while True:
        page = await settled(list_staged(door.conn, cursor=cursor, page_size=2))
        seen += page.rows
        cursor = page.next_cursor
        if cursor is None:
            break
    assert [row.id for row in seen] == ids
    assert [row.state for row in seen] == ["waiting", "parked", "waiting", "waiting", "waiting"]
    assert all(row.staged_at.tzinfo is UTC for row in seen)
    waiting = await settled(list_staged(door.conn, state="waiting"))
    assert [row.id for row in waiting.rows] == [ids[0], *ids[2:]]
    parked = await settled(list_staged(door.conn, state="parked"))
    assert [row.id for row in parked.rows] == [ids[1]]


async def test_figures_of_an_empty_outbox_and_of_one_that_waits(door: Door, database: str) -> None:
    empty = await settled(outbox_stats(door.conn))
    assert empty == (0, 0, None, None, None, None, None, None)
    ids = stage(database, 1, 2)
    execute(database, "update jobs.outbox set staged_at = staged_at - interval '1 hour'")
    stats = await settled(outbox_stats(door.conn))
    assert (stats.waiting, stats.parked, stats.head_id) == (2, 0, ids[0])
    assert stats.oldest_wait >= timedelta(hours=1)


async def test_a_lease_whose_row_is_gone_is_said(door: Door, database: str) -> None:
    execute(database, "truncate jobs.relay")
    with pytest.raises(jobs.ControlInvalid, match=r"jobs\.relay"):
        await settled(outbox_stats(door.conn))


async def test_one_row_before_and_after(door: Door, database: str) -> None:
    [id] = stage(database, 1)
    before = await settled(get_staged(door.conn, id))
    assert (before.state, before.published_at, before.input) == ("waiting", None, '{"n":1}')
    stats = await make(database).run_until_idle()
    after = await settled(get_staged(door.conn, id))
    assert (after.state, after.outcome, after.published_as) == ("published", "created", id)
    assert after.published_by == stats.name
    assert after.published_at.tzinfo is UTC
    with pytest.raises(jobs.JobNotFound):
        await settled(get_staged(door.conn, jobs.uuid7()))


async def test_retry_and_discard(door: Door, database: str) -> None:
    ids = stage(database, 1, 2)
    execute(
        database,
        "update jobs.outbox set parked_at = now(), refusals = 10, last_error = 'E' where id = %s",
        ids[0],
    )
    assert await settled(discard(door.conn, [ids[1]])) == []
    assert await settled(retry(door.conn, ids[:1])) == {ids[0]: "waiting"}
    row = await settled(get_staged(door.conn, ids[0]))
    assert (row.state, row.refusals, row.last_error) == ("waiting", 0, "E")
    execute(database, "update jobs.outbox set parked_at = now() where id = %s", ids[0])
    assert await settled(discard(door.conn, [*ids, ids[0]])) == [ids[0]]


async def test_pruning(door: Door, database: str) -> None:
    stage(database, 1, 2, 3)
    await make(database, keep=None).run_until_idle()
    for keep in (timedelta(days=1), timedelta.max):
        assert await settled(prune(door.conn, keep=keep)) == 0
    assert await settled(prune(door.conn, keep=timedelta(0), most=2)) == 2
    assert await settled(prune(door.conn, keep=timedelta(0), most=2)) == 1


class TestRefusals:
    @pytest.mark.parametrize(
        "options",
        [
            {"state": "published"},
            {"page_size": 0},
            {"page_size": 1_001},
            {"page_size": True},
            {"cursor": (datetime(2026, 1, 1), jobs.uuid7)},
            {"cursor": "x"},
        ],
        ids=range(6),
    )
    async def test_of_pages(self, door: Door, options: Any) -> None:
        with pytest.raises(jobs.PageInvalid):
            await settled(list_staged(door.conn, **options))

    async def test_of_ids_and_bounds(self, door: Door) -> None:
        for call in (
            lambda: retry(door.conn, "abc"),
            lambda: retry(door.conn, ["abc"]),  # type: ignore[list-item]
            lambda: discard(door.conn, [1]),  # type: ignore[list-item]
            lambda: get_staged(door.conn, "abc"),  # type: ignore[call-overload]
            lambda: retry(door.conn, (jobs.uuid7() for _ in range(10_001))),
            lambda: prune(door.conn, keep=timedelta(days=-1)),
            lambda: prune(door.conn, keep=timedelta(0), most=0),
        ):
            with pytest.raises(jobs.ControlInvalid):
                await settled(call())
