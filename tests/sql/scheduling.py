"""Statements of the scheduler as the tests call them: with defaults, every row checked."""

from __future__ import annotations

import datetime as dt
from typing import Any

from psycopg import Connection

from jobs_sql import fire as fire_sql
from jobs_sql import leader as leader_sql
from jobs_sql import schedule as sql
from tests.sql.calls import new_id, strict

Conn = Connection[Any]
LEASE = dt.timedelta(seconds=30)
HOUR = dt.timedelta(hours=1)
SECOND = dt.timedelta(seconds=1)


def tick(
    conn: Conn, holder: str = "one", *, role: str = "scheduler:one"
) -> leader_sql.TickSchedulerRow:
    row = leader_sql.tick_scheduler(conn, role=role, holder=holder, lease=LEASE)
    assert row is not None
    return strict(leader_sql.TickSchedulerRow, [row])[0]


def arm(conn: Conn, name: str = "nightly", cron: str | None = "0 3 * * *", **more: Any) -> int:
    """`ArmSchedules` of one task; whether it was new or changed."""
    row = arming(conn, name, cron, **more)
    assert row.busy == 0
    return row.armed


def arming(
    conn: Conn, name: str = "nightly", cron: str | None = "0 3 * * *", **more: Any
) -> sql.ArmSchedulesRow:
    """`ArmSchedules` of one task."""
    given: dict[str, Any] = {
        "every": None,
        "anchor": None,
        "tz": "UTC",
        "catch_up": "skip",
        "max_catch_up": 10,
        "replace": True,
    } | more
    row = sql.arm_schedules(
        conn,
        names=[name],
        crons=[cron],
        everys=[given["every"]],
        anchors=[given["anchor"]],
        tzs=[given["tz"]],
        catch_ups=[given["catch_up"]],
        max_catch_ups=[given["max_catch_up"]],
        replace=given["replace"],
    )
    assert row is not None
    return strict(sql.ArmSchedulesRow, [row])[0]


def create(conn: Conn, name: str = "made", **more: Any) -> int:
    given: dict[str, Any] = {
        "cron": "0 3 * * *",
        "every": None,
        "anchor": None,
        "tz": "UTC",
        "catch_up": "skip",
        "max_catch_up": 10,
        "job": "work",
        "input": '{"n":1}',
    } | more
    return sql.create_schedule(conn, name=name, **given)


def change(conn: Conn, name: str = "made", **more: Any) -> int:
    row = read(conn, name)
    given = {
        field: getattr(row, field)
        for field in ("cron", "every", "anchor", "tz", "catch_up", "max_catch_up", "job", "input")
    }
    given |= {"rearm": False, "revision": row.revision} | more
    return sql.change_schedule(conn, name=name, **given)


def mark(conn: Conn, name: str = "made", revision: int = 1, **more: Any) -> int:
    """Say of a row as it is now that it has an error."""
    given = {"watermark": read(conn, name).watermark, "error": "no"} | more
    return fire_sql.mark_schedule(conn, name=name, revision=revision, **given)


def resign(conn: Conn, holder: str = "one", *, role: str = "scheduler:one") -> int:
    return leader_sql.resign_scheduler(conn, role=role, holder=holder)


def read(conn: Conn, name: str = "nightly") -> sql.ListSchedulesRow:
    (row,) = strict(sql.ListSchedulesRow, sql.list_schedules(conn, name=name))
    return row


def set_back(conn: Conn, name: str = "nightly", by: dt.timedelta = HOUR) -> dt.datetime:
    """Move a watermark into the past, to the full second."""
    row = conn.execute(
        "update jobs.schedule set watermark = date_trunc('second', clock_timestamp() - %s)"
        " where name = %s returning watermark",
        [by, name],
    ).fetchone()
    assert row is not None
    found: dt.datetime = row[0]
    return found


def fire(
    conn: Conn, name: str = "nightly", count: int = 1, **more: Any
) -> fire_sql.FireScheduleRow:
    """Fire the second behind the watermark, as read now unless said otherwise."""
    if not {"watermark", "revision"} <= more.keys():
        row = read(conn, name)
        more = {"watermark": row.watermark, "revision": row.revision} | more
    occurrence = more.pop("occurrence", more["watermark"] + SECOND)
    given: dict[str, Any] = {
        "occurrence": occurrence,
        "next_watermark": occurrence,
        "catch_up_left": None,
        "catch_up_until": None,
        "ids": [new_id() for _ in range(count)],
        "run_ids": [new_id() for _ in range(count)],
        "queues": ["q"] * count,
        "names": ["work"] * count,
        "tenants": [""] * count,
        "priorities": [0] * count,
        "run_ats": [None] * count,
        "delays": [dt.timedelta(0)] * count,
        "max_attempts": [3] * count,
        "dead_letters": [True] * count,
        "idempotency_scopes": ["live"] * count,
        "idempotency_keys": [f"task:{name}@{occurrence.isoformat()}#{at}" for at in range(count)],
        "concurrency_keys": [None] * count,
        "concurrency_limits": [None] * count,
        "when_busys": [None] * count,
        "inputs": ['{"n":1}'] * count,
        "enqueued_by": f"task {name}",
        "role": "scheduler:one",
        "holder": "one",
        "lease": LEASE,
    } | more
    answer = fire_sql.fire_schedule(conn, name=name, **given)
    assert answer is not None
    return strict(fire_sql.FireScheduleRow, [answer])[0]


def jobs(conn: Conn) -> int:
    row = conn.execute("select count(*) from jobs.job").fetchone()
    assert row is not None
    return int(row[0])
