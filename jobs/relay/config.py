"""Settings of a relay, validated once."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from jobs.service.settings import check_count, check_duration, check_name, default_name

# Longest wait of an idle relay that cannot hear stages, and of one that can.
IDLE_POLL = timedelta(seconds=2)
LIVE_POLL = timedelta(seconds=5)


@dataclass(frozen=True, slots=True)
class RelayConfig:
    """Numbers of one relay.

    Attributes:
        name: Label in rows and logs. Need not be unique: the fencing token carries the authority.
        batch: Most rows published at a time.
        interval: First wait after a look that found nothing.
        idle_poll: Longest wait while idle.
        live_poll: The same while stages are heard.
        lease: How long the lease lasts.
        drain: How long a stop waits for the batch in flight.
        keep: How long published rows are kept, None for ever.
        park_after: Refusals after which a row is set aside, None for never.
    """

    name: str
    batch: int
    interval: timedelta
    idle_poll: timedelta
    live_poll: timedelta
    lease: timedelta
    drain: timedelta
    keep: timedelta | None
    park_after: int | None

    @property
    def step(self) -> float:
        """Seconds that the publish of a batch, and its mark, may take each.

        A third of the lease: two thirds of it are left at least when a batch is claimed.
        """
        return self.lease.total_seconds() / 3


def configure(
    *,
    name: str | None,
    batch: int,
    interval: timedelta,
    idle_poll: timedelta | None,
    lease: timedelta,
    drain: timedelta,
    keep: timedelta | None,
    park_after: int | None,
) -> RelayConfig:
    """Check the settings of a relay. Raises ConfigError; the message names the setting."""
    if name is not None:
        check_name("name", name)
    check_count("batch", batch, 1, 10_000)
    check_duration("interval", interval, timedelta(milliseconds=1), timedelta(hours=1))
    if idle_poll is not None:
        check_duration("idle_poll", idle_poll, interval, timedelta(hours=1))
    check_duration("lease", lease, timedelta(seconds=1), timedelta(days=1))
    check_duration("drain", drain, timedelta(0), timedelta(days=1))
    if keep is not None:
        check_duration("keep", keep, timedelta(0), timedelta(days=3650))
    if park_after is not None:
        check_count("park_after", park_after, 1, 1_000_000)
    return RelayConfig(
        name=name or default_name(),
        batch=batch,
        interval=interval,
        idle_poll=idle_poll or max(interval, IDLE_POLL),
        live_poll=idle_poll or max(interval, LIVE_POLL),
        lease=lease,
        drain=drain,
        keep=keep,
        park_after=park_after,
    )
