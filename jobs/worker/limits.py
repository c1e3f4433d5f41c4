"""Limits of one process: how many jobs at once, of all, of a queue, of a tenant, and how fast.

They narrow what a claim asks for. Nothing is ever claimed to be handed back because of them. They
know nothing of other processes: twice as many workers run twice as much.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Final, NamedTuple

from jobs.errors import ConfigError

MOST_TENANTS: Final = 20_000
"""Tenants whose pace, and whose refusals, are remembered at most."""

SWEEP_EVERY: Final = 60.0
"""Seconds between two sweeps of what is remembered."""

REFUSAL_LIFE: Final = 60.0
"""Seconds that a tenant counts as held back after it last was."""

UNBOUNDED: Final = 1_000_000
"""Room of a tenant without a limit: more than a claim ever asks for."""

_MOST: Final = 1_000_000.0
# A share of what is remembered that is evicted at once, so that not every job looks for one.
_EVICTED: Final = 0.1
# Tokens are sums of fractions.
_NEARLY: Final = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one worker process may do at the same time, beside the slots of its queues.

    Each number holds for this process alone: n processes together do n times as much. For a limit
    across the fleet use ``concurrency`` on the declaration. None is no limit, zero stops: nothing
    that it counts is claimed.

    Attributes:
        per_tenant: Jobs of one tenant at once. Jobs without a tenant are not counted. With this or
            a rate the tenants of a queue take turns, see docs/fairness.md.
        per_queue: Jobs of one queue at once, if that is less than its slots.
        total: Jobs of all queues at once.
        rate_per_tenant: Starts of one tenant's jobs a second, in the long run; 0.1 is six a minute.
        burst_per_tenant: Starts that a tenant may make up for in one go. Default: what the rate
            gives in a second, and at least one.
    """

    per_tenant: int | None = None
    per_queue: int | None = None
    total: int | None = None
    rate_per_tenant: float | None = None
    burst_per_tenant: int | None = None

    def __post_init__(self) -> None:
        """
        Raises:
            ConfigError: A number is negative, not finite, too large, or no number.
        """
        for field in fields(self):
            value = getattr(self, field.name)
            if value is None:
                continue
            whole = field.name != "rate_per_tenant"
            kinds = int if whole else int | float
            if (
                isinstance(value, bool)
                or not isinstance(value, kinds)
                or not math.isfinite(value)
                or not 0 <= value <= _MOST
            ):
                kind = "a whole number" if whole else "a finite number"
                raise ConfigError(
                    f"limits.{field.name} is {value!r:.100}, expected {kind} from 0 to {_MOST:,.0f}"
                )
        if self.burst_per_tenant is not None and self.rate_per_tenant is None:
            raise ConfigError(
                "limits.burst_per_tenant is set without rate_per_tenant",
                fix="Give the rate that refills the burst, or limit with per_tenant.",
            )

    @property
    def by_tenant(self) -> bool:
        """Whether claims have to tell tenants apart."""
        return self.per_tenant is not None or self.rate_per_tenant is not None

    @property
    def burst(self) -> int:
        """Starts of a tenant that has been quiet; 0 where the rate is zero."""
        if not self.rate_per_tenant:
            return 0
        if self.burst_per_tenant is not None:
            return self.burst_per_tenant
        return max(1, math.ceil(self.rate_per_tenant))


class TenantRoom(NamedTuple):
    """How many jobs of each tenant may be claimed now.

    Attributes:
        default: Of every tenant that is not listed.
        tenants: Those with less room, in no order.
        rooms: Theirs, in the same order; 0 for one that is full or too fast.
    """

    default: int
    tenants: list[str]
    rooms: list[int]


class Grant:
    """One job counted against the limits, until it is released or abandoned, which may be repeated.

    Attributes:
        queue: Its queue.
        tenant: Its tenant; empty for none.
    """

    __slots__ = ("_limiter", "_stamped", "queue", "tenant")

    def __init__(self, limiter: Limiter, queue: str, tenant: str, stamped: bool) -> None:
        self._limiter: Limiter | None = limiter
        self._stamped = stamped
        self.queue = queue
        self.tenant = tenant

    def release(self) -> bool:
        """The job has ended, or is not ours any more. Does nothing the second time.

        Returns:
            Whether a limit that was reached is not reached any more, so that a claim is worth it.
        """
        return self._end(False)

    def abandon(self) -> bool:
        """The job was never started: take back that it was, its mark against the rate as well.

        Does nothing after a release, or the second time. Returns what `release` returns.
        """
        return self._end(True)

    def _end(self, take_back: bool) -> bool:
        limiter, self._limiter = self._limiter, None
        if limiter is None:
            return False
        return limiter._end(self.queue, self.tenant, take_back and self._stamped)


