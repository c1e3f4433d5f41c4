"""Sinks for relays that are processes of their own, named with ``--sink tests.crash.sinks:...``."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Sequence

import psycopg

from jobs.adapters.nats import JetStream
from jobs.messages import Message, Published
from jobs.relay.queue import QueueSink
from jobs.service.link import Target

LOG_DDL = """
create table public.published (
    number bigint generated always as identity primary key, pid int, batch int, id uuid
);
create table public.killed (id uuid primary key);
"""


def _write(pid: int, messages: Sequence[Message], batch: int) -> None:
    with psycopg.connect(os.environ["LOG_DSN"], autocommit=True) as conn:
        for message in messages:
            conn.execute(
                "insert into public.published (pid, batch, id) values (%s, %s, %s)",
                [pid, batch, message.id],
            )


def _die_once(messages: Sequence[Message]) -> None:
    """End this process without a word, unless one has ended on the same batch before."""
    with psycopg.connect(os.environ["LOG_DSN"], autocommit=True) as conn:
        done = conn.execute(
            "insert into public.killed values (%s) on conflict do nothing", [messages[0].id]
        )
        if done.rowcount:
            os.kill(os.getpid(), signal.SIGKILL)


class Logging(QueueSink):
    """The queue of another database; each publish is written down and takes a moment."""

    batches = 0

    async def publish(self, messages: Sequence[Message]) -> Published:
        await asyncio.sleep(float(os.environ.get("SINK_SECONDS", "0")))
        answer = await super().publish(messages)
        self.batches += 1
        _write(os.getpid(), messages[: answer.passed], self.batches)
        return answer


class Killing(Logging):
    """The same, which dies between the publish and the mark, once for each batch."""

    async def publish(self, messages: Sequence[Message]) -> Published:
        answer = await super().publish(messages)
        _die_once(messages)
        return answer


class KillingNats(JetStream):
    """A broker, and death between publish and mark, once for each batch."""

    async def publish(self, messages: Sequence[Message]) -> Published:
        answer = await super().publish(messages)
        _die_once(messages)
        return answer


def _target() -> Target:
    return Target.of(os.environ["QUEUE_DSN"], "jobs:test")


def logging() -> Logging:
    """Make one."""
    return Logging(_target(), 10.0)


def killing() -> Killing:
    """Make one."""
    return Killing(_target(), 10.0)


def killing_nats() -> KillingNats:
    """Make one."""
    return KillingNats(os.environ["NATS_URL"])
