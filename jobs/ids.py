"""Job ids: UUID version 7 (RFC 9562), in the order in which they were made."""

from __future__ import annotations

import os
import struct
import threading
import time
from typing import Any
from uuid import UUID, SafeUUID

# Layout: 48 bits of milliseconds, version, 12 + 30 bits of counter, variant, 32 random bits. The
# counter starts below 2^41 in each millisecond, so it has at least 2^41 steps before it overflows.
_COUNTER_START_BITS = 41
_COUNTER_END = 1 << 42
_NOISE_AT_ONCE = 64
_VERSION_7 = 0x7 << 76
_VARIANT_RFC = 0b10 << 62
_LOW_END = 1 << 30  # of the part of the counter that stands below the variant

# What `UUID(int=...)` does without its checks, which take longer than all else an id takes.
_UUID_FIELDS: Any = UUID.__dict__
_set_int = _UUID_FIELDS["int"].__set__
_set_safe = _UUID_FIELDS["is_safe"].__set__


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

    def many(self, count: int) -> list[UUID]:
        """Return so many new UUIDs in growing order, greater than all before them.

        The same as so many calls, at a fifth of the price: they share a look at the clock.
        """
        made: list[UUID] = []
        while len(made) < count:
            made += self._run(count - len(made))
        return made

    def _run(self, longest: int) -> list[UUID]:
        """Return at least one id and at most ``longest``, which differ below the variant only."""
        with self._lock:
            now = time.time_ns() // 1_000_000
            first = self._counter + 1
            if now > self._milliseconds or first >= _COUNTER_END:
                self._milliseconds = max(now, self._milliseconds + 1)
                first = int.from_bytes(os.urandom(8)) >> (64 - _COUNTER_START_BITS)
            count = min(longest, _LOW_END - (first & (_LOW_END - 1)))
            self._counter = first + count - 1
            milliseconds = self._milliseconds
        head = milliseconds << 80 | _VERSION_7 | first >> 30 << 64 | _VARIANT_RFC
        low = (first & (_LOW_END - 1)) << 32
        unknown = SafeUUID.unknown
        made: list[UUID] = []
        for noise in struct.unpack(f"={count}I", os.urandom(4 * count)):
            id = object.__new__(UUID)
            _set_int(id, head | low | noise)
            _set_safe(id, unknown)
            made.append(id)
            low += 1 << 32
        return made


uuid7 = Generator()

if hasattr(os, "register_at_fork"):
    # The child must neither repeat the parent's numbers nor inherit a lock that a thread of the
    # parent held at that moment.
    os.register_at_fork(after_in_child=uuid7.reset)
