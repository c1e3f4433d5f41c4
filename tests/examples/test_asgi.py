"""The ASGI example, driven as a server drives an application."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID

import psycopg
import pytest

from examples.asgi import app as example
from examples.asgi import welcome
from jobs.inspect import get_job, list_workers
from tests.runtime.working import execute, job, leaving_nothing, registry, rows, until


class Client:
    """A server's side of the application: its lifespan, and requests."""

    def __init__(self) -> None:
        self.state: dict[str, Any] = {}
        self.told: asyncio.Queue[Any] = asyncio.Queue()
        self.said: asyncio.Queue[Any] = asyncio.Queue()

    @asynccontextmanager
    async def lifespan(self) -> AsyncIterator[dict[str, Any]]:
        """Start up, give the answer to that, and shut down after the block."""
        scope = {"type": "lifespan", "state": self.state}
        task = asyncio.create_task(example.app(scope, self.told.get, self.said.put))
        await self.told.put({"type": "lifespan.startup"})
        async with asyncio.timeout(15):
            yield await self.said.get()
            if not task.done():
                await self.told.put({"type": "lifespan.shutdown"})
                assert (await self.said.get())["type"] == "lifespan.shutdown.complete"
            await task

    async def post(self, path: str, *chunks: str) -> tuple[int, Any]:
        """A request whose body comes in pieces; status and document of the answer."""
        body = [
            {"type": "http.request", "body": chunk.encode(), "more_body": True} for chunk in chunks
        ]
        body.append({"type": "http.request", "body": b"", "more_body": False})
        said: list[Any] = []

        async def receive() -> Any:
            return body.pop(0)

        async def send(message: Any) -> None:
            said.append(message)

        scope = {"type": "http", "method": "POST", "path": path, "state": self.state}
        await example.app(scope, receive, send)
        return said[0]["status"], json.loads(said[1]["body"])


@pytest.fixture
def client(database: str, monkeypatch: pytest.MonkeyPatch) -> Client:
    execute(database, "create table public.account (email text primary key)")
    monkeypatch.setenv("DATABASE_URL", database)
    return Client()


async def test_it_enqueues_runs_and_leaves_nothing(
    database: str, client: Client, capsys: pytest.CaptureFixture[str]
) -> None:
    async with leaving_nothing(database):
        async with client.lifespan() as answer:
            assert answer == {"type": "lifespan.startup.complete"}
            status, document = await client.post("/sign-up", "ada@", "example.org")
            assert (status, document["status"]) == (202, "created")
            await until(lambda: "ada@example.org" in capsys.readouterr().out, "the greeting")
            assert (await client.post("/elsewhere"))[0] == 404
        with psycopg.connect(database) as conn:
            assert get_job(conn, UUID(document["job"])).state == "completed"
            assert list_workers(conn) == []


async def test_a_request_that_fails_enqueues_nothing(database: str, client: Client) -> None:
    """Sign-up and greeting are one transaction."""
    async with client.lifespan():
        execute(database, "alter table public.account add check (email <> 'no')")
        with pytest.raises(psycopg.errors.CheckViolation):
            await client.post("/sign-up", "no")
    assert rows(database, "select 1 from jobs.job union all select 1 from jobs.settled") == []


async def test_a_shutdown_waits_for_what_runs(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[str] = []
    begun = asyncio.Event()

    @job(name="greet")
    async def slow(sign_up: welcome.SignUp) -> None:
        begun.set()
        await asyncio.sleep(0.5)
        ended.append(sign_up.email)

    monkeypatch.setattr(example, "REGISTRY", registry(slow))
    async with client.lifespan():
        await client.post("/sign-up", "ada@example.org")
        await begun.wait()
    assert ended == ["ada@example.org"]


async def test_a_start_that_fails_is_told_to_the_server(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATABASE_URL", "postgresql://127.0.0.1:1/nowhere")
    async with client.lifespan() as answer:
        assert answer["type"] == "lifespan.startup.failed"
        assert "JOB_DATABASE_UNREACHABLE" in answer["message"]
