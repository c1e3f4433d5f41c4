"""What a relay makes of sinks that are slow, that answer nonsense, or that break off."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import psycopg
import pytest

import jobs.relay.publisher as publisher_module
from jobs.relay import Message, Outcome, Published
from tests.runtime.relaying import Taker, make, number, outbox, relaying, stage
from tests.runtime.working import execute, rows, until

SECOND = timedelta(seconds=1)


class Slow(Taker):
    """Takes a tenth of a second for each message, and forgets where it was when it is given up."""

    async def publish(self, messages: Sequence[Message]) -> Published:
        self.batches.append([number(one) for one in messages])
        for message in messages:
            await asyncio.sleep(0.1)
            self.messages.append(message)
        return Published(len(messages))


async def test_a_sink_too_slow_for_a_whole_batch_gets_smaller_ones(database: str) -> None:
    """Else the same rows would be published again and again, and none ever be marked."""
    slow = Slow()
    stage(database, *range(24))
    async with relaying(database, slow, lease=SECOND) as relay:
        await until(lambda: relay.stats().published == 24, "all of them")
    assert slow.batches[0] == list(range(24))
    assert list(dict.fromkeys(slow.numbers)) == list(range(24))
    assert relay.stats().failed <= 5, "halved, and not grown again into the same trouble"


async def test_batches_grow_again_once_the_trouble_is_over(database: str) -> None:
    taker = Taker()
    taker.answers = [psycopg.OperationalError("invalid message length")] * 3
    stage(database, *range(40))
    async with relaying(database, taker, batch=16) as relay:
        await until(lambda: relay.stats().published == 40, "all of them")
    assert [len(batch) for batch in taker.batches] == [16, 8, 4, 2, 4, 8, 16, 10]
    assert taker.numbers == list(range(40))


async def test_a_claim_that_takes_too_long_is_made_smaller(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    real = publisher_module.claim_outbox_async

    async def limited(conn: Any, *, most: int, **options: Any) -> Any:
        asked.append(most)
        if most > 2:
            raise TimeoutError("no answer from the database within 10 s")
        return await real(conn, most=most, **options)

    monkeypatch.setattr(publisher_module, "claim_outbox_async", limited)
    taker = Taker()
    stage(database, 1, 2, 3)
    async with relaying(database, taker, batch=8) as relay:
        await until(lambda: relay.stats().published == 3, "all of them")
    assert asked[:3] == [8, 4, 2]


async def test_a_sink_that_is_cancelled_by_itself_does_not_end_the_relay(database: str) -> None:
    class Cancelled(Taker):
        async def publish(self, messages: Sequence[Message]) -> Published:
            if not self.batches:
                self.batches.append([])
                raise asyncio.CancelledError("a task of the client")
            return await super().publish(messages)

    sink = Cancelled()
    stage(database, 1)
    async with relaying(database, sink) as relay:
        await until(lambda: relay.stats().published == 1, "the second try")
        assert relay.stats().failed == 1


@pytest.mark.parametrize(
    "answer",
    [
        None,
        2,
        Published(-1, ConnectionError("odd")),
        Published(3),
        Published(True),
        Published(1.0),  # type: ignore[arg-type]
        Published(2, outcomes=[]),
        Published(1, outcomes=[Outcome("sent", None)] * 2),  # type: ignore[arg-type]
        Published(0),
    ],
    ids=str,
)
async def test_an_answer_that_cannot_be_marks_nothing_and_is_no_reason_to_hurry(
    database: str, answer: Any
) -> None:
    class Odd(Taker):
        calls = 0

        async def publish(self, messages: Sequence[Message]) -> Published:
            self.calls += 1
            return answer if self.calls <= 3 else await super().publish(messages)

    odd = Odd()
    stage(database, 1, 2)
    async with relaying(database, odd) as relay:
        await until(lambda: relay.stats().failed >= 3, "three tries")
        assert odd.messages == []
        assert "the sink" in (relay.stats().last_error or "")
        await until(lambda: relay.stats().published == 2, "a sane answer")
    assert odd.calls <= 6
    assert odd.numbers == [1, 2]


async def test_an_error_behind_the_last_message_is_nobodys(database: str) -> None:
    taker = Taker()
    taker.answers = [Published(2, ConnectionError("afterwards"))]
    stage(database, 1, 2)
    async with relaying(database, taker) as relay:
        await until(lambda: relay.stats().published == 2, "both")
    assert (relay.stats().failed, len(taker.batches)) == (0, 1)
    assert all(row.published_at for row in outbox(database))


async def test_the_wakes_of_stages_are_pruned_where_no_worker_is(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publisher_module, "_PRUNE_EVERY", 0.0)
    stage(database, 1)
    execute(database, "update jobs.wake set at = at - interval '1 hour'")
    assert rows(database, "select from jobs.wake where at < now() - interval '1 minute'")
    await make(database, Taker(), keep=None).run_until_idle()
    assert rows(database, "select from jobs.wake where at < now() - interval '1 minute'") == []