class _Bucket:
    """Starts that a tenant may still make: so many at a time, refilled at the rate."""

    __slots__ = ("at", "tokens")

    def __init__(self, tokens: float, at: float) -> None:
        self.tokens = tokens
        self.at = at


class Limiter:
    """The counts of one process against its `Limits`. Used in the event loop only.

    Times are monotonic seconds.
    """

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._held = 0
        self._queues: Counter[str] = Counter()
        self._tenants: Counter[str] = Counter()
        self._buckets: dict[str, _Bucket] = {}
        self._refused: dict[str, float] = {}
        self._swept_at = float("-inf")
        self._first = 0

    # -- before a claim --------------------------------------------------------------------------

    def shrink(self, room: Mapping[str, int]) -> dict[str, int]:
        """Cut what a claim wants to what the limits of queues and of all jobs leave.

        Where all together want more than is left they get equal parts, and another queue is served
        first each time.

        Args:
            room: Wanted of each queue, at least one each.

        Returns:
            The queues that get something.
        """
        limits = self.limits
        wanted = dict(room)
        if limits.per_queue is not None:
            wanted = {
                queue: min(count, limits.per_queue - self._queues.get(queue, 0))
                for queue, count in room.items()
            }
            wanted = {queue: count for queue, count in wanted.items() if count > 0}
        if limits.total is None or sum(wanted.values()) <= (left := limits.total - self._held):
            return wanted
        if not wanted:
            return {}
        self._first += 1
        queues = list(wanted)
        turn = self._first % len(queues)
        queues = queues[turn:] + queues[:turn]
        given = dict.fromkeys(queues, 0)
        left = max(0, left)
        while left > 0:
            open_ones = [queue for queue in queues if given[queue] < wanted[queue]]
            for after, queue in enumerate(open_ones):
                share = max(1, left // (len(open_ones) - after))
                part = min(share, wanted[queue] - given[queue], left)
                given[queue] += part
                left -= part
        return {queue: count for queue, count in given.items() if count}

    def tenant_room(self, now: float) -> TenantRoom | None:
        """What a claim made now may take of each tenant; None where tenants have no limit."""
        limits = self.limits
        if not limits.by_tenant:
            return None
        self._sweep(now)
        default = self._most()
        tenants: list[str] = []
        rooms: list[int] = []
        for tenant in [*self._buckets, *(t for t in self._tenants if t not in self._buckets)]:
            room = self._room(tenant, now)
            if room >= default:
                continue
            tenants.append(tenant)
            rooms.append(room)
            if not room:
                self._refuse(tenant, now)
        return TenantRoom(default, tenants, rooms)

    def next_at(self, now: float) -> float | None:
        """When the first tenant that is too fast now may start another job, if any is."""
        rate = self.limits.rate_per_tenant
        if not rate or not self.limits.burst:
            return None
        waits = [
            (1 - bucket.tokens) / rate - (now - bucket.at)
            for tenant, bucket in self._buckets.items()
            if not self._full(tenant)
        ]
        waits = [wait for wait in waits if wait > _NEARLY]
        return now + min(waits) if waits else None

    # -- the life of a job -----------------------------------------------------------------------

    def admit(self, queue: str, tenant: str, now: float) -> Grant:
        """Count a claimed job. Never refuses: what was claimed is run."""
        self._held += 1
        if self.limits.per_queue is not None:
            self._queues[queue] += 1
        stamped = False
        if tenant:
            if self.limits.per_tenant is not None:
                self._tenants[tenant] += 1
            if self.limits.rate_per_tenant:
                stamped = True
                self._bucket(tenant, now).tokens -= 1
        return Grant(self, queue, tenant, stamped)

    def _end(self, queue: str, tenant: str, take_back: bool) -> bool:
        limits = self.limits
        reached = limits.total is not None and self._held >= limits.total
        self._held -= 1
        if limits.per_queue is not None:
            reached = reached or self._queues[queue] >= limits.per_queue
            _less(self._queues, queue)
        if tenant:
            if limits.per_tenant is not None:
                reached = reached or self._full(tenant)
                _less(self._tenants, tenant)
            bucket = self._buckets.get(tenant)
            if take_back and bucket is not None:  # one that was evicted is full already
                reached = reached or bucket.tokens < 1
                bucket.tokens = min(bucket.tokens + 1, float(limits.burst))
        return reached

    # -- what is known ---------------------------------------------------------------------------

    @property
    def held(self) -> int:
        """Jobs that are counted."""
        return self._held

    @property
    def stops_tenants(self) -> bool:
        """Whether no job of any tenant may start."""
        return self.limits.by_tenant and self._most() == 0

    @property
    def tenants_counted(self) -> int:
        """Tenants that hold a job."""
        return len(self._tenants)

    @property
    def tenants_paced(self) -> int:
        """Tenants whose pace is remembered."""
        return len(self._buckets)

    @property
    def tenants_refused(self) -> int:
        """Tenants that were left out of a claim lately because they were full or too fast."""
        return len(self._refused)

    # -- inner -----------------------------------------------------------------------------------

    def _most(self) -> int:
        """Room of a tenant that has done nothing lately."""
        limits = self.limits
        most = UNBOUNDED if limits.per_tenant is None else limits.per_tenant
        return most if limits.rate_per_tenant is None else min(most, limits.burst)

    def _full(self, tenant: str) -> bool:
        most = self.limits.per_tenant
        return most is not None and self._tenants.get(tenant, 0) >= most

    def _room(self, tenant: str, now: float) -> int:
        limits = self.limits
        room = UNBOUNDED
        if limits.per_tenant is not None:
            room = limits.per_tenant - self._tenants.get(tenant, 0)
        if limits.rate_per_tenant is not None:
            bucket = self._buckets.get(tenant)
            if bucket is None:
                room = min(room, limits.burst)
            else:
                self._refill(bucket, now)
                room = min(room, math.floor(bucket.tokens + _NEARLY))
        return max(0, room)

    def _bucket(self, tenant: str, now: float) -> _Bucket:
        bucket = self._buckets.get(tenant)
        if bucket is None:
            if len(self._buckets) >= MOST_TENANTS:
                self._make_place(now)
            bucket = self._buckets[tenant] = _Bucket(float(self.limits.burst), now)
        else:
            self._refill(bucket, now)
        return bucket

    def _refill(self, bucket: _Bucket, now: float) -> None:
        rate = self.limits.rate_per_tenant or 0.0
        bucket.tokens = min(
            float(self.limits.burst), bucket.tokens + max(0.0, now - bucket.at) * rate
        )
        bucket.at = now

    def _refuse(self, tenant: str, now: float) -> None:
        self._refused.pop(tenant, None)  # those held back last are at the end
        if len(self._refused) >= MOST_TENANTS:
            for old in list(self._refused)[: int(MOST_TENANTS * _EVICTED)]:
                del self._refused[old]
        self._refused[tenant] = now

    def _make_place(self, now: float) -> None:
        """Forget those that lose least by it: the least throttled first."""
        for bucket in self._buckets.values():
            self._refill(bucket, now)
        by_tokens = sorted(self._buckets, key=lambda t: self._buckets[t].tokens, reverse=True)
        for tenant in by_tokens[: int(MOST_TENANTS * _EVICTED)]:
            del self._buckets[tenant]

    def _sweep(self, now: float) -> None:
        """Forget what says nothing any more, at most once a minute."""
        if now - self._swept_at < SWEEP_EVERY:
            return
        self._swept_at = now
        for tenant, bucket in list(self._buckets.items()):
            self._refill(bucket, now)
            if bucket.tokens >= self.limits.burst - _NEARLY:
                del self._buckets[tenant]
        for tenant, at in list(self._refused.items()):
            if now - at >= REFUSAL_LIFE:
                del self._refused[tenant]


def _less(counter: Counter[str], key: str) -> None:
    """Count one down; nothing is kept at zero."""
    if counter[key] > 1:
        counter[key] -= 1
    else:
        del counter[key]
