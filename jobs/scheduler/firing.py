"""The statement of one fire."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Final

from psycopg import AsyncConnection

from jobs.firing import Shot
from jobs.scheduler.plan import Plan
from jobs.texts import escaped
from jobs.timetable import Due
from jobs_sql import fire

_ERROR_CHARACTERS: Final = 2_000


async def send(
    conn: AsyncConnection[Any],
    one: Plan,
    due: Due,
    made: list[Shot],
    *,
    role: str,
    holder: str,
    lease: timedelta,
) -> fire.FireScheduleRow | None:
    """Fire an occurrence, and renew the lease of the leader with it.

    Args:
        conn: An autocommit connection.
        one: The schedule, as it was read.
        due: The occurrence, and what its row says afterwards.
        made: The jobs of the occurrence.
        role: In what it leads.
        holder: The leader.
        lease: How long it leads from now on.

    Raises as the statement does.
    """
    rows, targets = [shot.row for shot in made], [shot.target for shot in made]
    return await fire.fire_schedule_async(
        conn,
        name=one.name,
        watermark=one.watermark,
        revision=one.revision,
        next_watermark=due.watermark,
        occurrence=due.occurrence,
        catch_up_left=due.left,
        catch_up_until=due.until,
        ids=[row.id for row in rows],
        run_ids=[row.run_id for row in rows],
        queues=[target.queue for target in targets],
        names=[target.name for target in targets],
        tenants=[row.tenant for row in rows],
        priorities=[row.priority for row in rows],
        run_ats=[row.run_at for row in rows],
        delays=[row.delay for row in rows],
        max_attempts=[target.max_attempts for target in targets],
        dead_letters=[target.dead_letter for target in targets],
        idempotency_scopes=[target.idempotency_scope for target in targets],
        idempotency_keys=[row.key for row in rows],
        concurrency_keys=[row.concurrency_key for row in rows],
        concurrency_limits=[target.concurrency_limit for target in targets],
        when_busys=[target.when_busy for target in targets],
        inputs=[row.input for row in rows],
        enqueued_by=f"task {one.name}",
        role=role,
        holder=holder,
        lease=lease,
    )


def storable(text: str) -> str:
    """A message in the form that the database takes, and not longer than it need be."""
    return escaped(text)[:_ERROR_CHARACTERS]
