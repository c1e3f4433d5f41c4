"""The relay: start, publish, and stop without a batch in between."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Literal

from jobs.errors import ConfigError
from jobs.messages import Sink
from jobs.relay.config import configure
from jobs.relay.publisher import Publisher, cancelled_from_within
from jobs.relay.queue import QueueSink
from jobs.relay.stats import RelayStats
from jobs.service.life import Service
from jobs.service.link import Link, Target, close_links, open_links
from jobs.service.listener import Listener, listening_target

logger = logging.getLogger("jobs.relay")

# Seconds for whatever was cancelled, and for a sink to close.
CANCEL_GRACE = 2.0
SINK_GRACE = 5.0


class Relay(Service):
    """Publishes what was staged in the outbox of a database, after the commit and in order.

    In an application, on its event loop::

        async with jobs.Relay(orders_dsn, queue_dsn):
            ...                                     # serves until the block ends, then drains

    As a process of its own: ``await relay.run()`` serves until SIGTERM or SIGINT.

    Any number may run at once: one of them has the lease and publishes, the others wait for it.
    A relay opens its own connections: one to the outbox, one that listens for stages, and one to
    the queue where that is in another database.
    """

    noun = "relay"

    def __init__(
        self,
        outbox: object,
        to: object = None,
        *,
        name: str | None = None,
        batch: int = 100,
        interval: timedelta = timedelta(milliseconds=200),
        idle_poll: timedelta | None = None,
        lease: timedelta = timedelta(seconds=30),
        drain: timedelta = timedelta(seconds=10),
        keep: timedelta | None = timedelta(days=7),
        park_after: int | None = 10,
        listen: Literal[False] | str = "auto",
    ) -> None:
        """
        Args:
            outbox: The database with the outbox: a connection string, or a psycopg pool whose
                connection string is used.
            to: Where to publish: the database of the queue, in the same form, or a `Sink`. By
                default the queue of the outbox's own database.
            name: Label in rows and logs. Default: host, process id and a random part.
            batch: Most rows published at a time, 1 to 10,000.
            interval: First wait after a look that found nothing; doubles up to ``idle_poll``.
            idle_poll: Longest wait between two looks at an empty outbox. Default: 2 s, or 5 s while
                it is proven that stages are heard.
            lease: How long the lease lasts, renewed with the batches. The publish of a batch may
                take a third of it. Rows of a relay that dies are published by another after at
                most this long plus one look.
            drain: How long a stop waits for the batch in flight before it is cancelled.
            keep: How long published rows are kept for audit, None for ever.
            park_after: After how many refusals a row is set aside, so that those behind it go on;
                None for never. Trouble that is not the row's own is no refusal.
            listen: Whether to listen for stages, and where: ``"auto"`` where ``outbox`` is, a
                connection string (a direct one, where ``outbox`` leads to a pooler), or False.

        Raises:
            ConfigError: A setting is unusable; the message names it.
        """
        self.config = configure(
            name=name,
            batch=batch,
            interval=interval,
            idle_poll=idle_poll,
            lease=lease,
            drain=drain,
            keep=keep,
            park_after=park_after,
        )
        super().__init__(self.config.name)
        shown = f"jobs:{self.name}"[:63]
        self._target = Target.of(outbox, shown)
        self._listen_target = listening_target(listen, self._target, shown)
        self._sink = self._read_sink(to, shown)
        self._stats = RelayStats(self.name)
        self._until_idle = False
        self._listener: Listener | None = None

    def _read_sink(self, to: object, shown: str) -> Sink | None:
        if to is None:
            return None
        if isinstance(to, Sink):
            return to
        try:
            target = Target.of(to, shown)
        except ConfigError as error:
            raise ConfigError(
                f"to: {error.cause}",
                fix="Pass a connection string, a psycopg pool or a sink, or leave it away.",
            ) from error
        if target.conninfo == self._target.conninfo:
            return None
        return QueueSink(target, self.config.step)

    # -- life ------------------------------------------------------------------------------------

    def _to_open(self) -> Sequence[Link]:
        outbox = Link(self._target)
        return (outbox, self._sink.link) if isinstance(self._sink, QueueSink) else (outbox,)

    async def _open(self, links: Sequence[Link]) -> bool:
        sinks = () if self._sink is None else (self._sink.open,)
        return await open_links(links, self._stopping, sinks)

    async def _abort(self, links: Sequence[Link]) -> None:
        await super()._abort(links)
        await self._close_sink()

    def _begin(self, links: Sequence[Link]) -> None:
        self._links = links
        self._publisher = Publisher(links[0], self.config, self._sink, self._stats, self._idle)
        self._task = asyncio.create_task(self._publisher.run(), name="jobs:publish")
        if self._listen_target is not None and not self._until_idle:
            self._listener = Listener(self._listen_target, self._publisher, self.name, self.noun)
            self._listener.start()

    def _say_started(self) -> None:
        logger.info(
            "relay %s serves, to %s",
            self.name,
            "the queue beside the outbox" if self._sink is None else type(self._sink).__name__,
            extra={"event": "jobs.relay.started", "relay": self.name},
        )

    async def run(self, *, until_idle: bool = False, signals: bool = True) -> None:
        """Start, serve until stopped, drain.

        Args:
            until_idle: Stop by itself when nothing is left that can be published now.
            signals: Whether SIGTERM and SIGINT ask for a stop, and a second one hurries it. Only
                possible in the main thread.

        Raises as `start`. When it is cancelled it ends the batch in flight and closes first.
        """
        self._until_idle = until_idle
        await super().run(signals=signals)

    async def run_until_idle(self) -> RelayStats:
        """Publish what is there, and say what was done: for tests and scripts.

        As `run` with ``until_idle``, without signals.
        """
        await self.run(until_idle=True, signals=False)
        return self.stats()

    def stats(self) -> RelayStats:
        """A copy of the figures so far."""
        return replace(self._stats, state=self._state)

    def _idle(self) -> None:
        if self._until_idle and not self._stopping.is_set():
            self.stop()

    # -- stopping --------------------------------------------------------------------------------

    def _halt(self) -> None:
        self._publisher.stop()

    async def _drain(self) -> None:
        """The batch in flight is published and marked; then the lease is given up."""
        logger.info(
            "relay %s drains",
            self.name,
            extra={"event": "jobs.relay.draining", "relay": self.name},
        )
        hurried = asyncio.create_task(self._hurrying.wait(), name="jobs:hurry")
        await asyncio.wait(
            {self._task, hurried},
            timeout=self.config.drain.total_seconds(),
            return_when=asyncio.FIRST_COMPLETED,
        )
        hurried.cancel()
        if not self._task.done():
            logger.warning(
                "relay %s gives up the batch in flight: it will be published again, under the "
                "same ids",
                self.name,
                extra={"event": "jobs.relay.interrupted", "relay": self.name},
            )
            await self._publisher.interrupt(CANCEL_GRACE)
            self._task.cancel()
            await asyncio.wait({self._task}, timeout=CANCEL_GRACE)
        await self._publisher.release()

    async def _close(self) -> None:
        self._task.cancel()
        await asyncio.wait({self._task}, timeout=CANCEL_GRACE)
        if self._listener is not None:
            await self._listener.stop()
        await close_links(self._links)
        await self._close_sink()

    async def _close_sink(self) -> None:
        if self._sink is None:
            return
        try:
            async with asyncio.timeout(SINK_GRACE):
                await self._sink.close()
        except (Exception, asyncio.CancelledError) as error:  # of a broker, say
            if isinstance(error, asyncio.CancelledError) and not cancelled_from_within():
                raise
            logger.exception(
                "relay %s: the sink did not close",
                self.name,
                extra={"event": "jobs.relay.sink_unclosed", "relay": self.name},
            )

    def _say_stopped(self) -> None:
        stats = self._stats
        logger.info(
            "relay %s has stopped: %d published, %d refusals, %d set aside",
            self.name,
            stats.published,
            stats.refused,
            stats.parked,
            extra={"event": "jobs.relay.stopped", "relay": self.name},
        )
