"""What a declaration says of a job, and the checks from the arguments of an enqueue to its rows."""

from __future__ import annotations

import enum
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import KW_ONLY, dataclass, field
from datetime import datetime, timedelta
from functools import partial
from itertools import chain, repeat
from typing import Any, Final, Generic, Literal, TypeAlias, TypeVar
from uuid import UUID

from pydantic import BaseModel
from typing_extensions import TypeVar as TypeVarWithDefault

from jobs.classify import ErrorRules, described_rules
from jobs.concurrency import Concurrency, key_problem
from jobs.enqueue import OnConflict, Row, Target
from jobs.errors import IdempotencyRequired, InvalidInput, JobsError, TenantRequired
from jobs.hooks import Hook
from jobs.ids import uuid7
from jobs.options import check_priority, check_when, type_name
from jobs.payload import Codec, plain_text, text_problem
from jobs.results import ResultCodec
from jobs.retry import Retry

M = TypeVar("M", bound=BaseModel)
R = TypeVarWithDefault("R", default=Any)

NAME_LIMIT: Final = 255
KEY_LIMIT: Final = 16_384
ENQUEUED_BY_LIMIT: Final = 1_024
TRACEPARENT_LIMIT: Final = 512
"""Limits in bytes of UTF-8: of queue, name and tenant, and of the others as their names say."""

BLOCK_ROWS: Final = 500
BLOCK_CHARACTERS: Final = 64 * 1024
"""How far a stream of jobs is read ahead: ids and COPY text are made for many rows at once."""

_AT_ONCE: Final = timedelta()
_Derived: TypeAlias = tuple[str, str | None, str | None]
_NOTHING: Final[_Derived] = ("", None, None)
_make_row: Callable[[Iterable[Any]], Row] = partial(tuple.__new__, Row)  # Row(*columns), in C
_TRACEPARENT: Final = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}(-[!-~]*)?")

Scope: TypeAlias = Literal["live", "waiting"]
Where: TypeAlias = Literal["async", "thread", "process"]


class NoTenant(enum.Enum):
    """The type of `NO_TENANT`."""

    NO_TENANT = enum.auto()


class NoKey(enum.Enum):
    """The type of `NO_KEY`."""

    NO_KEY = enum.auto()


NO_TENANT: Final = NoTenant.NO_TENANT
"""Says that a job belongs to no tenant."""

NO_KEY: Final = NoKey.NO_KEY
"""Says that a job has no idempotency key: each enqueue makes a job of its own."""

TenantOf: TypeAlias = Callable[[Any], str] | NoTenant
KeyOf: TypeAlias = Callable[[Any], str] | NoKey


@dataclass(frozen=True, slots=True)
class Item(Generic[M]):
    """One job of a bulk enqueue with options of its own; those of the call are the defaults.

    Attributes:
        input: The payload, as for `JobHandle.enqueue`.
        delay, run_at, priority, id: As for `JobHandle.enqueue`.
    """

    input: M | Mapping[str, Any]
    _: KW_ONLY
    delay: timedelta | None = None
    run_at: datetime | None = None
    priority: int | None = None
    id: UUID | None = None


