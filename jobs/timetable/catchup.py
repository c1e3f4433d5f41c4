"""Which of the occurrences that were missed are made up for."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final, Literal, TypeAlias, get_args

from jobs.timetable.table import Timetable

CatchUp: TypeAlias = Literal["skip", "run_once", "run_all"]

CATCH_UPS: Final[tuple[str, ...]] = get_args(CatchUp)

_MICROSECOND: Final = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class Due:
    """One occurrence that is to fire.

    Attributes:
        occurrence: It, in UTC like the others.
        watermark: Up to where the schedule is dealt with once it has fired.
        left: How many more of the same catch-up may fire; None where none is under way.
        until: The end of that catch-up: what was missed by then.
    """

    occurrence: datetime
    watermark: datetime
    left: int | None = None
    until: datetime | None = None


def due_now(
    table: Timetable,
    catch_up: CatchUp,
    cap: int,
    watermark: datetime,
    now: datetime,
    *,
    left: int | None = None,
    until: datetime | None = None,
) -> Due | None:
    """What a schedule fires next, if anything is due.

    Args:
        table: When it is due.
        catch_up: What becomes of occurrences that were missed, that is all but the newest of
            several that are due.
        cap: How many ``run_all`` fires at most.
        watermark: Up to where it is dealt with.
        now: The time of the database. Nothing later is due.
        left, until: Of the catch-up under way, as the last `Due` said.
    """
    now = now.astimezone(UTC)
    first = table.after(watermark)
    if first > now:
        return None
    if left is not None and until is not None and first <= until.astimezone(UTC):
        return _of_catch_up(table, first, until.astimezone(UTC), left)
    second = table.after(first)
    if second > now:
        return Due(first, first)
    if catch_up == "run_once":
        return Due(first, now)
    if catch_up == "run_all":
        return _of_catch_up(table, first, now, cap)
    newest = latest(table, second, now)
    return Due(newest, newest)


def _of_catch_up(table: Timetable, first: datetime, until: datetime, left: int) -> Due:
    """The oldest that was missed. The last one takes with it those beyond the cap."""
    if left <= 1 or table.after(first) > until:
        return Due(first, max(first, until))
    return Due(first, first, left - 1, until)


def latest(table: Timetable, known: datetime, now: datetime) -> datetime:
    """The newest occurrence that is not later than ``now``, by bisection.

    Args:
        table: When the schedule is due.
        known: An occurrence that is not later than ``now``.
        now: The bound.
    """
    beyond = now
    while beyond - known > _MICROSECOND:
        middle = known + (beyond - known) / 2
        found = table.after(middle)
        if found <= now:
            known = found
        else:
            beyond = middle
    return known
