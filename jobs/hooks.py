"""What a hook is told of a job that has ended, and what may be a hook."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Generic, Literal, TypeAlias, TypeVar
from uuid import UUID

from jobs.callables import is_generator, takes_one
from jobs.errors import DeclarationError

M = TypeVar("M")

SettledOutcome: TypeAlias = Literal["completed", "dead", "failed", "refused"]
StopReason: TypeAlias = Literal["exhausted", "terminal", "lease lapsed", "refused"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled(Generic[M]):
    """A job that has ended, as its ``on_settled`` hook is told.

    Attributes:
        id: The job's id.
        run_id: Identity of the run, the same in every attempt.
        name: The job's name.
        queue: The queue it was claimed from.
        outcome: How it ended: completed; dead, a dead letter; failed, where the declaration says
            ``dead_letter=False``; refused, where it met its concurrency key in use and did not want
            to wait.
        stop_reason: Why a job that did not complete was ended: exhausted (no attempt left),
            terminal (its error said that none would help), lease lapsed (its process died in the
            last attempt) or refused. None for a completed one.
        attempt: Number of the last attempt, from 1; 0 where it was refused before the first.
        max_attempts: The attempt limit.
        tenant: Tenant it was enqueued for, None for none.
        error_type: Class name of the last error, None for a completed job.
        error_message: Its text, bounded; None for a completed job.
        payload: The stored input as JSON text, whether it can be read or not.
        result: What a completed job has stored, as JSON text; None for nothing.
        created_at: When the job was enqueued, by the database's clock.
        traceparent: W3C trace parent of the enqueue, if one was given.
        enqueued_by: Who asked, for audit. Never an authority.
        worker: Label of the process that ended the job, in which the hook runs.
    """

    id: UUID
    run_id: UUID
    name: str
    queue: str
    outcome: SettledOutcome
    stop_reason: StopReason | None
    attempt: int
    max_attempts: int
    tenant: str | None
    error_type: str | None
    error_message: str | None
    payload: str
    result: str | None
    created_at: datetime
    traceparent: str | None
    enqueued_by: str | None
    worker: str
    _load: Callable[[str], M] = field(repr=False)

    @property
    def input(self) -> M:
        """The input of the job, read anew from `payload`.

        Raises PayloadUnreadable where it does not fit the model, which may be why the job ended.
        """
        return self._load(self.payload)


Hook: TypeAlias = Callable[[Settled[Any]], object]
"""A function of the `Settled` job: an asynchronous one runs on the event loop, another in a thread.
What it returns is not looked at."""


def checked_hook(value: object) -> None:
    """Refuse what could only fail when a job has ended (DeclarationError)."""
    if not callable(value) or isinstance(value, type):
        raise DeclarationError(
            f"on_settled: must be a function of a jobs.Settled, and is a {type(value).__qualname__}"
        )
    if is_generator(value):
        raise DeclarationError("on_settled: contains a yield, so calling it would not run it")
    if not takes_one(value):
        raise DeclarationError("on_settled: must take the jobs.Settled as its one argument")
