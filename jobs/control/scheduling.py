"""Schedules at run time: made, changed, paused, resumed, removed, beside those declared in code."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple, TypeVar, overload

from psycopg import AsyncConnection, Connection
from pydantic import BaseModel

from jobs.control.asking import NAME_BYTES, Conn, check_text
from jobs.errors import (
    ControlInvalid,
    ScheduleExists,
    ScheduleNotFound,
)
from jobs.flavour import Plan, call, drive
from jobs.handle import JobHandle
from jobs.tasking import DEFAULT_MAX_CATCH_UP, check_catch_up
from jobs.timetable import CatchUp, CronTable, IntervalTable, make, upcoming
from jobs_sql import schedule as sql

M = TypeVar("M", bound=BaseModel)

# How often a change begins anew because another was faster.
_TRIES: Final = 5


class Schedule(NamedTuple):
    """A schedule as its row says. Times are in UTC.

    Attributes:
        name: Its name.
        source: ``declared`` by a task in code, or ``stored``: made at run time.
        cron, every, anchor, tz: When it is due.
        catch_up, max_catch_up: What becomes of missed occurrences.
        job, input: What a stored one enqueues; the payload as JSON text.
        paused: Whether it is.
        watermark: Up to where it has been dealt with.
        last_occurrence, last_fired_at: The newest occurrence that fired, and when.
        error, error_at: Why it does not fire, and since when.
        created_at, changed_at: When it was made, and last changed.
        revision: Rises with each change.
        read_at: The time of the database when this was read.
    """

    name: str
    source: str
    cron: str | None
    every: timedelta | None
    anchor: datetime | None
    tz: str
    catch_up: str
    max_catch_up: int
    job: str | None
    input: str | None
    paused: bool
    watermark: datetime
    last_occurrence: datetime | None
    last_fired_at: datetime | None
    error: str | None
    error_at: datetime | None
    created_at: datetime
    changed_at: datetime
    revision: int
    read_at: datetime

    def timetable(self) -> CronTable | IntervalTable:
        """When it is due. Raises ScheduleInvalid where its row cannot be read."""
        return make(cron=self.cron, every=self.every, tz=self.tz, anchor=self.anchor)

    def next(self, n: int = 1, *, after: datetime | None = None) -> list[datetime]:
        """The next occurrences, in the zone of the schedule.

        Args:
            n: How many, 0 to 10,000.
            after: Later than this instant; than the time of the database by default.

        Raises ScheduleInvalid where its row cannot be read, InvalidInput for an argument.
        """
        return upcoming(self.timetable(), self.read_at if after is None else after, n)


# -- looking --------------------------------------------------------------------------------------


@overload
def schedules(conn: Connection[Any]) -> list[Schedule]: ...
@overload
def schedules(conn: AsyncConnection[Any]) -> Coroutine[Any, Any, list[Schedule]]: ...
def schedules(conn: Conn) -> list[Schedule] | Coroutine[Any, Any, list[Schedule]]:
    """All schedules, declared and stored, in order of name."""
    return drive(conn, _schedules())


def _schedules() -> Plan[list[Schedule]]:
    rows = yield from call(sql.list_schedules, sql.list_schedules_async, name=None)
    return [_schedule(row) for row in rows]


@overload
def get_schedule(conn: Connection[Any], name: str) -> Schedule: ...
@overload
def get_schedule(conn: AsyncConnection[Any], name: str) -> Coroutine[Any, Any, Schedule]: ...
def get_schedule(conn: Conn, name: str) -> Schedule | Coroutine[Any, Any, Schedule]:
    """One schedule. Raises ScheduleNotFound, ControlInvalid."""
    check_text("name", name, NAME_BYTES)
    return drive(conn, _get(name))


def _get(name: str) -> Plan[Schedule]:
    rows = yield from call(sql.list_schedules, sql.list_schedules_async, name=name)
    if not rows:
        raise ScheduleNotFound(f"there is no schedule {name!r}")
    return _schedule(rows[0])


def _schedule(row: sql.ListSchedulesRow) -> Schedule:
    fields = {field: getattr(row, field) for field in Schedule._fields}
    for field, value in fields.items():
        if isinstance(value, datetime):
            fields[field] = value.astimezone(UTC)
    return Schedule(**fields)


# -- making and changing --------------------------------------------------------------------------


@overload
def create_schedule(
    conn: Connection[Any],
    name: str,
    job: JobHandle[M],
    input: M | Mapping[str, Any],
    *,
    cron: str | None = None,
    tz: str | None = None,
    every: timedelta | None = None,
    anchor: datetime | None = None,
    catch_up: CatchUp = "skip",
    max_catch_up: int = DEFAULT_MAX_CATCH_UP,
) -> Schedule: ...
@overload
def create_schedule(
    conn: AsyncConnection[Any],
    name: str,
    job: JobHandle[M],
    input: M | Mapping[str, Any],
    *,
    cron: str | None = None,
    tz: str | None = None,
    every: timedelta | None = None,
    anchor: datetime | None = None,
    catch_up: CatchUp = "skip",
    max_catch_up: int = DEFAULT_MAX_CATCH_UP,
) -> Coroutine[Any, Any, Schedule]: ...
def create_schedule(
    conn: Conn,
    name: str,
    job: JobHandle[M],
    input: M | Mapping[str, Any],
    *,
    cron: str | None = None,
    tz: str | None = None,
    every: timedelta | None = None,
    anchor: datetime | None = None,
    catch_up: CatchUp = "skip",
    max_catch_up: int = DEFAULT_MAX_CATCH_UP,
) -> Schedule | Coroutine[Any, Any, Schedule]:
    """Make a schedule that enqueues a job. It begins with the first occurrence from now on.

    A scheduler that knows the job fires it, at the latest 10 s after the commit.

    Args:
        conn: A connection of either flavour.
        name: Its name, among those of declared tasks too; at most 255 bytes.
        job: What it enqueues, each time with this input.
        input: The payload, checked now as for an enqueue.
        cron, tz, every, anchor, catch_up, max_catch_up: As for `jobs.task`.

    Raises:
        ScheduleExists: There is one of that name.
        ScheduleInvalid: Cron, zone, interval or catch-up cannot be; the message names the field.
        InvalidInput: The payload cannot be stored, or its key or tenant not be derived.
        ControlInvalid: Another argument is unusable. Nothing was sent.
    """
    check_text("name", name, NAME_BYTES)
    table = make(cron=cron, every=every, tz=tz, anchor=anchor)
    check_catch_up(catch_up, max_catch_up)
    text = _payload(job, input)
    return drive(conn, _create(name, job.name, text, table, catch_up, max_catch_up))


def _create(
    name: str,
    job: str,
    text: str,
    table: CronTable | IntervalTable,
    catch_up: str,
    max_catch_up: int,
) -> Plan[Schedule]:
    made = yield from call(
        sql.create_schedule,
        sql.create_schedule_async,
        name=name,
        **_timing(table),
        catch_up=catch_up,
        max_catch_up=max_catch_up,
        job=job,
        input=text,
    )
    if not made:
        raise ScheduleExists(f"there is a schedule {name!r}")
    return (yield from _get(name))


def _timing(table: CronTable | IntervalTable) -> dict[str, Any]:
    if isinstance(table, CronTable):
        return {"cron": table.cron.text, "every": None, "anchor": None, "tz": table.tz.key}
    return {"cron": None, "every": table.every, "anchor": table.anchor, "tz": table.tz.key}


def _payload(job: object, input: object) -> str:
    if not isinstance(job, JobHandle):
        raise ControlInvalid(f"job must be the handle of a declared job, not {job!r:.200}")
    return job.row(input, None, None, None, None).input


@overload
def change_schedule(
    conn: Connection[Any],
    name: str,
    *,
    job: JobHandle[Any] | None = None,
    input: BaseModel | Mapping[str, Any] | None = None,
    cron: str | None = None,
    tz: str | None = None,
    every: timedelta | None = None,
    anchor: datetime | None = None,
    catch_up: CatchUp | None = None,
    max_catch_up: int | None = None,
) -> Schedule: ...
@overload
def change_schedule(
    conn: AsyncConnection[Any],
    name: str,
    *,
    job: JobHandle[Any] | None = None,
    input: BaseModel | Mapping[str, Any] | None = None,
    cron: str | None = None,
    tz: str | None = None,
    every: timedelta | None = None,
    anchor: datetime | None = None,
    catch_up: CatchUp | None = None,
    max_catch_up: int | None = None,
) -> Coroutine[Any, Any, Schedule]: ...
def change_schedule(
    conn: Conn,
    name: str,
    *,
    job: JobHandle[Any] | None = None,
    input: BaseModel | Mapping[str, Any] | None = None,
    cron: str | None = None,
    tz: str | None = None,
    every: timedelta | None = None,
    anchor: datetime | None = None,
    catch_up: CatchUp | None = None,
    max_catch_up: int | None = None,
) -> Schedule | Coroutine[Any, Any, Schedule]:
    """Change a schedule that was made at run time. What is not given stays as it is.

    Where its timing is changed it begins anew with the first occurrence from now on. The change
    acts at the latest 10 s after the commit; a fire that was planned before it does nothing.

    Args:
        conn: A connection of either flavour.
        name: Its name.
        job, input: Both or neither: what it enqueues.
        cron, tz, every, anchor: As for `jobs.task`. A cron expression takes the place of an
            interval and the other way round; ``tz`` and ``anchor`` may be given by themselves.
        catch_up, max_catch_up: As for `jobs.task`.

    Raises:
        ScheduleNotFound: There is none of that name.
        ScheduleInvalid, InvalidInput: As for `create_schedule`.
        ControlInvalid: An argument is unusable, or the schedule is declared in code.
    """
    check_text("name", name, NAME_BYTES)
    if (job is None) != (input is None):
        raise ControlInvalid("job and input are changed together, and one of them is missing")
    if cron is not None and every is not None:
        make(cron=cron, every=every, tz=tz)  # says what is wrong with that
    text = None if job is None else _payload(job, input)

    def changed(now: Schedule) -> dict[str, Any]:
        if now.source != "stored":
            raise ControlInvalid(
                f"{name!r} is declared in code",
                fix="Change the declaration, or pause it; only made schedules change at run time.",
            )
        table = make(
            cron=cron if cron is not None else None if every is not None else now.cron,
            every=every if every is not None else None if cron is not None else now.every,
            tz=now.tz if tz is None else tz,
            anchor=anchor if anchor is not None else None if cron is not None else now.anchor,
        )
        policy = now.catch_up if catch_up is None else catch_up
        cap = now.max_catch_up if max_catch_up is None else max_catch_up
        check_catch_up(policy, cap)
        return {
            **_timing(table),
            "catch_up": policy,
            "max_catch_up": cap,
            "job": now.job if job is None else job.name,
            "input": now.input if text is None else text,
            "rearm": False,
        }

    return drive(conn, _change(name, changed))


def _change(name: str, changed: Callable[[Schedule], dict[str, Any]]) -> Plan[Schedule]:
    for _ in range(_TRIES):
        now = yield from _get(name)
        done = yield from call(
            sql.change_schedule,
            sql.change_schedule_async,
            name=name,
            revision=now.revision,
            **changed(now),
        )
        if done:
            return (yield from _get(name))
    raise ControlInvalid(
        f"{name!r} is changed by others all the time", fix="Try again when they have ended."
    )


@overload
def rearm_schedule(conn: Connection[Any], name: str) -> Schedule: ...
@overload
def rearm_schedule(conn: AsyncConnection[Any], name: str) -> Coroutine[Any, Any, Schedule]: ...
def rearm_schedule(conn: Conn, name: str) -> Schedule | Coroutine[Any, Any, Schedule]:
    """Let a schedule, declared or stored, begin anew with the first occurrence from now on.

    What it has missed is dropped. The one way to move a watermark back, where the clock of the
    database had been ahead.

    Raises ScheduleNotFound, ControlInvalid.
    """
    check_text("name", name, NAME_BYTES)

    def same(now: Schedule) -> dict[str, Any]:
        kept = ("cron", "every", "anchor", "tz", "catch_up", "max_catch_up", "job", "input")
        return {**{field: getattr(now, field) for field in kept}, "rearm": True}

    return drive(conn, _change(name, same))


# -- pausing and removing -------------------------------------------------------------------------


@overload
def pause_task(conn: Connection[Any], name: str, *, paused_by: str | None = None) -> bool: ...
@overload
def pause_task(
    conn: AsyncConnection[Any], name: str, *, paused_by: str | None = None
) -> Coroutine[Any, Any, bool]: ...
def pause_task(
    conn: Conn, name: str, *, paused_by: str | None = None
) -> bool | Coroutine[Any, Any, bool]:
    """Let a schedule, declared or stored, fire nothing until it is resumed.

    It acts with the commit. What is missed meanwhile is for its catch-up when it is resumed.

    Args:
        conn: A connection of either flavour.
        name: The name of the task or schedule. There need be none yet.
        paused_by: Who asks, kept with the pause; at most 255 bytes.

    Returns:
        Whether this call paused it; False where it was paused already.

    Raises:
        ControlInvalid: An argument is unusable. Nothing was sent.
    """
    check_text("name", name, NAME_BYTES)
    if paused_by is not None:
        check_text("paused_by", paused_by, NAME_BYTES)
    return drive(conn, _pause(name, paused_by))


def _pause(name: str, paused_by: str | None) -> Plan[bool]:
    done = yield from call(sql.pause_task, sql.pause_task_async, name=name, paused_by=paused_by)
    return done > 0


@overload
def resume_task(conn: Connection[Any], name: str) -> bool: ...
@overload
def resume_task(conn: AsyncConnection[Any], name: str) -> Coroutine[Any, Any, bool]: ...
def resume_task(conn: Conn, name: str) -> bool | Coroutine[Any, Any, bool]:
    """Let a paused schedule fire again, at the latest 10 s after the commit.

    Returns whether this call resumed it. Raises ControlInvalid.
    """
    check_text("name", name, NAME_BYTES)
    return drive(conn, _resume(name))


def _resume(name: str) -> Plan[bool]:
    done = yield from call(sql.resume_task, sql.resume_task_async, name=name)
    return done > 0


@overload
def remove_schedule(conn: Connection[Any], name: str) -> bool: ...
@overload
def remove_schedule(conn: AsyncConnection[Any], name: str) -> Coroutine[Any, Any, bool]: ...
def remove_schedule(conn: Conn, name: str) -> bool | Coroutine[Any, Any, bool]:
    """Remove a schedule and its pause. Jobs that it has enqueued stay.

    One that is declared in code comes back, armed anew, while a scheduler declares it: pause it
    instead, or remove it when its declaration is gone.

    Returns whether there was one. Raises ControlInvalid.
    """
    check_text("name", name, NAME_BYTES)
    return drive(conn, _remove(name))


def _remove(name: str) -> Plan[bool]:
    done = yield from call(sql.remove_schedule, sql.remove_schedule_async, name=name)
    return done > 0
