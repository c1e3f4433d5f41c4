"""What a relay hands to a sink, and what a sink answers."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Literal, NamedTuple, Protocol, runtime_checkable
from uuid import UUID


class Message(NamedTuple):
    """One staged job.

    Attributes:
        id: The staged id: the same in each repeat, so that a broker can drop repeats.
        run_id: The run id of the job.
        staged_at: When it was staged.
        queue, name, tenant, priority: As declared and derived; tenant is "" for none.
        run_at: Not before this instant, if the caller said so.
        delay: Else: what is left of the delay now.
        max_attempts, dead_letter, idempotency_scope, idempotency_key: As declared and derived.
        concurrency_limit, when_busy, concurrency_key: As declared and derived; None for no limit.
        traceparent, enqueued_by: As given to the stage.
        input: The payload as JSON text.
    """

    id: UUID
    run_id: UUID
    staged_at: datetime
    queue: str
    name: str
    tenant: str
    priority: int
    run_at: datetime | None
    delay: timedelta
    max_attempts: int
    dead_letter: bool
    idempotency_scope: str
    idempotency_key: str | None
    concurrency_limit: int | None
    when_busy: str | None
    concurrency_key: str | None
    traceparent: str | None
    enqueued_by: str | None
    input: str


class Outcome(NamedTuple):
    """What became of one message.

    Attributes:
        kind: ``created``: a new job. ``existing``: a job with its id or its idempotency key was
            there. ``sent``: it is with a broker.
        id: The job that does the work, or the message.
    """

    kind: Literal["created", "existing", "sent"]
    id: UUID


class Published(NamedTuple):
    """The answer of a sink to a batch.

    Attributes:
        passed: How many messages, from the first on, are published for certain.
        error: Why the one behind them is not; None where all are, or where time was up.
        refused: Whether it is that very message which the target does not take, so that the others
            would pass. Otherwise nothing passes for now, and the same batch is tried again.
        outcomes: One for each that is published; None for ``sent``.
    """

    passed: int
    error: Exception | None = None
    refused: bool = False
    outcomes: Sequence[Outcome] | None = None


@runtime_checkable
class Sink(Protocol):
    """Where messages go instead of a queue: a broker.

    All methods are called from one task. A sink must keep the order: when one message does not
    pass, none behind it may.
    """

    async def open(self) -> None:
        """Connect. Called once, by the start of the relay, which fails with what this raises."""

    async def publish(self, messages: Sequence[Message]) -> Published:
        """Publish messages in order, until one does not pass.

        Returns only once the broker has confirmed what is said to have passed. It may be
        cancelled, when the time of the batch is up. What it raises means that nothing is known to
        be published: the batch is repeated after a while, with the same ids.
        """

    async def close(self) -> None:
        """Disconnect, within a few seconds. Called once, also where `open` was cut short."""
