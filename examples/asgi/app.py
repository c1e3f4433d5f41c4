"""An ASGI application whose lifespan holds a pool and a worker, without a framework.

    DATABASE_URL=postgresql://localhost/app uvicorn examples.asgi.app:app

``POST /sign-up`` with an e-mail address as the body enqueues a greeting in the transaction that
notes the sign-up. The worker serves from start-up to shutdown on the same event loop: at shutdown
it claims nothing more, lets running jobs end for ``DRAIN``, and hands back the rest.

With Starlette or FastAPI the same is three lines, since their ``lifespan=`` takes a context
manager::

    @contextlib.asynccontextmanager
    async def lifespan(app):
        async with serving(os.environ["DATABASE_URL"]) as pool:
            yield {"pool": pool}

Jobs that compute belong into a process of their own (``jobs worker``): here they would share the
event loop with the requests.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from datetime import timedelta
from typing import Any, TypeAlias

from psycopg import AsyncConnection
from psycopg_pool import AsyncConnectionPool

import jobs
from examples.asgi import welcome

# Less than the server waits for the shutdown of an application before it is killed.
DRAIN = timedelta(seconds=10)

Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
Pool: TypeAlias = AsyncConnectionPool[AsyncConnection[Any]]

REGISTRY = jobs.Registry.of(welcome)


@contextlib.asynccontextmanager
async def serving(dsn: str) -> AsyncIterator[Pool]:
    """The pool of the application, and a worker beside it.

    The worker opens connections of its own, so requests cannot starve it of them, nor it them. It
    is the inner one: it has drained before the pool that its jobs may use is closed.
    """
    async with (
        AsyncConnectionPool(dsn, min_size=1, max_size=5, open=False) as pool,
        jobs.Worker(pool, REGISTRY, queues={"default": 10}, drain=DRAIN),
    ):
        yield pool


async def app(scope: Message, receive: Receive, send: Send) -> None:
    """The application."""
    if scope["type"] == "lifespan":
        await lifespan(scope, receive, send)
    elif scope["type"] == "http":
        await respond(scope, receive, send)


async def lifespan(scope: Message, receive: Receive, send: Send) -> None:
    """Start up, wait for the shutdown, shut down; a start that fails is told to the server."""
    await receive()
    async with contextlib.AsyncExitStack() as stack:
        try:
            pool = await stack.enter_async_context(serving(os.environ["DATABASE_URL"]))
        except Exception as error:
            await send({"type": "lifespan.startup.failed", "message": str(error)})
            return
        scope["state"]["pool"] = pool
        await send({"type": "lifespan.startup.complete"})
        await receive()
    await send({"type": "lifespan.shutdown.complete"})


async def respond(scope: Message, receive: Receive, send: Send) -> None:
    """Answer one request."""
    if (scope["method"], scope["path"]) != ("POST", "/sign-up"):
        await _answer(send, 404, {"error": "POST an e-mail address to /sign-up"})
        return
    body, more = b"", True
    while more:
        message = await receive()
        body += message.get("body", b"")
        more = message.get("more_body", False)
    pool: Pool = scope["state"]["pool"]
    async with pool.connection() as conn:  # commits at its end
        made = await welcome.sign_up(conn, body.decode())
    await _answer(send, 202, {"job": str(made.id), "status": made.status})


async def _answer(send: Send, status: int, document: dict[str, str]) -> None:
    headers = [(b"content-type", b"application/json")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": json.dumps(document).encode()})
