"""When a schedule is due: cron expressions and intervals, in real time zones. Pure, no database."""

from jobs.timetable.catchup import CATCH_UPS, CatchUp, Due, due_now, latest
from jobs.timetable.cron import ALIASES, Cron, parse
from jobs.timetable.table import (
    EPOCH,
    LONGEST_EVERY,
    CronTable,
    IntervalTable,
    Timetable,
    make,
    upcoming,
)
from jobs.timetable.zones import zone

__all__ = [
    "ALIASES",
    "CATCH_UPS",
    "EPOCH",
    "LONGEST_EVERY",
    "CatchUp",
    "Cron",
    "CronTable",
    "Due",
    "IntervalTable",
    "Timetable",
    "due_now",
    "latest",
    "make",
    "parse",
    "upcoming",
    "zone",
]
