"""Publishing to the job queue of a database."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final, TypeAlias

import psycopg
from psycopg import AsyncConnection, errors

from jobs.errors import EnqueueContended
from jobs.messages import Message, Outcome, Published
from jobs.service.link import Link, Target
from jobs_sql.conflict import undo_republished_async
from jobs_sql.publish import publish_jobs_async

_TRIES: Final = 3

# What the database may say of a single row. Anything else concerns all of them: no connection, no
# rights, no such table, a deadlock.
_REFUSALS: Final = (
    psycopg.DataError,
    psycopg.IntegrityError,
    errors.ProgramLimitExceeded,
    errors.RaiseException,
)

# Others who have not ended yet keep a key that one row of the batch needs: those before it pass.
_CONTENTION: Final = (
    EnqueueContended,
    errors.LockNotAvailable,
    errors.DeadlockDetected,
    errors.SerializationFailure,
)

Work: TypeAlias = Callable[
    [AsyncConnection[Any], Sequence[Message]], Coroutine[Any, Any, list[Outcome]]
]


class QueueSink:
    """The queue of another database than the outbox's, as a sink."""

    def __init__(self, target: Target, seconds: float) -> None:
        """
        Args:
            target: Where to connect.
            seconds: How long a batch may take.
        """
        self.link = Link(target)
        self._seconds = seconds

    async def open(self) -> None:
        """Connect. Raises what `Link.open` raises."""
        await self.link.open()

    async def publish(self, messages: Sequence[Message]) -> Published:
        """Insert jobs, each batch in a transaction of its own."""
        return await publish(self.link, messages, self._seconds, in_transaction)

    async def close(self) -> None:
        """Disconnect; never waits for the server."""
        await self.link.close()


async def publish(link: Link, messages: Sequence[Message], seconds: float, work: Work) -> Published:
    """Do the work for all messages at once or, where one of them is refused, one by one up to it.

    Raises:
        psycopg.Error, TimeoutError: Nothing passes for now.
    """
    deadline = time.monotonic() + seconds
    try:
        done = await link.call(lambda conn: work(conn, messages), seconds)
        return Published(len(done), outcomes=done)
    except (*_REFUSALS, *_CONTENTION) as error:
        if len(messages) == 1:
            return _stopped([], error)
    done = []
    for message in messages:
        left = deadline - time.monotonic()
        if left <= 0:
            break
        try:
            done += await link.call(functools.partial(_one, work, message), left)
        except (*_REFUSALS, *_CONTENTION) as error:
            return _stopped(done, error)
    return Published(len(done), outcomes=done)


async def _one(work: Work, message: Message, conn: AsyncConnection[Any]) -> list[Outcome]:
    return await work(conn, [message])


def _stopped(done: Sequence[Outcome], error: Exception) -> Published:
    refused = not isinstance(error, _CONTENTION)
    return Published(len(done), error=error, refused=refused, outcomes=done)


async def in_transaction(conn: AsyncConnection[Any], messages: Sequence[Message]) -> list[Outcome]:
    """Insert jobs in a transaction of their own. Raises as `insert`."""
    async with conn.transaction():
        return await insert(conn, messages)


async def insert(conn: AsyncConnection[Any], messages: Sequence[Message]) -> list[Outcome]:
    """Insert jobs in the transaction of ``conn`` and say what became of each, in order.

    Raises:
        EnqueueContended: Another job took the same key again and again and could not be seen.
        psycopg.Error: Whatever else the database says.
    """
    outcomes: dict[Any, Outcome] = {}
    left = list(messages)
    for _ in range(_TRIES):
        # A statement of its own each time: the first did not see the job that made it wait.
        await _insert(conn, left, outcomes)
        left = [message for message in left if message.id not in outcomes]
        if not left:
            return [outcomes[message.id] for message in messages]
    raise EnqueueContended(
        f"another job of name {left[0].name!r} took the same idempotency key again and again and "
        "could not be seen"
    )


async def _insert(
    conn: AsyncConnection[Any], messages: Sequence[Message], outcomes: dict[Any, Outcome]
) -> None:
    rows = await publish_jobs_async(
        conn,
        ids=[one.id for one in messages],
        run_ids=[one.run_id for one in messages],
        queues=[one.queue for one in messages],
        names=[one.name for one in messages],
        tenants=[one.tenant for one in messages],
        priorities=[one.priority for one in messages],
        run_ats=[one.run_at for one in messages],
        delays=[one.delay for one in messages],
        max_attempts=[one.max_attempts for one in messages],
        dead_letters=[one.dead_letter for one in messages],
        idempotency_scopes=[one.idempotency_scope for one in messages],
        idempotency_keys=[one.idempotency_key for one in messages],
        concurrency_limits=[one.concurrency_limit for one in messages],
        when_busys=[one.when_busy for one in messages],
        concurrency_keys=[one.concurrency_key for one in messages],
        traceparents=[one.traceparent for one in messages],
        enqueued_bys=[one.enqueued_by for one in messages],
        inputs=[one.input for one in messages],
    )
    # A repeat that waited for the settle of its own job has inserted it anew.
    undone = set(
        await undo_republished_async(
            conn,
            ids=[one.id for one in messages],
            run_ids=[one.run_id for one in messages],
        )
    )
    for row in rows:
        if row.asked_id in undone:
            outcomes[row.asked_id] = Outcome("existing", row.asked_id)
        elif row.id is not None and row.id not in undone:
            kind: Any = "created" if row.verdict == "created" else "existing"
            outcomes[row.asked_id] = Outcome(kind, row.id)
