"""Job ids: UUID version 7 (RFC 9562), in the order in which they were made."""

from __future__ import annotations

import os
import threading
import time
from uuid import UUID

# Layout: 48 bits of milliseconds, version, 12 + 30 bits of counter, variant, 32 random bits. The
# counter starts below 2^41 in each millisecond, so it has at least 2^41 steps before it overflows.
_COUNTER_START_BITS = 41
_COUNTER_END = 1 << 42
_NOISE_AT_ONCE = 64
_VERSION_7 = 0x7 << 76
_VARIANT_RFC = 0b10 << 62


class Generator:
    """Makes UUIDs of version 7 that only ever grow, whatever the clock does.

    One is enough for a process: it may be used from any thread and from a signal handler, and a
    forked child goes on with numbers of its own. (``uuid.uuid7`` of Python 3.14 takes no lock, so
    it promises no order across threads.)
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget the past: the next id starts from the clock and fresh random bits."""
        self._lock = threading.RLock()  # re-entrant, for a signal handler that enqueues
        self._milliseconds = 0
        self._counter = _COUNTER_END
        self._noise: list[int] = []

    def __call__(self) -> UUID:
        """Return a new UUID, greater than all before it."""
        with self._lock:
            try:
                noise = self._noise.pop()
            except IndexError:
                # One call of the system for many ids: each costs as much as the rest of an id.
                pool = os.urandom(10 * _NOISE_AT_ONCE)
                fresh = [int.from_bytes(pool[i : i + 10]) for i in range(0, len(pool), 10)]
                noise = fresh.pop()
                self._noise = fresh
            now = time.time_ns() // 1_000_000
            counter = self._counter + 1
            if now > self._milliseconds:
                self._milliseconds = now
                counter = noise >> (80 - _COUNTER_START_BITS)
            elif counter >= _COUNTER_END:
                self._milliseconds += 1
                counter = noise >> (80 - _COUNTER_START_BITS)
            self._counter = counter
            milliseconds = self._milliseconds
        return UUID(
            int=milliseconds << 80
            | _VERSION_7
            | counter >> 30 << 64
            | _VARIANT_RFC
            | (counter & 0x3FFF_FFFF) << 32
            | noise & 0xFFFF_FFFF
        )


uuid7 = Generator()

if hasattr(os, "register_at_fork"):
    # The child must neither repeat the parent's numbers nor inherit a lock that a thread of the
    # parent held at that moment.
    os.register_at_fork(after_in_child=uuid7.reset)
