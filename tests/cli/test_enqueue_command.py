"""`jobs enqueue` as a process: through the declaration, and what it says to bad input."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest

from tests.cli.conftest import Said

Command = Callable[..., Said]
Look = Callable[..., list[tuple[Any, ...]]]

ORDER = '{"order": "0197c2b4-6f0e-7c3a-9d5e-0a1b2c3d4e5f"}'


def test_the_declaration_decides_what_is_stored(command: Command, look: Look) -> None:
    done = command("enqueue", "shop:registry", "ship", ORDER, "--json", "--enqueued-by", "me")
    assert (done.status, done.err) == (0, "")
    assert done.document.keys() == {"id", "run_id", "status", "name", "queue"}
    assert (done.document["status"], done.document["queue"]) == ("created", "shop")
    ((id, tenant, key, priority, limit, by, payload),) = look(
        "select id, tenant, idempotency_key, priority, max_attempts, enqueued_by, input::text "
        "from jobs.job"
    )
    assert id == UUID(done.document["id"])
    assert (tenant, key, priority, limit, by) == (
        "t",
        "0197c2b4-6f0e-7c3a-9d5e-0a1b2c3d4e5f",
        2,
        1,
        "me",
    )
    assert json.loads(payload)["note"] == ""


def test_a_taken_key_answers_with_its_job_or_fails(command: Command) -> None:
    first = command("enqueue", "shop", "ship", ORDER, "--json").document
    again = command("enqueue", "shop", "ship", ORDER)
    assert again.lines == ["status  existing", f"id      {first['id']}", "queue   shop"]
    failed = command("enqueue", "shop", "ship", ORDER, "--fail-if-exists")
    assert (failed.status, failed.out) == (1, "")
    assert "[JOB_DUPLICATE]" in failed.err


def test_options(command: Command, look: Look) -> None:
    id = uuid4()
    command("enqueue", "shop", "tidy", ORDER, "--priority", "0", "--id", str(id), "--delay", "60")
    ((found, priority, waits),) = look(
        "select id, priority, available_at - created_at from jobs.job"
    )
    assert (found, priority) == (id, 0)
    assert timedelta(seconds=59) < waits < timedelta(seconds=61)


@pytest.mark.parametrize(
    ("text", "instant"),
    [
        ("2126-03-08T02:30:00+01:00", datetime(2126, 3, 8, 1, 30, tzinfo=UTC)),
        ("2126-03-08 02:30Z", datetime(2126, 3, 8, 2, 30, tzinfo=UTC)),
    ],
)
def test_a_time_with_an_offset_is_that_instant(
    command: Command, look: Look, text: str, instant: datetime
) -> None:
    assert command("enqueue", "shop", "tidy", ORDER, "--at", text).status == 0
    assert look("select available_at from jobs.job") == [(instant,)]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["ship", ORDER, "--at", "2026-03-08 02:30"], "has no offset"),
        (["ship", ORDER, "--at", "2026-03-08"], "has no offset"),
        (["ship", ORDER, "--at", "tomorrow"], "'tomorrow' is not a time"),
        (["ship", ORDER, "--delay", "-1"], "delay: must be from 0"),
        (["ship", ORDER, "--delay", "nan"], "--delay"),
        (["ship", ORDER, "--delay", "1", "--at", "2026-03-08T00:00Z"], "not allowed with"),
        (["ship", ORDER, "--priority", "4"], "priority: must be 0, 1, 2 or 3"),
        (["ship", ORDER, "--id", "7"], "'7' is not the id of a job"),
        (["shop", ORDER], "fix: Name one of these: ship, tidy."),
        (["ship", "{"], "input: does not fit Order"),
        (["ship", "[1]"], "input: does not fit Order"),
        (["ship", "{}"], "input.order: Field required"),
        (["ship", ORDER[:-1] + ', "note": "a\\u0000"}'], "note"),
        (["ship", ORDER[:-1] + ', "at": "2026-03-08T02:30"}'], "at"),
    ],
)
def test_bad_input_is_explained_and_nothing_is_written(
    command: Command, look: Look, arguments: list[str], says: str
) -> None:
    done = command("enqueue", "shop", *arguments)
    assert (done.status, done.out) == (2, "")
    assert says in done.err
    assert look("select count(*) from jobs.job") == [(0,)]


def test_a_database_without_tables(command: Command, look: Look) -> None:
    look("drop schema jobs cascade")
    done = command("enqueue", "shop", "tidy", ORDER)
    assert done.status == 1
    assert "[SQLSTATE 42P01]" in done.err
    assert "fix: Run `jobs migrate`" in done.err
