"""Settings of a worker, validated once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta

from jobs.errors import ClaimQueuesEmpty, ConfigError
from jobs.payload import plain_text
from jobs.service.settings import check_duration, check_name, default_name
from jobs.worker.limits import Limits

DEFAULT_QUEUE = "default"
DEFAULT_SLOTS = 5
MAX_SLOTS = 10_000
# Longest wait of an idle worker that cannot hear enqueues, and of one that can.
IDLE_POLL = timedelta(seconds=2)
LIVE_POLL = timedelta(seconds=5)


@dataclass(frozen=True, slots=True)
class WorkerConfig:
    """Numbers of one worker process.

    Attributes:
        name: Label of the process in rows and logs. Need not be unique: fencing tokens carry the
            authority.
        queues: Slots for each queue.
        lease: How long a claim lasts without a renewal.
        poll: First wait after a claim that found nothing.
        idle_poll: Longest wait while idle.
        live_poll: The same while enqueues are heard.
        drain: How long a stop waits for running jobs before it cancels them.
        limits: What the process may do at once beside its slots.
        own_name: Whether the name is this start's alone, because it was made for it.
        unknown_delay: How long a job of a name that is not registered waits for another process.
    """

    name: str
    queues: dict[str, int]
    lease: timedelta
    poll: timedelta
    idle_poll: timedelta
    live_poll: timedelta
    drain: timedelta
    limits: Limits
    own_name: bool = False
    unknown_delay: timedelta = timedelta(seconds=30)

    @property
    def renew_every(self) -> float:
        """Seconds between renewals: a third of the lease, so that two may fail."""
        return self.lease.total_seconds() / 3


def configure(
    *,
    name: str | None,
    queues: Mapping[str, int] | Iterable[str] | None,
    lease: timedelta,
    poll: timedelta,
    idle_poll: timedelta | None,
    drain: timedelta,
    limits: Limits | None = None,
) -> WorkerConfig:
    """Check the settings of a worker.

    Raises:
        ConfigError: One of them is unusable; the message names it.
        ClaimQueuesEmpty: No queue has a slot.
    """
    if name is not None:
        check_name("name", name)
    check_duration("lease", lease, timedelta(seconds=1), timedelta(days=1))
    check_duration("poll", poll, timedelta(milliseconds=1), timedelta(hours=1))
    if idle_poll is not None:
        check_duration("idle_poll", idle_poll, poll, timedelta(hours=1))
    if limits is not None and not isinstance(limits, Limits):
        raise ConfigError(
            f"limits is {limits!r:.200}, expected a jobs.Limits",
            fix="Write for example limits=jobs.Limits(per_tenant=10).",
        )
    check_duration("drain", drain, timedelta(0), timedelta(days=1))
    return WorkerConfig(
        name=default_name() if name is None else plain_text(name),
        queues=_slots(queues),
        lease=lease,
        poll=poll,
        idle_poll=idle_poll or max(poll, IDLE_POLL),
        live_poll=idle_poll or max(poll, LIVE_POLL),
        drain=drain,
        limits=limits or Limits(),
        own_name=name is None,
    )


def _slots(queues: Mapping[str, int] | Iterable[str] | None) -> dict[str, int]:
    if queues is None:
        return {DEFAULT_QUEUE: DEFAULT_SLOTS}
    if isinstance(queues, str):
        raise ConfigError(
            f"queues is the text {queues!r}, expected a mapping or a list of names",
            fix=f"Write queues=[{queues!r}] or queues={{{queues!r}: 5}}.",
        )
    if not isinstance(queues, Iterable):
        raise ConfigError(f"queues is {queues!r:.200}, expected a mapping or a list of names")
    named = dict(queues) if isinstance(queues, Mapping) else dict.fromkeys(queues, DEFAULT_SLOTS)
    for queue, slots in named.items():
        check_name("queue name", queue)
        if isinstance(slots, bool) or not isinstance(slots, int) or not 0 <= slots <= MAX_SLOTS:
            raise ConfigError(
                f"queue {queue!r} has {slots!r} slots, expected a whole number up to {MAX_SLOTS}"
            )
    served = {plain_text(queue): slots for queue, slots in named.items() if slots}
    if not served:
        raise ClaimQueuesEmpty("no queue has a slot")
    return served
