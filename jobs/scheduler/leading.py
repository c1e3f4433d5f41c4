"""What a scheduler leads in, and the statement that notes what it declares."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from psycopg import AsyncConnection

from jobs.registry import Registry
from jobs.timetable import CronTable, IntervalTable
from jobs_sql import schedule


def role_of(registry: Registry) -> str:
    """The role in which schedulers lead that can fire the same, whatever process they are.

    Tasks are fired by who declares them, stored schedules by who knows their jobs.
    """
    names = [sorted(task.name for task in registry.tasks), sorted(job.name for job in registry)]
    return f"scheduler:{hashlib.sha256(json.dumps(names).encode()).hexdigest()[:16]}"


async def arm(
    conn: AsyncConnection[Any], registry: Registry, *, replace: bool
) -> schedule.ArmSchedulesRow | None:
    """Note the declared tasks.

    Args:
        conn: An autocommit connection.
        registry: It declares at least one.
        replace: Whether what another version has declared gives way.

    Raises as the statement does.
    """
    tasks = registry.tasks
    tables = [task.table for task in tasks]
    return await schedule.arm_schedules_async(
        conn,
        names=[task.name for task in tasks],
        crons=[one.cron.text if isinstance(one, CronTable) else None for one in tables],
        everys=[one.every if isinstance(one, IntervalTable) else None for one in tables],
        anchors=[one.anchor if isinstance(one, IntervalTable) else None for one in tables],
        tzs=[one.tz.key for one in tables],
        catch_ups=[task.catch_up for task in tasks],
        max_catch_ups=[task.max_catch_up for task in tasks],
        replace=replace,
    )
