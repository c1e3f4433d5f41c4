"""Old code and new jobs, new code and old jobs, side by side (O-21; docs/deploying.md)."""

from __future__ import annotations

import logging
import re
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from psycopg import Connection
from pydantic import BaseModel

import jobs
from jobs.control import requeue
from jobs.errors import UnknownState
from jobs.inspect import get_job, queue_stats
from tests.runtime.working import (
    Input,
    Table,
    execute,
    job,
    leaving_nothing,
    make,
    serving,
    until,
)
from tests.support.server import ROOT

ran: list[tuple[str, int]] = []
PAGE = (ROOT / "docs" / "deploying.md").read_text()


@pytest.fixture(autouse=True)
def _nothing_ran() -> None:
    ran.clear()


@job()
async def t1(input: Input, run: jobs.Run) -> None:
    ran.append((run.worker, input.n))


@job()
async def t2(input: Input, run: jobs.Run) -> None:
    ran.append((run.worker, input.n))


async def test_two_hundred_jobs_that_one_of_two_workers_knows(database: str) -> None:
    table = Table(database)
    ids = table.enqueue(t2, 200, priority=0)
    old = make(database, t1, name="A", queues={"default": 20})
    object.__setattr__(old.config, "unknown_delay", timedelta(milliseconds=200))
    async with leaving_nothing(database), old:
        await until(lambda: old.stats().released >= 100, "the old one to meet many")
        assert ran == []
        async with make(database, t1, t2, name="B", queues={"default": 20}):
            table.enqueue(t1, 20)
            await until(lambda: not table.count_live(), "all to end")
    assert sorted(n for _, n in ran) == sorted([*range(200), *range(20)])
    assert {table.settled(id).attempt for id in ids} == {1}
    assert table.counters() == {"completed": 220}


class OldWelcome(BaseModel):
    """As it was when the job was enqueued."""

    v: int


class Welcome(BaseModel):
    """As it is when the job is run."""

    v: int
    w: str


class BothWelcome(BaseModel):
    """As it should have been deployed."""

    v: int
    w: str = "none"


def welcome(model: type[BaseModel]) -> Any:
    """The job under that model."""

    async def body(input: BaseModel) -> None:
        ran.append(("welcome", input.model_dump()["v"]))

    body.__annotations__["input"] = model
    return job(name="welcome")(body)


async def test_an_old_payload_is_explained_runs_no_code_and_ends_as_its_retry_says(
    database: str, caplog: pytest.LogCaptureFixture
) -> None:
    table = Table(database)
    with Connection[Any].connect(database, autocommit=True) as conn:
        id = welcome(OldWelcome).enqueue(conn, OldWelcome(v=1)).id
    with caplog.at_level(logging.WARNING, "jobs.worker"):
        async with serving(database, welcome(Welcome), t1) as worker:
            table.enqueue(t1, 5)
            await until(lambda: not table.count_live(), "all to end")
            assert worker.stats().completed == 5, "its neighbours"
    assert ("welcome", 1) not in ran
    row = table.settled(id)
    assert (row.state, row.attempt) == ("dead", 3)
    (said,) = {attempt.error_message for attempt in table.attempts(id)}
    assert said in PAGE, "the page shows it as it is"
    assert "input.w: Field required" in said
    assert re.search(r"Fix: .*model", said)
    assert said.split(" [")[0] in caplog.text
    with psycopg.connect(database, autocommit=True) as conn:
        requeue(conn, id)
    await make(database, welcome(BothWelcome)).run_until_idle()
    assert table.settled(id).state == "completed"
    assert ("welcome", 1) in ran


async def test_a_state_of_a_newer_version_is_left_alone_and_never_guessed(database: str) -> None:
    table = Table(database)
    (strange,) = table.enqueue(t1)
    table.enqueue(t1, 5)
    execute(database, "alter table jobs.job drop constraint job_state_check")
    execute(database, "update jobs.job set state = 'dreaming' where id = %s", strange)
    stats = await make(database, t1).run_until_idle()
    assert stats.completed == 5
    assert table.live(strange).state == "dreaming"
    with psycopg.connect(database, autocommit=True) as conn:
        with pytest.raises(UnknownState, match="dreaming"):
            get_job(conn, strange)
        (queue,) = queue_stats(conn)
    assert queue.other == 1


@pytest.mark.parametrize(
    "event", ["jobs.worker.abandoned", "jobs.worker.unsettled", "jobs.worker.exit_forced"]
)
def test_the_page_names_events_that_there_are(event: str) -> None:
    assert f"`{event}`" in PAGE
    sources = [path.read_text() for path in (ROOT / "jobs").rglob("*.py")]
    assert any(f'"{event}"' in source for source in sources)
