"""Statements that a loop sends for others on its own connection, between two of its own."""

from __future__ import annotations

import asyncio
from collections import deque

from jobs.service.link import Link
from jobs.service.listener import Errand


class Errands:
    """What is to be sent, in order."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[Errand, asyncio.Future[Exception | None]]] = deque()

    def add(self, errand: Errand) -> asyncio.Future[Exception | None]:
        """Have a statement sent.

        Returns:
            None when it has been answered, or what it raised.
        """
        answer: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
        self._waiting.append((errand, answer))
        return answer

    async def run(self, link: Link, seconds: float) -> None:
        """Send what waits, each with a deadline. Never raises."""
        while self._waiting:
            errand, answer = self._waiting.popleft()
            failure: Exception | None = None
            try:
                await link.call(errand, seconds)
            except Exception as error:  # no reason for the loop to end
                failure = error
            if not answer.done():
                answer.set_result(failure)
