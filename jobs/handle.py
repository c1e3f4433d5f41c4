"""The handle of a declared job: the surface through which it is enqueued."""

from __future__ import annotations

from collections.abc import Coroutine, Iterable, Mapping
from dataclasses import InitVar, dataclass
from datetime import datetime, timedelta
from typing import Any, Final, TypeVar, final, overload
from uuid import UUID

from psycopg import AsyncConnection, Connection
from pydantic import BaseModel

from jobs.awaiting import Wait
from jobs.definition import Item, R
from jobs.enqueue import (
    Enqueued,
    OnConflict,
    copy_many,
    enqueue_many,
    enqueue_one,
    guard_for_many,
)
from jobs.errors import ConnectionUnsupported, DeclarationError, InvalidInput
from jobs.options import type_name
from jobs.sending import Guard, Operation, perform
from jobs.staging import Staging

M = TypeVar("M", bound=BaseModel)
T = TypeVar("T")


DEFAULT_WAIT: Final = timedelta(seconds=30)

# Whoever holds it built the handle through jobs.job.
BUILDER: Final = object()


@final
@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class JobHandle(Staging[M, R]):
    """A declared job. Made by the decorator `jobs.job` and by nothing else.

    Its attributes are those of `Definition`. It is the same object wherever it is copied or
    unpickled.
    """

    proof: InitVar[object]

    def __post_init__(self, proof: object) -> None:
        if proof is not BUILDER:
            raise DeclarationError(
                "a JobHandle was made by hand", fix="Declare jobs with the decorator jobs.job."
            )
        super().__post_init__()
        # for help(), and for __reduce__
        for name, default in (("__doc__", None), ("__module__", None), ("__qualname__", self.name)):
            object.__setattr__(self, name, getattr(self.fn, name, default))

    def __repr__(self) -> str:
        return f"<job {self.name!r} in queue {self.queue!r}: {self.input_type.__qualname__}>"

    def __reduce__(self) -> str:
        # What copy and deepcopy go by as well: a handle is copied as itself.
        return str(vars(self)["__qualname__"])

    @overload
    def enqueue(
        self,
        conn: Connection[Any],
        input: M | Mapping[str, Any],
        *,
        delay: timedelta | None = None,
        run_at: datetime | None = None,
        priority: int | None = None,
        id: UUID | None = None,
        enqueued_by: str | None = None,
        traceparent: str | None = None,
        on_conflict: OnConflict = "return",
        require_transaction: bool | None = None,
    ) -> Enqueued: ...

    @overload
    def enqueue(
        self,
        conn: AsyncConnection[Any],
        input: M | Mapping[str, Any],
        *,
        delay: timedelta | None = None,
        run_at: datetime | None = None,
        priority: int | None = None,
        id: UUID | None = None,
        enqueued_by: str | None = None,
        traceparent: str | None = None,
        on_conflict: OnConflict = "return",
        require_transaction: bool | None = None,
    ) -> Coroutine[Any, Any, Enqueued]: ...

    def enqueue(
        self,
        conn: Connection[Any] | AsyncConnection[Any],
        input: M | Mapping[str, Any],
        *,
        delay: timedelta | None = None,
        run_at: datetime | None = None,
        priority: int | None = None,
        id: UUID | None = None,
        enqueued_by: str | None = None,
        traceparent: str | None = None,
        on_conflict: OnConflict = "return",
        require_transaction: bool | None = None,
    ) -> Enqueued | Coroutine[Any, Any, Enqueued]:
        """Enqueue one job, in the transaction of ``conn``: it exists once that commits.

        Args:
            conn: Any psycopg 3 connection. A synchronous one returns the answer, an asynchronous
                one an awaitable of it.
            input: The payload: the model of the job, or a mapping that the model accepts.
            delay: How long the job waits at least, by the database's clock.
            run_at: The instant before which it does not run, with a time zone. Not with ``delay``.
            priority: 0 (runs first) to 3, by default that of the declaration.
            id: An id of your own. If a job of this id exists, live or finished, nothing is
                inserted. Needs the isolation level READ COMMITTED.
            enqueued_by: Who asks, for audit; at most 1,024 bytes.
            traceparent: W3C trace parent to carry into the run.
            on_conflict: ``"return"`` answers with the job that has the idempotency key or the id,
                ``"raise"`` raises DuplicateJob.
            require_transaction: Whether to refuse a connection in autocommit mode that is in no
                transaction, by default as the declaration says.

        Raises:
            InvalidInput: Something cannot be stored; names the path. Nothing was sent.
            TenantRequired, IdempotencyRequired: The derived tenant or key is empty.
            TransactionRequired: See ``require_transaction``. Nothing was sent.
            DuplicateJob: See ``on_conflict``.
            EnqueueContended: The database gave up waiting for a session that enqueues the same key.
            IsolationUnsupported, ConnectionUnsupported: ``conn`` cannot be used for this.
            psycopg.Error: Whatever else the database says.

        Locks nothing but the new row. Waits only for an open transaction that enqueued, or is
        ending, a job of the same idempotency key or id.
        """

        def prepare() -> Operation[Enqueued]:
            row = self.row(input, delay, run_at, priority, id)
            target = self.target(traceparent, enqueued_by, on_conflict)
            guard = Guard.TRANSACTION if row.supplied else Guard.NONE
            return Operation(
                lambda: enqueue_one(target, row), guard, self.transactional(require_transaction)
            )

        return perform(conn, prepare)

    @overload
    def enqueue_many(
        self,
        conn: Connection[Any],
        items: Iterable[M | Mapping[str, Any] | Item[M]],
        *,
        delay: timedelta | None = None,
        run_at: datetime | None = None,
        priority: int | None = None,
        enqueued_by: str | None = None,
        traceparent: str | None = None,
        on_conflict: OnConflict = "return",
        require_transaction: bool | None = None,
    ) -> list[Enqueued]: ...

    @overload
    def enqueue_many(
        self,
        conn: AsyncConnection[Any],
        items: Iterable[M | Mapping[str, Any] | Item[M]],
        *,
        delay: timedelta | None = None,
        run_at: datetime | None = None,
        priority: int | None = None,
        enqueued_by: str | None = None,
        traceparent: str | None = None,
        on_conflict: OnConflict = "return",
        require_transaction: bool | None = None,
    ) -> Coroutine[Any, Any, list[Enqueued]]: ...

    def enqueue_many(
        self,
        conn: Connection[Any] | AsyncConnection[Any],
        items: Iterable[M | Mapping[str, Any] | Item[M]],
        *,
        delay: timedelta | None = None,
        run_at: datetime | None = None,
        priority: int | None = None,
        enqueued_by: str | None = None,
        traceparent: str | None = None,
        on_conflict: OnConflict = "return",
        require_transaction: bool | None = None,
    ) -> list[Enqueued] | Coroutine[Any, Any, list[Enqueued]]:
        """Enqueue many jobs in one statement for each 5,000 of them; all of them or none.

        Args:
            conn: As for `enqueue`. Several statements are one transaction.
            items: Payloads as for `enqueue`, or `Item` with options of their own.
            delay, run_at, priority, enqueued_by, traceparent: As for `enqueue`, for all items that
                do not say otherwise.
            on_conflict: As for `enqueue`. With ``"raise"`` nothing is left written.
            require_transaction: As for `enqueue`.

        Returns:
            One answer for each item, in their order. Where a key or an id repeats among the items
            the first one is created and the others answer ``existing``.

        Raises as `enqueue`; the error's ``index`` and message say which item. All items are checked
        before anything is sent.
        """

        def prepare() -> Operation[list[Enqueued]]:
            target = self.target(traceparent, enqueued_by, on_conflict)
            rows = list(self.rows(items, delay, run_at, priority))
            guard = guard_for_many(target, rows)
            return Operation(
                lambda: enqueue_many(target, rows), guard, self.transactional(require_transaction)
            )

        return perform(conn, prepare)

    @overload
    def copy_many(
        self,
        conn: Connection[Any],
        inputs: Iterable[M | Mapping[str, Any]],
        *,
        priority: int | None = None,
        enqueued_by: str | None = None,
        traceparent: str | None = None,
        require_transaction: bool | None = None,
    ) -> int: ...

    @overload
    def copy_many(
        self,
        conn: AsyncConnection[Any],
        inputs: Iterable[M | Mapping[str, Any]],
        *,
        priority: int | None = None,
        enqueued_by: str | None = None,
        traceparent: str | None = None,
        require_transaction: bool | None = None,
    ) -> Coroutine[Any, Any, int]: ...

    def copy_many(
        self,
        conn: Connection[Any] | AsyncConnection[Any],
        inputs: Iterable[M | Mapping[str, Any]],
        *,
        priority: int | None = None,
        enqueued_by: str | None = None,
        traceparent: str | None = None,
        require_transaction: bool | None = None,
    ) -> int | Coroutine[Any, Any, int]:
        """Enqueue a stream of jobs without idempotency keys through COPY, due at once.

        Args:
            conn: As for `enqueue`, not in pipeline mode.
            inputs: Payloads as for `enqueue`, read and sent in blocks of at most 500, or of 64 KiB
                and one payload, and never held all at once.
            priority, enqueued_by, traceparent, require_transaction: As for `enqueue`, for all.

        Returns:
            How many were enqueued.

        Raises as `enqueue`; the error's ``index`` and message say which item. Nothing is left
        written then, and a transaction that ``conn`` was in goes on.
        """

        def prepare() -> Operation[int]:
            if self.idempotent:
                raise InvalidInput(
                    f"job {self.name!r} has one, and COPY cannot look for others of the same key",
                    field="idempotency_key",
                    fix="Use enqueue_many.",
                )
            target = self.target(traceparent, enqueued_by, "return")
            blocks = self.blocks(inputs, None, None, priority)
            return Operation(
                lambda: copy_many(target, blocks),
                Guard.SAVEPOINT,
                self.transactional(require_transaction),
            )

        return perform(conn, prepare)

    @overload
    def result(
        self, conn: Connection[Any], id: UUID, *, timeout: timedelta | None = DEFAULT_WAIT
    ) -> R: ...

    @overload
    def result(
        self, conn: AsyncConnection[Any], id: UUID, *, timeout: timedelta | None = DEFAULT_WAIT
    ) -> Coroutine[Any, Any, R]: ...

    def result(
        self,
        conn: Connection[Any] | AsyncConnection[Any],
        id: UUID,
        *,
        timeout: timedelta | None = DEFAULT_WAIT,
    ) -> R | Coroutine[Any, Any, R]:
        """Wait until a job of this declaration has ended, and return what its function returned.

        Looks at once and then again and again, 20 ms after the first look and up to 1 s apart. In
        an open transaction it looks once.

        Args:
            conn: As for `enqueue`. A synchronous one blocks the thread.
            id: The job, as the enqueue has answered.
            timeout: How long to wait at most; 0 looks once, None waits for as long as it takes.

        Returns:
            The value as the function's annotation says; None where it stores nothing.

        Raises:
            JobDead, JobFailed, JobCancelled, JobRefused: It ended otherwise; all of them are
                ResultUnavailable.
            JobNotFound: No job of this name has the id, or retention has removed it.
            ResultTimeout: It has not ended in time. It goes on.
            ResultInTransaction: It has not ended, and ``conn`` is in a transaction.
            ResultUnreadable: What is stored does not fit the annotation.
            InvalidInput: ``id`` or ``timeout`` is none.
            ConnectionUnsupported: ``conn`` is no psycopg 3 connection.

        Locks and writes nothing, and leaves no transaction open.
        """
        wait = Wait(self.name, self.results, id, timeout)
        if isinstance(conn, Connection):
            answer: R = wait.run(conn)
            return answer
        if isinstance(conn, AsyncConnection):
            return wait.run_async(conn)
        raise ConnectionUnsupported(
            f"results are read on a psycopg 3 connection, and a {type_name(conn)} was given"
        )
