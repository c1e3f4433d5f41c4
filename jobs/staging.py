"""Staging jobs: writing them into the outbox, for a relay to publish after the commit."""

from __future__ import annotations

from collections.abc import Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, NamedTuple, TypeVar, overload
from uuid import UUID

from psycopg import AsyncConnection, Connection
from pydantic import BaseModel

from jobs.definition import Definition, Item, R
from jobs.enqueue import Row, Target, cut_rows
from jobs.errors import InvalidInput
from jobs.flavour import Plan, call
from jobs.sending import Guard, Operation, perform
from jobs_sql import outbox as sql

M = TypeVar("M", bound=BaseModel)


class Staged(NamedTuple):
    """The answer of a stage: what the job will be called once it is published.

    Attributes:
        id: The id of the job, and of the message to a broker.
        run_id: Its run id.
    """

    id: UUID
    run_id: UUID


@dataclass(frozen=True, eq=False, kw_only=True)
class Staging(Definition[M, R]):
    """The part of a `jobs.JobHandle` that writes to the outbox."""

    @overload
    def stage(
        self,
        conn: Connection[Any],
        input: M | Mapping[str, Any],
        *,
        delay: timedelta | None = None,
        run_at: datetime | None = None,
        priority: int | None = None,
        enqueued_by: str | None = None,
        traceparent: str | None = None,
        require_transaction: bool | None = None,
    ) -> Staged: ...

    @overload
    def stage(
        self,
        conn: AsyncConnection[Any],
        input: M | Mapping[str, Any],
        *,
        delay: timedelta | None = None,
        run_at: datetime | None = None,
        priority: int | None = None,
        enqueued_by: str | None = None,
        traceparent: str | None = None,
        require_transaction: bool | None = None,
    ) -> Coroutine[Any, Any, Staged]: ...

    def stage(
        self,
        conn: Connection[Any] | AsyncConnection[Any],
        input: M | Mapping[str, Any],
        *,
        delay: timedelta | None = None,
        run_at: datetime | None = None,
        priority: int | None = None,
        enqueued_by: str | None = None,
        traceparent: str | None = None,
        require_transaction: bool | None = None,
    ) -> Staged | Coroutine[Any, Any, Staged]:
        """Write a job into the outbox, in the transaction of ``conn``: it exists once that commits.

        A relay publishes it then, to the queue of this or of another database or to a broker. Where
        the queue is in this very database, `enqueue` in the transaction is the shorter way.

        Args:
            conn: Any psycopg 3 connection to the database of the outbox. A synchronous one returns
                the answer, an asynchronous one an awaitable of it.
            input: The payload: the model of the job, or a mapping that the model accepts.
            delay: How long the job waits at least, from now on, by the clock of the database.
            run_at: The instant before which it does not run, with a time zone. Not with ``delay``.
            priority: 0 (runs first) to 3, by default that of the declaration.
            enqueued_by: Who asks, for audit; at most 1,024 bytes.
            traceparent: W3C trace parent to carry into the run.
            require_transaction: Whether to refuse a connection in autocommit mode that is in no
                transaction, by default as the declaration says.

        Returns:
            The ids, which are final: a repeated publish is recognised by them. A job whose
            idempotency key is taken when it is published is merged into the one that has it.

        Raises:
            InvalidInput: Something cannot be stored; names the path. Nothing was sent.
            TenantRequired, IdempotencyRequired: The derived tenant or key is empty.
            TransactionRequired: See ``require_transaction``. Nothing was sent.
            ConnectionUnsupported: ``conn`` cannot be used for this.
            psycopg.Error: Whatever else the database says.

        Writes one row of jobs.outbox, locks nothing else and waits for nobody.
        """

        def prepare() -> Operation[Staged]:
            row = self.row(input, delay, run_at, priority, None)
            target = self.target(traceparent, enqueued_by, "return")
            transactional = self.transactional(require_transaction)
            return Operation(lambda: _stage_one(target, row), Guard.NONE, transactional)

        return perform(conn, prepare)

    @overload
    def stage_many(
        self,
        conn: Connection[Any],
        items: Iterable[M | Mapping[str, Any] | Item[M]],
        *,
        delay: timedelta | None = None,
        run_at: datetime | None = None,
        priority: int | None = None,
        enqueued_by: str | None = None,
        traceparent: str | None = None,
        require_transaction: bool | None = None,
    ) -> list[Staged]: ...

    @overload
    def stage_many(
        self,
        conn: AsyncConnection[Any],
        items: Iterable[M | Mapping[str, Any] | Item[M]],
        *,
        delay: timedelta | None = None,
        run_at: datetime | None = None,
        priority: int | None = None,
        enqueued_by: str | None = None,
        traceparent: str | None = None,
        require_transaction: bool | None = None,
    ) -> Coroutine[Any, Any, list[Staged]]: ...

    def stage_many(
        self,
        conn: Connection[Any] | AsyncConnection[Any],
        items: Iterable[M | Mapping[str, Any] | Item[M]],
        *,
        delay: timedelta | None = None,
        run_at: datetime | None = None,
        priority: int | None = None,
        enqueued_by: str | None = None,
        traceparent: str | None = None,
        require_transaction: bool | None = None,
    ) -> list[Staged] | Coroutine[Any, Any, list[Staged]]:
        """Write many jobs into the outbox, in one statement for each 5,000; all of them or none.

        Args:
            conn: As for `stage`. Several statements are one transaction.
            items: Payloads as for `stage`, or `jobs.Item` with options of their own (no id: a
                staged job is given one).
            delay, run_at, priority, enqueued_by, traceparent, require_transaction: As for `stage`,
                for all items that do not say otherwise.

        Returns:
            One answer for each item, in their order, which is the order of publishing.

        Raises as `stage`; the error's ``index`` and message say which item. All items are checked
        before anything is sent.
        """

        def prepare() -> Operation[list[Staged]]:
            target = self.target(traceparent, enqueued_by, "return")
            rows = []
            for index, row in enumerate(self.rows(items, delay, run_at, priority)):
                if row.supplied:
                    error = InvalidInput("a staged job is given its id", field="id")
                    error.at_item(index)
                    raise error
                rows.append(row)
            chunks = cut_rows(rows)
            guard = Guard.NONE if len(chunks) <= 1 else Guard.TRANSACTION
            transactional = self.transactional(require_transaction)
            return Operation(lambda: _stage_many(target, chunks), guard, transactional)

        return perform(conn, prepare)


def _stage_one(target: Target, row: Row) -> Plan[Staged]:
    return (yield from _stage_many(target, [[row]]))[0]


def _stage_many(target: Target, chunks: Sequence[Sequence[Row]]) -> Plan[list[Staged]]:
    for rows in chunks:
        yield from call(
            sql.stage_jobs,
            sql.stage_jobs_async,
            queue=target.queue,
            name=target.name,
            max_attempts=target.max_attempts,
            dead_letter=target.dead_letter,
            idempotency_scope=target.idempotency_scope,
            concurrency_limit=target.concurrency_limit,
            when_busy=target.when_busy,
            traceparent=target.traceparent,
            enqueued_by=target.enqueued_by,
            ids=[row.id for row in rows],
            run_ids=[row.run_id for row in rows],
            tenants=[row.tenant for row in rows],
            priorities=[row.priority for row in rows],
            run_ats=[row.run_at for row in rows],
            delays=[row.delay for row in rows],
            idempotency_keys=[row.key for row in rows],
            concurrency_keys=[row.concurrency_key for row in rows],
            inputs=[row.input for row in rows],
        )
    return [Staged(row.id, row.run_id) for rows in chunks for row in rows]
