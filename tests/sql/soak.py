"""Many sessions at once for a while: threads that loop until the time is over."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeAlias

import psycopg
from psycopg import Connection

Step: TypeAlias = Callable[[Connection[Any], random.Random], object]


def soak(dsn: str, seconds: float, steps: list[Step], seed: int = 1) -> list[int]:
    """Run each step in a loop, in a thread and session of its own, for a time.

    How often each was run. The first exception of any of them ends all, and is raised.
    """
    stop = threading.Event()
    deadline = time.monotonic() + seconds

    def loop(number: int, step: Step) -> int:
        rounds = 0
        chance = random.Random(f"{seed}.{number}")
        try:
            with psycopg.connect(dsn, autocommit=True) as conn:
                while time.monotonic() < deadline and not stop.is_set():
                    step(conn, chance)
                    rounds += 1
        except BaseException:
            stop.set()
            raise
        return rounds

    with ThreadPoolExecutor(len(steps)) as threads:
        futures = [threads.submit(loop, number, step) for number, step in enumerate(steps)]
    return [future.result() for future in futures]


class Tokens:
    """What the runners of a soak hold right now, shared by its threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: dict[Any, str] = {}

    def add(self, held: Any, worker: str) -> None:
        """Remember a token and the name of its worker."""
        with self._lock:
            self._held[held] = worker

    def drop(self, held: Any) -> None:
        """Forget a token, whoever else may have done so before."""
        with self._lock:
            self._held.pop(held, None)

    def sample(self, worker: str, count: int, chance: random.Random) -> list[Any]:
        """Some of a worker's tokens, in random order."""
        with self._lock:
            mine = [held for held, owner in self._held.items() if owner == worker]
        return chance.sample(mine, min(count, len(mine)))
