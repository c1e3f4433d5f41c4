"""Hear of new jobs instead of looking for them: one session that listens.

What is heard only makes a look come sooner. Nothing is lost with it: while nothing can be heard the
service looks more often.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import random
import secrets
import time
from collections.abc import Callable, Coroutine
from typing import Any, NoReturn, Protocol, TypeAlias

import psycopg
from psycopg import AsyncConnection

from jobs.errors import ConfigError, JobsError
from jobs.service.link import Link, Target
from jobs_sql.wake import listen_wake_async, notify_probe_async, unlisten_wake_async

# Seconds of silence after which the session is asked for a sign of life, and until it must come. It
# is a bare protocol message: no statement, no transaction.
PING_EVERY = 10.0
_PING_TIMEOUT = 5.0
_STATEMENT_TIMEOUT = 10.0
# Seconds until a probe that was committed must have arrived, and between two looks whether it has.
PROOF_WITHIN = 5.0
_PROOF_LOOK = 0.5
# Seconds before connecting again: the first, the longest, and where LISTEN is known to be deaf.
_BACKOFF = 0.25
_MAX_BACKOFF = 5.0
_DEAF_PAUSE = 600.0
_STOP_GRACE = 2.0
_EXPECTED = (psycopg.Error, TimeoutError, OSError, JobsError)

Errand: TypeAlias = Callable[[AsyncConnection[Any]], Coroutine[Any, Any, Any]]


class Ear(Protocol):
    """Whom a listener tells, always in the event loop."""

    def hear(self, queue: str) -> None:
        """Something was enqueued, maybe in a queue that nobody here knows."""

    def trust(self, live: bool) -> None:
        """From now on enqueues are heard; or they are not, and some may have been missed."""

    def errand(self, errand: Errand) -> asyncio.Future[Exception | None]:
        """Send a statement on the connection that looks, then look.

        Returns:
            None when it has been answered, or what it raised.
        """


def listening_target(listen: object, database: Target, application_name: str) -> Target | None:
    """Where a service is to listen, from its argument ``listen``; None for nowhere.

    Raises:
        ConfigError: The argument is none that can be used.
    """
    if listen is False:
        return None
    if not isinstance(listen, str):
        raise ConfigError(
            f"listen is {listen!r:.200}, expected 'auto', False or a connection string"
        )
    return database if listen == "auto" else Target.of(listen, application_name)


class _DeafError(Exception):
    """The session lives and does not hear what others commit."""


class Listener:
    """Keeps one session listening, and knows whether it hears anything.

    It is live once a probe that another session committed (the one that looks) has arrived. That
    finds out a pooler which hands each transaction to another server session, and a connection
    string that leads to another database. Every new session is proven anew.
    """

    def __init__(
        self,
        target: Target,
        ear: Ear,
        name: str,
        noun: str = "worker",
        cancelling: Callable[[], None] = lambda: None,
    ) -> None:
        """
        Args:
            target: Where to listen.
            ear: Whom to tell of enqueues.
            name: Label of the process.
            noun: What kind of service it is: ``jobs.<noun>`` is the logger, and its events begin
                so.
            cancelling: Called when an operator wants a job cancelled that a worker of that label
                runs. Which one it is says the database.
        """
        self._cancelling = cancelling
        self._cancel_payload = f"cancel {name}"
        self._link = Link(target)
        self._ear = ear
        self._name, self._noun = name, noun
        self._logger = logging.getLogger(f"jobs.{noun}")
        self._live = False
        self._nonce = ""
        self._heard = 0
        self._lost_said = self._deaf_said = False
        self._task: asyncio.Task[None] | None = None

    @property
    def live(self) -> bool:
        """Whether enqueues are heard, as far as can be known."""
        return self._live

    def start(self) -> None:
        """Begin to listen, in a task. What goes wrong there is logged and tried again."""
        self._task = asyncio.create_task(self._run(), name="jobs:listen")

    async def stop(self) -> None:
        """Close the session. Waits a few seconds at most, and not for the server."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait({task}, timeout=_STOP_GRACE)
            del task  # one that was cancelled while it connected keeps the socket
        await self._link.close()

    async def _run(self) -> None:
        backoff = _BACKOFF
        while True:
            try:
                await self._listen()
            except _DeafError:
                pause = _DEAF_PAUSE
                self._say_deaf()
            except Exception as error:  # the loop outlives whatever one session raises
                if self._live:
                    backoff = _BACKOFF
                pause, backoff = backoff, min(backoff * 2, _MAX_BACKOFF)
                self._say_lost(error)
            if self._live:
                self._live = False
                self._ear.trust(False)
            await self._link.close()
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))

    async def _listen(self) -> NoReturn:
        """One session, from its LISTEN to the error that ends it."""
        self._nonce = f"probe {secrets.token_hex(16)}"
        await self._link.call(self._subscribe, _STATEMENT_TIMEOUT)
        await self._prove()
        while True:
            await self._stay(PING_EVERY)

    async def _prove(self) -> None:
        """Have the probe sent, and listen until it has come.

        Raises:
            _DeafError: It was committed and has not come, while the session answers.
            Exception: What sending it raised.
        """
        nonce = self._nonce
        sent = self._ear.errand(lambda conn: notify_probe_async(conn, nonce=nonce))
        deadline = float("inf")
        while not self._live:
            await self._stay(_PROOF_LOOK)
            if not sent.done():
                continue
            if (error := sent.result()) is not None:
                raise error
            deadline = min(deadline, time.monotonic() + PROOF_WITHIN)
            if time.monotonic() > deadline and not self._live:
                await self._link.call(unlisten_wake_async, _STATEMENT_TIMEOUT)
                raise _DeafError

    async def _subscribe(self, conn: AsyncConnection[Any]) -> None:
        # What comes together with the answer to a ping goes this way.
        conn.add_notify_handler(lambda notify: self._take(notify.payload))
        await listen_wake_async(conn)

    async def _stay(self, seconds: float) -> None:
        """Take what comes for so long; after complete silence have the session answer."""
        before = self._heard
        await self._link.call(functools.partial(self._hear, seconds), seconds + _PING_TIMEOUT)
        if self._heard == before:
            await self._link.call(_ping, _PING_TIMEOUT)

    async def _hear(self, seconds: float, conn: AsyncConnection[Any]) -> None:
        pgconn, socket = conn.pgconn, conn.fileno()
        readable = asyncio.Event()
        loop = asyncio.get_running_loop()
        loop.add_reader(socket, readable.set)
        live = self._live
        try:
            async with asyncio.timeout(seconds):
                while self._live == live:  # the proof ends the wait for it
                    while (notify := pgconn.notifies()) is not None:
                        self._take(notify.extra.decode("utf-8", "replace"))
                    await readable.wait()
                    readable.clear()
                    pgconn.consume_input()
        except TimeoutError:
            pass
        finally:
            loop.remove_reader(socket)

    def _take(self, payload: str) -> None:
        self._heard += 1
        if payload != self._nonce:
            if payload == self._cancel_payload:
                self._cancelling()
            self._ear.hear(payload)  # a queue may be called anything
        elif not self._live:
            self._live, self._lost_said = True, False
            self._ear.trust(True)
            self._say(logging.INFO, "wake_live", "%s %s hears enqueues")

    def _say_lost(self, error: Exception) -> None:
        """Once for each time that it is lost, not for each try to have it back."""
        self._say(
            logging.DEBUG if self._lost_said else logging.WARNING,
            "wake_lost",
            "%s %s cannot listen and looks more often meanwhile: %s",
            " ".join(str(error).split()),
            error=None if isinstance(error, _EXPECTED) else error,
        )
        self._lost_said = True

    def _say_deaf(self) -> None:
        self._say(
            logging.DEBUG if self._deaf_said else logging.WARNING,
            "wake_deaf",
            "%s %s listens and hears nothing: a pooler in transaction mode is in between, or "
            "another database at the end. It looks more often instead. Give it a direct "
            "connection string with listen= (--listen-dsn), or say listen=False (--no-listen).",
        )
        self._deaf_said = True

    def _say(
        self, level: int, event: str, text: str, *more: object, error: Exception | None = None
    ) -> None:
        self._logger.log(
            level,
            text,
            self._noun,
            self._name,
            *more,
            exc_info=error,
            extra={"event": f"jobs.{self._noun}.{event}", self._noun: self._name},
        )


async def _ping(conn: AsyncConnection[Any]) -> None:
    """Have the server answer, without a statement."""
    async with conn.pipeline():
        pass  # leaving it sends Sync and waits for the answer
