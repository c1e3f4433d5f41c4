"""What the tests of a relay in this process share. Every relay is checked for what it leaves."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any
from uuid import UUID

import psycopg

import jobs
from jobs.relay import Message, Published
from tests.runtime.working import Input, job, leaving_nothing, rows

QUICK: dict[str, Any] = {
    "interval": timedelta(milliseconds=20),
    "idle_poll": timedelta(milliseconds=100),
    "drain": timedelta(seconds=5),
}


@job(name="noted", queue="other")
async def noted(input: Input) -> None:
    """A job to be staged."""


class Taker:
    """A sink that keeps what it is given, and goes wrong when it is told to."""

    def __init__(self) -> None:
        self.opened = self.closed = 0
        self.batches: list[list[int]] = []
        self.messages: list[Message] = []
        self.answers: list[Published | Exception] = []

    async def open(self) -> None:
        self.opened += 1

    async def close(self) -> None:
        self.closed += 1

    async def publish(self, messages: Sequence[Message]) -> Published:
        self.batches.append([number(one) for one in messages])
        answer = self.answers.pop(0) if self.answers else Published(len(messages))
        if isinstance(answer, Exception):
            raise answer
        self.messages += messages[: answer.passed]
        return answer

    @property
    def numbers(self) -> list[int]:
        """What was published, in order, with the repeats."""
        return [number(one) for one in self.messages]


def number(message: Message) -> int:
    """The number in the payload."""
    return noted.parse(message.input).n


def stage(database: str, *numbers: int, handle: Any = noted, **options: Any) -> list[UUID]:
    """Stage some, in one statement."""
    with psycopg.connect(database, autocommit=True) as conn:
        made = handle.stage_many(conn, [Input(n=n) for n in numbers], **options)
    return [one.id for one in made]


def make(outbox: object, to: object = None, **options: Any) -> jobs.Relay:
    """A quick relay."""
    return jobs.Relay(outbox, to, **(QUICK | options))


@asynccontextmanager
async def relaying(
    database: str, to: object = None, *, dsn: object = None, **options: Any
) -> AsyncIterator[jobs.Relay]:
    """A relay that serves during the block, then drains and leaves nothing behind."""
    async with leaving_nothing(database), make(dsn or database, to, **options) as relay:
        yield relay


def outbox(database: str) -> list[Any]:
    """The rows of the outbox in order."""
    return rows(database, "select * from jobs.outbox order by staged_at, id")


def queued(database: str) -> list[Any]:
    """The ids of live jobs in the order of their due times."""
    return [row.id for row in rows(database, "select id from jobs.job order by available_at, id")]