@dataclass(frozen=True, eq=False, kw_only=True)
class Definition(Generic[M, R]):
    """A declared job as data. Users meet it as `jobs.JobHandle`, which adds how to enqueue it.

    Attributes:
        name: The durable routing key: rows that wait carry it.
        queue: The queue its jobs wait in.
        input_type: The pydantic model of its payload.
        fn: The decorated function.
        is_async: Whether ``fn`` is an asynchronous function.
        executor: Where ``fn`` runs: on the event loop, in a thread or in a process of its own.
        takes_run: Whether ``fn`` takes the `Run` as its second argument.
        retry: What happens after a failed attempt.
        timeout: Longest duration of an attempt, None for no end.
        priority: 0 to 3, 0 runs first.
        idempotency_scope: ``"live"`` or ``"waiting"``.
        require_transaction: Whether its jobs are enqueued and staged in transactions only.
        name_stated: Whether the declaration states the name.
        tenant: The function that derives the tenant, or `NO_TENANT`.
        idempotency_key: The function that derives the key, or `NO_KEY`.
        results: From what ``fn`` returns to the text that is stored, and back.
        errors: What errors mean for the next try, by their type.
        on_settled: What is called when a job has ended, or None.
        concurrency: How many of its jobs may run at the same time in the fleet, None for no limit.
    """

    name: str
    queue: str
    input_type: type[M]
    fn: Callable[..., Any]
    is_async: bool
    executor: Where
    takes_run: bool
    retry: Retry
    timeout: timedelta | None
    priority: int
    idempotency_scope: Scope
    require_transaction: bool
    name_stated: bool
    tenant: TenantOf
    idempotency_key: KeyOf
    results: ResultCodec
    errors: ErrorRules
    on_settled: Hook | None
    concurrency: Concurrency | None
    _codec: Codec[M] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_codec", Codec(self.input_type))

    @property
    def idempotent(self) -> bool:
        """Whether its jobs have an idempotency key."""
        return not isinstance(self.idempotency_key, NoKey)

    def parse(self, text: str) -> M:
        """Return the input that a stored payload holds.

        Raises PayloadUnreadable, with the path of the first bad value.
        """
        return self._codec.load(text)

    def derive_tenant(self, input: M) -> str | None:
        """Return the tenant of a job with this input, None for a job without tenants.

        Raises TenantRequired where the function returns nothing, InvalidInput where it returns what
        cannot be stored.
        """
        if isinstance(self.tenant, NoTenant):
            return None
        tenant = self._derive("tenant", self.tenant, input)
        if tenant is None or tenant == "":
            raise TenantRequired(
                f"tenant: the function of job {self.name!r} returned {tenant!r}",
                fix="Return the tenant's id, or declare the job with tenant=jobs.NO_TENANT.",
            )
        return _checked_text("tenant", tenant, NAME_LIMIT)

    def derive_key(self, input: M) -> str | None:
        """Return the idempotency key of a job with this input, None for a job without keys.

        Raises IdempotencyRequired where the function returns nothing, InvalidInput where it returns
        what cannot be stored.
        """
        if isinstance(self.idempotency_key, NoKey):
            return None
        key = self._derive("idempotency_key", self.idempotency_key, input)
        if key is None or key == "":
            raise IdempotencyRequired(
                f"idempotency_key: the function of job {self.name!r} returned {key!r}",
                fix="Return a key, or declare the job with idempotency_key=jobs.NO_KEY.",
            )
        return _checked_text("idempotency_key", key, KEY_LIMIT)

    def derive_concurrency_key(self, input: M) -> str | None:
        """Return the concurrency key of a job with this input as it is stored, None for no limit.

        Raises InvalidInput where the function raises, or returns what cannot be a key.
        """
        if self.concurrency is None:
            return None
        if self.concurrency.key is None:
            return self.concurrency.full_key(self.name, None)
        key = self._derive("concurrency.key", self.concurrency.key, input)
        problem = key_problem(key)
        if problem is not None:
            raise InvalidInput(problem, field="concurrency.key")
        return self.concurrency.full_key(self.name, plain_text(key))

    def describe(self) -> dict[str, Any]:
        """Return what was declared as plain JSON values, durations in seconds."""
        try:
            schema = self.input_type.model_json_schema()
        except Exception:  # not every model has one; {} allows everything
            schema = {}
        return {
            "name": self.name,
            "queue": self.queue,
            "input": schema,
            "retry": self.retry.describe(),
            "executor": self.executor,
            "timeout": None if self.timeout is None else self.timeout.total_seconds(),
            "priority": self.priority,
            "idempotent": self.idempotent,
            "idempotency_scope": self.idempotency_scope,
            "require_transaction": self.require_transaction,
            "errors": described_rules(self.errors),
            "on_settled": self.on_settled is not None,
            "concurrency": None if self.concurrency is None else self.concurrency.describe(),
        }

    # -- from arguments to rows -------------------------------------------------------------------

    def row(
        self,
        input: object,
        delay: timedelta | None,
        run_at: datetime | None,
        priority: int | None,
        id: UUID | None,
    ) -> Row:
        """Check one job and return what is sent for it. Raises as `JobHandle.enqueue`."""
        check_when(delay, run_at)
        check_priority(priority)
        if id is not None and not isinstance(id, UUID):
            raise InvalidInput(f"must be a UUID, and is a {type_name(id)}", field="id")
        model = self._codec.accept(input)
        text = self._codec.dump(model)
        tenant, key, concurrency_key = self._derived(model) if self._derives else _NOTHING
        return Row(
            uuid7() if id is None else id,
            uuid7(),
            id is not None,
            tenant,
            self.priority if priority is None else priority,
            run_at,
            _AT_ONCE if delay is None else delay,
            key,
            text,
            concurrency_key,
        )

    def rows(
        self,
        items: Iterable[object],
        delay: timedelta | None,
        run_at: datetime | None,
        priority: int | None,
    ) -> Iterator[Row]:
        """Check jobs as they are asked for; an error carries the index. Reads ahead: see `blocks`.

        Raises as `JobHandle.enqueue`.
        """
        return chain.from_iterable(self.blocks(items, delay, run_at, priority))

    def blocks(
        self,
        items: Iterable[object],
        delay: timedelta | None,
        run_at: datetime | None,
        priority: int | None,
    ) -> Iterator[list[Row]]:
        """Check jobs block by block, in order; an error carries the index.

        A block holds at most `BLOCK_ROWS` rows, and one payload more than `BLOCK_CHARACTERS` of
        them. Raises as `JobHandle.enqueue`.
        """
        check_when(delay, run_at)
        # A model iterates over its fields, which would end in an error about the first of them.
        if isinstance(items, (BaseModel, Mapping, str, bytes)) or not isinstance(items, Iterable):
            raise InvalidInput(
                f"must be an iterable of payloads, and is a {type_name(items)}", field="items"
            )

        texts: list[str] = []
        derived: list[_Derived] = []
        derives = self._derives
        accept, dump = self._codec.accept, self._codec.dump

        def made() -> Iterable[Row]:
            """Give ids to rows with the options of the call."""
            ids = uuid7.many(2 * len(texts))
            tenants, keys, concurrency_keys = (
                zip(*derived, strict=True) if derives else map(repeat, _NOTHING)
            )
            columns = (
                ids[::2],
                ids[1::2],
                repeat(False),
                tenants,
                repeat(self.priority if priority is None else priority),
                repeat(run_at),
                repeat(_AT_ONCE if delay is None else delay),
                keys,
                texts,
                concurrency_keys,
            )
            return map(_make_row, zip(*columns, strict=False))  # some of them have no end

        block: list[Row] = []
        size = 0
        for index, item in enumerate(items):
            try:
                if isinstance(item, Item):
                    if texts:  # those before it have the smaller ids
                        block += made()
                        texts, derived = [], []
                    own = item.delay is not None or item.run_at is not None
                    row = self.row(
                        item.input,
                        item.delay if own else delay,
                        item.run_at if own else run_at,
                        priority if item.priority is None else item.priority,
                        item.id,
                    )
                    block.append(row)
                    size += len(row.input)
                else:
                    if priority is not None:
                        check_priority(priority)
                    model = accept(item)
                    text = dump(model)
                    if derives:
                        derived.append(self._derived(model))
                    texts.append(text)
                    size += len(text)
            except JobsError as error:
                error.at_item(index)
                raise
            if size >= BLOCK_CHARACTERS or len(block) + len(texts) >= BLOCK_ROWS:
                if texts:
                    block += made()
                yield block
                texts, derived, block, size = [], [], [], 0
        if texts:
            block += made()
        if block:
            yield block

    @property
    def _derives(self) -> bool:
        """Whether anything but the payload is made from the input."""
        given = (self.tenant, self.idempotency_key, self.concurrency)
        return given != (NO_TENANT, NO_KEY, None)

    def _derived(self, model: M) -> _Derived:
        """Return tenant, idempotency key and concurrency key of a job."""
        return (
            "" if self.tenant is NO_TENANT else self.derive_tenant(model) or "",
            None if self.idempotency_key is NO_KEY else self.derive_key(model),
            None if self.concurrency is None else self.derive_concurrency_key(model),
        )

    def target(
        self, traceparent: str | None, enqueued_by: str | None, on_conflict: OnConflict
    ) -> Target:
        """Check what an enqueue says of all its jobs alike."""
        if on_conflict not in ("return", "raise"):
            raise InvalidInput(
                f"must be 'return' or 'raise', and is {on_conflict!r:.200}", field="on_conflict"
            )
        if enqueued_by is not None:
            _checked_text("enqueued_by", enqueued_by, ENQUEUED_BY_LIMIT)
        if traceparent is not None:
            _checked_text("traceparent", traceparent, TRACEPARENT_LIMIT)
            if not _TRACEPARENT.fullmatch(traceparent):
                raise InvalidInput(
                    "is not a W3C trace parent (00-<32 hex digits>-<16 hex digits>-<2 hex digits>)",
                    field="traceparent",
                )
        return Target(
            queue=self.queue,
            name=self.name,
            max_attempts=self.retry.attempts,
            dead_letter=self.retry.dead_letter,
            idempotency_scope=self.idempotency_scope,
            traceparent=traceparent,
            enqueued_by=enqueued_by,
            on_conflict=on_conflict,
            concurrency_limit=None if self.concurrency is None else self.concurrency.limit,
            when_busy=None if self.concurrency is None else self.concurrency.when_busy,
        )

    def transactional(self, asked: bool | None) -> bool:
        """Whether an enqueue must be in a transaction: as asked, else as declared."""
        if asked is not None and not isinstance(asked, bool):
            raise InvalidInput(
                f"must be True, False or None, and is {asked!r:.200}", field="require_transaction"
            )
        return self.require_transaction if asked is None else asked

    def _derive(self, what: str, function: Callable[[M], str], input: M) -> object:
        try:
            return function(input)
        except Exception as error:
            raise InvalidInput(
                f"the function of job {self.name!r} raised {type(error).__qualname__}: {error}",
                field=what,
            ) from error


def _checked_text(what: str, value: object, limit: int) -> str:
    problem = text_problem(value, limit)
    if problem is not None:
        raise InvalidInput(problem, field=what)
    return plain_text(value)
