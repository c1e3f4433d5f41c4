"""From what a task yields to the rows of one fire."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any, Final, NamedTuple, TypeAlias

from pydantic import BaseModel

from jobs.definition import KEY_LIMIT, Item
from jobs.enqueue import Row, Target
from jobs.errors import InvalidInput, JobsError
from jobs.handle import JobHandle
from jobs.options import type_name

Entry: TypeAlias = tuple[JobHandle[Any], BaseModel | Mapping[str, Any] | Item[Any]]
"""What a task yields: a job's handle, and its input or an `Item` with options."""

MOST_ENTRIES: Final = 10_000
MOST_CHARACTERS: Final = 32 * 1024 * 1024
"""Bounds of one fire, which is one statement."""


class Shot(NamedTuple):
    """One job of a fire, ready to be sent."""

    target: Target
    row: Row


def checked(entries: object) -> list[Entry]:
    """Refuse what is not a bounded sequence of pairs of a handle and an input (InvalidInput)."""
    if not isinstance(entries, Iterable) or isinstance(entries, str | bytes | Mapping | BaseModel):
        raise InvalidInput(
            f"a task yields pairs of a job and its input, and this one returned a "
            f"{type_name(entries)}",
            field="entries",
            fix="Write yield job, Input(...) in it, or return a list of such pairs.",
        )
    found: list[Entry] = []
    for entry in entries:
        pair = isinstance(entry, tuple) and len(entry) == 2 and isinstance(entry[0], JobHandle)
        if not pair:
            error = InvalidInput(
                f"is {entry!r:.200}, not a pair of a job and its input", field="entry"
            )
            error.at_item(len(found))
            raise error
        if len(found) == MOST_ENTRIES:
            raise InvalidInput(
                f"a task yields at most {MOST_ENTRIES:,} jobs at a time",
                field="entries",
                fix="Yield one job that enqueues the others with enqueue_many.",
            )
        found.append(entry)
    return found


def shots(
    entries: Iterable[Entry], *, scope: tuple[str, datetime] | None, enqueued_by: str | None
) -> list[Shot]:
    """Check the jobs of one fire. Raises as `JobHandle.enqueue`; the error carries the index.

    Args:
        entries: As `checked` returns them.
        scope: Task and occurrence of a scheduled fire; None for one by hand, which uses each job's
            plain idempotency key.
        enqueued_by: Who asks, for audit.
    """
    found: list[Shot] = []
    for index, (handle, given) in enumerate(entries):
        try:
            item = given if isinstance(given, Item) else Item(given)
            row = handle.row(item.input, item.delay, item.run_at, item.priority, item.id)
            target = handle.target(None, enqueued_by, "return")
            if scope is not None:
                if row.supplied:
                    raise InvalidInput("a scheduled job gets its id itself", field="id")
                row = row._replace(key=scoped_key(*scope, row.key, index))
        except JobsError as error:
            error.at_item(index)
            raise
        found.append(Shot(target, row))
    if sum(len(shot.row.input) for shot in found) > MOST_CHARACTERS:
        raise InvalidInput(
            f"the inputs have more than {MOST_CHARACTERS:,} characters together", field="entries"
        )
    return found


def scoped_key(task: str, occurrence: datetime, key: str | None, index: int) -> str:
    """The idempotency key of a scheduled job: its task, the occurrence, and its own key.

    Two tasks that enqueue the same job never hide each other's, nor does a job that still runs
    hide the next occurrence. A job without a key has its place among the entries instead.
    """
    own = f"#{index}" if key is None else f"={key}"
    scope = f"task:{task}@{occurrence.astimezone(UTC).isoformat()}"
    if len(own.encode()) > KEY_LIMIT - len(scope.encode()):
        own = f"~{sha256(own.encode()).hexdigest()}"
    return scope + own
