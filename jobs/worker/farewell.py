"""What a worker that drains tells others: that it drains, what it gave back, that it is gone.

None of it is needed. It is said on the connection that has claimed, once nothing is claimed there
any more, and nobody waits for it longer than a moment.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from typing import Any, Final, NamedTuple

from psycopg import AsyncConnection

from jobs.service.link import Link
from jobs.worker.register import BEAT_EVERY, Registration
from jobs.worker.settler import Settler
from jobs_sql.wake import wake_queue_async

logger = logging.getLogger("jobs.worker")

_LAST_WORDS_SECONDS: Final = 2.0


class Graces(NamedTuple):
    """Seconds of a drain beside its budget.

    Attributes:
        claim: For the claim in flight.
        cancel: For whatever was cancelled to end.
        flush: For outcomes to settle.
        hook: For hooks, where nothing of the budget is left.
    """

    claim: float = 2.0
    cancel: float = 2.0
    flush: float = 5.0
    hook: float = 2.0


GRACE: Final = Graces()


class Farewell:
    """Speaks from the end of the claims to the end of the worker.

    Attributes:
        turn: Held while something is sent on its connection, for which others may have a use.
    """

    def __init__(self, registration: Registration) -> None:
        self.turn = asyncio.Lock()
        self._registration = registration
        self._handed_back: set[str] = set()
        self._news = asyncio.Event()
        self._over = False
        self._task: asyncio.Task[None] | None = None

    def handed_back(self, queue: str) -> None:
        """A job of that queue is ready again at once, for whoever has a slot."""
        self._handed_back.add(queue)
        self._news.set()

    def begin(self, link: Link) -> None:
        """Begin to speak.

        Args:
            link: Used by others in their `turn` only from now on.
        """
        self._task = asyncio.create_task(self._speak(link), name="jobs:farewell")

    async def end(self) -> None:
        """Say that the worker is gone, and be silent. Takes a few seconds at most, never raises."""
        self._over = True
        self._news.set()
        task, self._task = self._task, None
        if task is None:
            return
        await asyncio.wait({task}, timeout=_LAST_WORDS_SECONDS)
        if not task.done():  # the row in the registry expires
            task.cancel()
            await asyncio.wait({task}, timeout=_LAST_WORDS_SECONDS)

    async def _speak(self, link: Link) -> None:
        while True:
            self._news.clear()
            over = self._over
            async with self.turn:
                await self._wake_others(link)
                if over:
                    await self._registration.remove(link, _LAST_WORDS_SECONDS)
                    return
                await self._registration.drain(link)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(BEAT_EVERY):
                    await self._news.wait()

    async def _wake_others(self, link: Link) -> None:
        queues = sorted(self._handed_back)
        self._handed_back.clear()
        if not queues:
            return

        async def wake(conn: AsyncConnection[Any]) -> None:
            for queue in queues:
                await wake_queue_async(conn, queue=queue)

        try:
            await link.call(wake, _LAST_WORDS_SECONDS)
        except Exception as error:  # they are found by looking
            logger.debug("nobody was woken for what was handed back: %s", error)


async def flush(settler: Settler, ends: float, hurry: asyncio.Event, grace: float) -> bool:
    """Wait for the outcomes to be settled; return whether they are.

    As long as runs would have been waited for, so that a database that restarts in the meantime
    costs nothing, and for a moment in any case.

    Args:
        settler: Has the outcomes.
        ends: Monotonic seconds until when runs would have been waited for.
        hurry: Ends that wait.
        grace: Seconds in any case.
    """
    waits = {
        asyncio.create_task(hurry.wait(), name="jobs:hurry"),
        asyncio.create_task(settler.flush(max(0.0, ends - time.monotonic() - grace))),
    }
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()
    return await settler.flush(grace)
