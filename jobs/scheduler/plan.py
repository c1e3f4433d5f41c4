"""A schedule as a leading scheduler keeps it in memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Final

from jobs.errors import JobsError, UnknownJob
from jobs.firing import Shot, shots
from jobs.registry import Registry
from jobs.tasking import check_catch_up
from jobs.texts import text_of
from jobs.timetable import CatchUp, Due, Timetable, due_now, make
from jobs_sql.schedule import ListSchedulesRow

# A watermark further ahead than this was not written under the clock of now.
_AHEAD: Final = timedelta(minutes=1)
# What has been due for so long is fired by nobody.
_OVERDUE: Final = timedelta(minutes=1)


class UnusableError(Exception):
    """A row that cannot fire here, for the reason in the message.

    Attributes:
        due: From when on it is missed that nobody else fires it; None where nobody can.
    """

    def __init__(self, said: str, due: datetime | None = None) -> None:
        super().__init__(said)
        self.due = due


@dataclass(slots=True)
class Plan:
    """One schedule that can fire.

    Attributes:
        name, revision, paused: As its row says.
        table, catch_up, cap: When it is due, and how it catches up.
        aim: Makes the jobs of an occurrence.
        calls: Whether that calls a function of the application.
        watermark, left, until: Up to where it is dealt with, and the catch-up under way.
        next_due: The first occurrence behind the watermark.
        error: What its row says is wrong with it.
        failures: Tries in a row that came to nothing.
        not_before: No further try before this, by the monotonic clock.
    """

    name: str
    revision: int
    paused: bool
    table: Timetable
    catch_up: CatchUp
    cap: int
    aim: Callable[[datetime], list[Shot]]
    calls: bool
    watermark: datetime
    left: int | None
    until: datetime | None
    next_due: datetime
    error: str | None
    failures: int = 0
    not_before: float = 0.0

    def due(self, now: datetime) -> Due | None:
        """What it fires next, if anything is due."""
        return due_now(
            self.table,
            self.catch_up,
            self.cap,
            self.watermark,
            now,
            left=self.left,
            until=self.until,
        )

    def fired(self, due: Due) -> None:
        """The database has taken a fire."""
        self.watermark, self.left, self.until = due.watermark, due.left, due.until
        self.next_due = self.table.after(self.watermark)
        self.error, self.failures, self.not_before = None, 0, 0.0


def plan(row: ListSchedulesRow, registry: Registry) -> Plan | None:
    """The plan of a row; None for a task that this process does not declare.

    Raises UnusableError: it cannot fire.
    """
    declared = registry.get_task(row.name)
    if row.source == "declared" and declared is None:
        return None  # another application does, or another version of this one
    next_due: datetime | None = None
    try:
        # By the row, also for a task: those that lead at the same time fire it by one timing.
        table: Timetable = make(cron=row.cron, every=row.every, tz=row.tz, anchor=row.anchor)
        catch_up = check_catch_up(row.catch_up, row.max_catch_up)
        next_due = table.after(row.watermark)
        if row.source == "declared":
            aim = partial(_aim_task, registry, row.name)
        elif declared is not None:
            raise UnusableError(f"a task of the same name is declared: {declared!r}", next_due)
        else:
            aim = partial(_aim_stored, registry, row.name, row.job or "", row.input or "")
            aim(row.watermark)  # a payload that does not fit is said at once
    except UnusableError:
        raise
    except Exception as error:
        raise UnusableError(said_of(error), next_due) from error
    return Plan(
        name=row.name,
        revision=row.revision,
        paused=row.paused,
        table=table,
        catch_up=catch_up,
        cap=row.max_catch_up,
        aim=aim,
        calls=row.source == "declared",
        watermark=row.watermark,
        left=row.catch_up_left,
        until=row.catch_up_until,
        next_due=next_due,
        error=row.error,
    )


def said_of(error: Exception) -> str:
    """Why something cannot fire, for its row."""
    if isinstance(error, JobsError):
        return f"{error.cause} [{error.code}]"
    return f"{type(error).__name__}: {text_of(error)}"


def hoped_for(row: ListSchedulesRow, error: UnusableError) -> bool:
    """Whether a row that cannot fire here may yet be fired by another."""
    return error.due is not None and (row.paused or row.read_at - error.due < _OVERDUE)


def warning(row: ListSchedulesRow) -> str | None:
    """What is odd about a row that can fire."""
    ahead = row.watermark - row.read_at
    if ahead > _AHEAD:
        return (
            f"nothing fires for {ahead}: the watermark is ahead of the database's clock, which was "
            "set back; `jobs tasks rearm` moves it to now"
        )
    return None


def _aim_task(registry: Registry, name: str, occurrence: datetime) -> list[Shot]:
    task = registry.get_task(name)
    assert task is not None
    return shots(task.entries(occurrence), scope=(name, occurrence), enqueued_by=f"task {name}")


def _aim_stored(
    registry: Registry, name: str, job: str, text: str, occurrence: datetime
) -> list[Shot]:
    handle = registry.get(job)
    if handle is None:
        raise UnknownJob(f"there is no job {job!r} in this process")
    entry = (handle, handle.parse(text))
    return shots([entry], scope=(name, occurrence), enqueued_by=f"task {name}")
