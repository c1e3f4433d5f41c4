"""A worker in the registry: there while it lives, gone when it stops, and of no consequence."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from datetime import timedelta
from importlib import metadata
from typing import Any

import psycopg
import pytest

import jobs
from jobs.inspect import WorkerRecord, list_workers
from jobs.worker import claimer, farewell, register
from tests.runtime.working import (
    Gate,
    Input,
    Table,
    execute,
    job,
    leaving_nothing,
    logged,
    make,
    rows,
    serving,
    until,
)


@job()
async def noop(_: Input) -> None:
    pass


def listed(database: str) -> list[WorkerRecord]:
    """The workers of a database, as an operator sees them."""
    with psycopg.connect(database, autocommit=True) as conn:
        return list_workers(conn)


def beat_now(worker: jobs.Worker) -> None:
    """Let a sign of life be due."""
    worker._claimer._registration._due_at = float("-inf")
    worker._claimer.wake()


async def registered(database: str, count: int = 1) -> list[WorkerRecord]:
    """The workers, once there are so many."""
    found: list[WorkerRecord] = await until(
        lambda: found if len(found := listed(database)) == count else None, f"{count} workers"
    )
    return found


async def test_it_is_there_while_it_serves_and_gone_when_it_has_stopped(database: str) -> None:
    queues = {"default": 3, "mail": 2}
    async with serving(database, noop, queues=queues, name="web-0") as worker:
        (record,) = await registered(database)
        assert (record.name, record.state, record.queues) == ("web-0", "running", queues)
        assert (record.host, record.process) == (socket.gethostname(), os.getpid())
        assert record.version == metadata.version("sql-jobs")
        assert record.expires_at - record.beat_at == timedelta(seconds=90)
        Table(database).enqueue(noop, 4)
        await until(lambda: worker.stats().completed == 4, "the jobs")
        beat_now(worker)
        (record,) = await until(
            lambda: [one for one in listed(database) if one.completed], "a sign of life"
        )
        assert (record.claimed, record.completed, record.in_flight) == (4, 4, 0)
        assert record.beat_at > record.started_at
    assert listed(database) == []
    assert rows(database, "select 1 from jobs.worker") == []


async def test_what_it_is_running(database: str) -> None:
    gate = Gate()
    async with serving(database, gate.job) as worker:
        ids = Table(database).enqueue(gate.job, 3)
        await until(lambda: len(gate.started) == 3, "the jobs to start")
        beat_now(worker)
        (record,) = await until(
            lambda: [one for one in listed(database) if one.in_flight], "a sign of life"
        )
        assert record.in_flight == 3
        assert record.running == [(id, "gated") for id in sorted(ids)]
        gate.open.set()


async def test_a_worker_with_more_than_a_hundred_jobs_names_a_hundred(database: str) -> None:
    gate = Gate()
    async with serving(database, gate.job, queues={"default": 150}) as worker:
        Table(database).enqueue(gate.job, 150)
        await until(lambda: len(gate.started) == 150, "the jobs to start")
        beat_now(worker)
        (record,) = await until(
            lambda: [one for one in listed(database) if one.in_flight], "a sign of life"
        )
        assert (record.in_flight, len(record.running)) == (150, 100)
        gate.open.set()


async def test_two_of_one_name_are_two(database: str) -> None:
    async with leaving_nothing(database), make(database, noop, name="web-0"):
        async with make(database, noop, name="web-0"):
            first, second = await registered(database, 2)
            assert first.id != second.id
            assert (first.name, second.name) == ("web-0", "web-0")
        assert len(listed(database)) == 1, "each takes its own row away"


async def test_it_says_that_it_drains_for_as_long_as_that_takes(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate()
    async with serving(database, gate.job) as worker:
        Table(database).enqueue(gate.job)
        await until(lambda: gate.started, "the start")
        await registered(database)
        monkeypatch.setattr(farewell, "BEAT_EVERY", 0.1)
        worker.stop()
        (first,) = await until(
            lambda: [one for one in listed(database) if one.state == "draining"], "the news"
        )
        assert first.in_flight == 1
        await until(lambda: listed(database)[0].beat_at > first.beat_at, "another sign of life")
        gate.open.set()


async def test_without_its_row_it_goes_on_and_is_soon_back(database: str) -> None:
    """Nothing depends on it."""
    gate = Gate()
    async with serving(database, gate.job, noop) as worker:
        Table(database).enqueue(gate.job)
        await registered(database)
        execute(database, "truncate jobs.worker")
        Table(database).enqueue(noop, 5)
        await until(lambda: worker.stats().completed == 5, "jobs")
        beat_now(worker)
        await registered(database)
        gate.open.set()
        await until(lambda: worker.stats().completed == 6, "the other one")
        assert worker.stats().lost == 0


async def test_where_it_may_not_register_it_says_so_once_and_works(
    database: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(register, "BEAT_EVERY", 0.05)
    execute(database, "alter table jobs.worker rename to nowhere")
    with caplog.at_level(logging.DEBUG, "jobs.worker"):
        async with serving(database, noop) as worker:
            Table(database).enqueue(noop, 5)
            await until(lambda: worker.stats().completed == 5, "jobs")
            await until(
                lambda: len(logged(caplog, "jobs.worker.registry_failed")) >= 3, "three tries"
            )
    failed = [r for r in caplog.records if getattr(r, "event", "") == "jobs.worker.registry_failed"]
    assert [record.levelname for record in failed].count("WARNING") == 1
    assert logged(caplog, "jobs.worker.claim_failed") == []


async def test_signs_of_life_come_while_every_slot_is_taken(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (register, claimer):
        monkeypatch.setattr(module, "BEAT_EVERY", 0.1)
    monkeypatch.setattr(register, "_LIFETIMES", 600)
    gate = Gate()
    options: dict[str, Any] = {"queues": {"default": 1}, "idle_poll": timedelta(hours=1)}
    async with serving(database, gate.job, **options):
        Table(database).enqueue(gate.job, 2)
        await until(lambda: gate.started, "the start")
        (record,) = await registered(database)
        for _ in range(2):
            before = record.beat_at
            await until(lambda b=before: listed(database)[0].beat_at > b, "a sign of life")
            (record,) = listed(database)
        gate.open.set()


async def test_a_look_that_rides_on_a_sign_of_life_finds_what_is_due(database: str) -> None:
    """Each of the looks is one, and what it sees is claimed at once, not at the next poll."""
    far: dict[str, Any] = {"poll": timedelta(minutes=1), "idle_poll": timedelta(minutes=1)}
    async with serving(database, noop, **far, listen=False) as worker:
        await registered(database)
        await asyncio.sleep(0.1)
        Table(database).enqueue(noop)
        await asyncio.sleep(0.2)
        assert worker.stats().claimed == 0, "else this test tests nothing"
        beat_now(worker)
        await until(lambda: worker.stats().completed == 1, "the job")


async def test_by_hand_it_ends_as_ever(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where each look is a sign of life at the same time."""
    monkeypatch.setattr(register, "BEAT_EVERY", 0.0)
    Table(database).enqueue(noop, 20)
    stats = await make(database, noop).run_until_idle()
    assert stats.completed == 20
    assert listed(database) == []
