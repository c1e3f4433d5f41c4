"""The loop of a relay: claim a batch under the lease, publish it, mark it, again and again."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from random import uniform
from typing import Any, Final

import psycopg
from psycopg import AsyncConnection

from jobs.errors import JobsError, LeaseLost
from jobs.messages import Message, Outcome, Published, Sink
from jobs.relay.config import RelayConfig
from jobs.relay.queue import insert, publish
from jobs.relay.stats import RelayStats
from jobs.service.errands import Errands
from jobs.service.link import Link
from jobs.service.listener import Errand
from jobs.service.pace import Pace
from jobs.texts import escaped, text_of
from jobs_sql.outbox import (
    ClaimOutboxRow,
    claim_outbox_async,
    mark_outbox_async,
    note_outbox_failure_async,
    prune_outbox_async,
    release_outbox_async,
)
from jobs_sql.wake import prune_wakes_async

logger = logging.getLogger("jobs.relay")

TOPIC: Final = ""
"""What a stage wakes relays with: no queue is called so."""

TIMEOUT: Final = 15.0
_RELEASE_TIMEOUT: Final = 2.0
_ERROR_LIMIT: Final = 2_000
# Seconds before a refused row is tried again: the first, and the longest.
_REFUSED_PAUSE: Final = 1.0
_LONGEST_PAUSE: Final = 60.0
# Seconds between two prunings, and how many rows one may remove.
_PRUNE_EVERY: Final = 60.0
_PRUNE_LIMIT: Final = 1_000
_EXPECTED: Final = (psycopg.OperationalError, TimeoutError, OSError, JobsError)
# What may come of too many rows at once, or of too large ones: fewer are tried next.
_TOO_MUCH: Final = (psycopg.OperationalError, TimeoutError, MemoryError)


class Publisher:
    """One loop over one connection to the outbox.

    It holds the lease for as long as there is something to publish, so that no other relay
    publishes meanwhile. Whatever it writes is fenced by the token of that lease.
    """

    def __init__(
        self,
        link: Link,
        config: RelayConfig,
        sink: Sink | None,
        stats: RelayStats,
        idle: Callable[[], None],
    ) -> None:
        """
        Args:
            link: Connection of this loop alone, to the outbox.
            config: Settings of the relay.
            sink: Where to publish; None for the queue of the same database.
            stats: Kept up to date.
            idle: Called when a look found nothing that could be published now.
        """
        self._link = link
        self._config = config
        self._sink = sink
        self._stats = stats
        self._idle = idle
        self._pace = Pace(config.interval.total_seconds(), config.idle_poll.total_seconds())
        self._prune_at = time.monotonic() + uniform(0, _PRUNE_EVERY)
        self._token = 0
        self._fit = config.batch  # as many as are published in good time
        self._held_back = False
        self._noted: tuple[Any, str] | None = None
        self._errands = Errands()
        self._woken = asyncio.Event()
        self._stopping = False

    # -- what a listener says --------------------------------------------------------------------

    def hear(self, queue: str) -> None:
        """Something was staged, or enqueued, which is no concern of ours."""
        if queue == TOPIC:
            self._pace.heard()
            self._woken.set()

    def trust(self, live: bool) -> None:
        """Stages are heard from now on, so that looks may be rarer; or they are not."""
        config = self._config
        self._pace.ceiling = (config.live_poll if live else config.idle_poll).total_seconds()
        if not live:
            self._pace.heard()
            self._woken.set()

    def errand(self, errand: Errand) -> asyncio.Future[Exception | None]:
        """Send a statement before the next claim, which is made now; see `Errands.add`."""
        answer = self._errands.add(errand)
        self._woken.set()
        return answer

    # -- life ------------------------------------------------------------------------------------

    def stop(self) -> None:
        """Claim nothing more; `run` returns when the batch in flight is published and marked."""
        self._stopping = True
        self._woken.set()

    async def interrupt(self, grace: float) -> None:
        """Cancel the statement in flight on the server."""
        await self._link.interrupt(grace)

    async def release(self) -> None:
        """Give up the lease, so that another relay need not wait for its end. Never raises."""
        if not self._stats.leading:
            return
        token = self._token
        with contextlib.suppress(psycopg.Error, OSError, TimeoutError, JobsError):
            await self._link.call(
                lambda conn: release_outbox_async(conn, token=token), _RELEASE_TIMEOUT
            )
        self._stats.leading = False

    async def run(self) -> None:
        """Publish until stopped. Never raises."""
        while not self._stopping:
            self._woken.clear()
            try:
                await self._errands.run(self._link, TIMEOUT)
                wait = 0.0 if self._stopping else await self._pass()
            except Exception as error:  # the loop outlives whatever one pass raises
                self._shrink(error, self._fit)
                self._report(error)
                wait = self._pace.failed()
            if wait:
                await self._sleep(wait)

    # -- a pass ----------------------------------------------------------------------------------

    async def _pass(self) -> float:
        """Claim, publish and mark one batch; return the seconds to wait unless woken."""
        asked_at = time.monotonic()
        most = 1 if self._held_back else self._fit
        rows = await self._claim(most)
        if not rows:
            self._led(False)
            self._idle()
            return self._pace.nothing()
        self._token = rows[0].token
        self._led(True)
        if rows[0].fresh:
            return 0.0  # what a predecessor marked last is seen by the next statement only
        messages, held_back = _messages(rows)
        if not messages:
            self._idle()
            # Until its time has come nothing behind it is of interest.
            self._held_back = bool(held_back)
            if not held_back:
                return self._pace.nothing()
            return min(held_back.total_seconds() + 0.001, self._pace.ceiling)
        self._held_back = False
        if time.monotonic() - asked_at > self._config.step:
            return 0.0  # answered so late that somebody else may have the lease by now
        began = time.monotonic()
        answer = await self._publish(messages)
        if answer.passed == len(messages) and time.monotonic() - began < self._config.step / 4:
            self._fit = min(self._config.batch, max(self._fit, 2 * len(messages)))
        elif not answer.refused and not answer.passed:
            self._shrink(answer.error, len(messages))
        if not await self._record(messages, answer):
            return self._pace.nothing()
        if answer.error is not None:
            return await self._failed(messages[answer.passed], rows, answer)
        self._stats.last_error = self._noted = None
        await self._prune()
        full = len(messages) == most or answer.passed < len(messages)
        return 0.0 if full else self._pace.found()

    def _shrink(self, error: Exception | None, rows: int) -> None:
        """Ask for fewer rows, where it may be that many which do not pass: else none ever would."""
        if isinstance(error, _TOO_MUCH):
            self._fit = max(1, min(self._fit, rows // 2))

    async def _claim(self, most: int) -> list[ClaimOutboxRow]:
        lease = self._config.lease
        return await self._link.call(
            lambda conn: claim_outbox_async(
                conn,
                token=self._token,
                holder=self._config.name,
                lease=lease,
                renew_within=lease * 2 / 3,
                most=most,
            ),
            min(TIMEOUT, self._config.step),
        )

    async def _publish(self, messages: Sequence[Message]) -> Published:
        """Publish in order. Whatever is raised means that nothing is known to be published."""
        seconds = self._config.step
        try:
            if self._sink is None:
                return await publish(self._link, messages, seconds, self._move)
            async with asyncio.timeout(seconds):
                return _checked(await self._sink.publish(messages), len(messages))
        except LeaseLost:
            raise
        except asyncio.CancelledError:
            if not cancelled_from_within():
                raise
            return Published(0, ConnectionError("the sink was cancelled from within"))
        except Exception as error:
            return Published(0, error)

    async def _move(self, conn: AsyncConnection[Any], messages: Sequence[Message]) -> list[Outcome]:
        """Insert and mark in one transaction: in one database nothing comes between the two."""
        async with conn.transaction():
            outcomes = await insert(conn, messages)
            if not await self._mark(conn, messages, outcomes):
                raise LeaseLost("another relay has taken over the outbox")
        return outcomes

    async def _mark(
        self,
        conn: AsyncConnection[Any],
        messages: Sequence[Message],
        outcomes: Sequence[Outcome],
    ) -> bool:
        answer = await mark_outbox_async(
            conn,
            token=self._token,
            ids=[one.id for one in messages],
            outcomes=[one.kind for one in outcomes],
            published_as=[one.id for one in outcomes],
            holder=self._config.name,
        )
        return answer is not None and answer.held

    async def _record(self, messages: Sequence[Message], answer: Published) -> bool:
        """Mark what was published; return whether the lease is still ours."""
        done = messages[: answer.passed]
        if not done:
            return True
        outcomes = answer.outcomes or [Outcome("sent", one.id) for one in done]
        if self._sink is not None and not await self._link.call(
            lambda conn: self._mark(conn, done, outcomes), self._config.step
        ):
            self._lose(len(done))
            return False
        self._stats.published += len(done)
        self._stats.existing += sum(one.kind == "existing" for one in outcomes)
        return True

    # -- what goes wrong -------------------------------------------------------------------------

    async def _failed(
        self, message: Message, rows: Sequence[ClaimOutboxRow], answer: Published
    ) -> float:
        """Note on the first row that did not pass why it did not; return the seconds to wait."""
        error = answer.error
        assert error is not None
        text = _text(error)
        self._stats.last_error = text
        if not answer.refused:
            self._stats.failed += 1
            self._say_failed(message, error, text)
            if self._noted != (message.id, text):  # once, not at each try
                self._noted = (message.id, text)
                await self._note(message, text, refused=False)
            return self._pace.failed()
        refusals = 1 + next(row.refusals or 0 for row in rows if row.id == message.id)
        limit = self._config.park_after
        park = limit is not None and refusals >= limit
        pause = min(_REFUSED_PAUSE * 2 ** min(refusals - 1, 20), _LONGEST_PAUSE)
        self._stats.refused += 1
        self._stats.parked += park
        logger.log(
            logging.ERROR if park else logging.WARNING,
            "relay %s: row %s (%s) was refused for the %d. time: %s; %s",
            self._config.name,
            message.id,
            message.name,
            refusals,
            text,
            "it is set aside, and the others go on"
            if park
            else f"it and all behind it wait {pause:g} s",
            extra={
                "event": "jobs.relay.parked" if park else "jobs.relay.refused",
                "relay": self._config.name,
                "job": str(message.id),
            },
        )
        await self._note(message, text, refused=True, park=park, pause=pause)
        return 0.0

    async def _note(
        self, message: Message, text: str, *, refused: bool, park: bool = False, pause: float = 0.0
    ) -> None:
        answer = await self._link.call(
            lambda conn: note_outbox_failure_async(
                conn,
                token=self._token,
                error=text,
                refused=refused,
                park=park,
                delay=timedelta(seconds=pause),
                id=message.id,
            ),
            self._config.step,
        )
        if answer is None or not answer.held:
            self._lose(0)

    def _lose(self, published: int) -> None:
        self._stats.lost += 1
        self._led(False)
        logger.warning(
            "relay %s has lost its lease: another one has taken over; %d rows that were published "
            "may be published by it again, under the same ids",
            self._config.name,
            published,
            extra={"event": "jobs.relay.lease_lost", "relay": self._config.name},
        )

    def _led(self, leading: bool) -> None:
        if leading and not self._stats.leading:
            logger.info(
                "relay %s publishes, with token %d",
                self._config.name,
                self._token,
                extra={"event": "jobs.relay.leading", "relay": self._config.name},
            )
        self._stats.leading = leading

    def _say_failed(self, message: Message, error: Exception, text: str) -> None:
        """Once for each reason, not for each try."""
        expected = isinstance(error, _EXPECTED)
        logger.log(
            logging.DEBUG if self._noted == (message.id, text) else logging.WARNING,
            "relay %s cannot publish row %s (%s), and nothing behind it: %s",
            self._config.name,
            message.id,
            message.name,
            text,
            exc_info=None if expected else error,
            extra={"event": "jobs.relay.publish_failed", "relay": self._config.name},
        )

    def _report(self, error: Exception) -> None:
        if isinstance(error, LeaseLost):
            self._lose(0)
            return
        if self._stopping:
            return  # most likely we have cancelled it
        expected = isinstance(error, _EXPECTED)
        logger.log(
            logging.WARNING if expected else logging.ERROR,
            "relay %s: a look at the outbox failed: %s",
            self._config.name,
            " ".join(str(error).split()),
            exc_info=None if expected else error,
            extra={"event": "jobs.relay.pass_failed", "relay": self._config.name},
        )

    # -- the rest --------------------------------------------------------------------------------

    async def _prune(self) -> None:
        """Tidy up now and then, where there is something to do: an idle relay sends nothing."""
        now, keep = time.monotonic(), self._config.keep
        if now < self._prune_at or self._stopping:
            return
        self._prune_at = now + _PRUNE_EVERY
        pruned = 0
        if keep is not None:
            pruned = await self._link.call(
                lambda conn: prune_outbox_async(conn, keep=keep, most=_PRUNE_LIMIT), TIMEOUT
            )
            self._stats.pruned += pruned
        wakes = 0
        with contextlib.suppress(psycopg.errors.InsufficientPrivilege):
            # Beside an outbox there need be no worker, who does it otherwise.
            wakes = await self._link.call(
                lambda conn: prune_wakes_async(conn, most=_PRUNE_LIMIT), TIMEOUT
            )
        if _PRUNE_LIMIT in (pruned, wakes):
            self._prune_at = now

    async def _sleep(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._woken.wait()


def cancelled_from_within() -> bool:
    """Whether a CancelledError that a sink has raised was asked of nobody here.

    A client cancels what it waits for, for instance, when its connection ends.
    """
    task = asyncio.current_task()
    return task is not None and not task.cancelling()


def _messages(rows: Sequence[ClaimOutboxRow]) -> tuple[list[Message], timedelta | None]:
    """The rows up to the first one that is held back, and for how long that one is."""
    messages: list[Message] = []
    for row in rows:
        if row.id is None:
            break
        if row.wait:
            return messages, row.wait
        # What is null only where there is no row.
        fields: Any = {name: getattr(row, name) for name in Message._fields}
        messages.append(Message(**fields))
    return messages, None


def _checked(answer: object, messages: int) -> Published:
    """The answer of a sink, which may be anybody's. Raises where it says nothing that could be."""
    if not isinstance(answer, Published) or type(answer.passed) is not int:
        raise TypeError(f"the sink answered {answer!r:.200}, and no jobs.relay.Published")
    passed, outcomes = answer.passed, answer.outcomes
    if not 0 <= passed <= messages or (outcomes is not None and len(outcomes) != passed):
        raise ValueError(f"the sink answered {answer!r:.200} to {messages} messages")
    if passed == 0 and answer.error is None:
        raise TimeoutError("the sink has published nothing, and does not say why")
    return answer if passed < messages else answer._replace(error=None)


def _text(error: Exception) -> str:
    """What goes wrong, in one line that can be stored."""
    diag = error.diag.message_primary if isinstance(error, psycopg.Error) else None
    said = " ".join((diag or text_of(error)).split())
    text = f"{type(error).__name__}: {said}" if said else type(error).__name__
    return escaped(text)[:_ERROR_LIMIT]
