"""Figures of one scheduler."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class SchedulerStats:
    """What a scheduler has done since it started.

    Attributes:
        name: Its label.
        state: ``idle``, ``starting``, ``running``, ``draining`` or ``stopped``.
        leading: Whether it fires: of those that can fire the same, one does.
        schedules: How many it knows that can fire. Known to a leader only.
        fired: Occurrences fired.
        enqueued: Jobs that these have enqueued.
        failed: Tries that came to nothing: a function that raised, a payload that does not fit.
        overtaken: Fires that another scheduler, or a change, was faster than.
    """

    name: str
    state: str = "idle"
    leading: bool = False
    schedules: int = 0
    fired: int = 0
    enqueued: int = 0
    failed: int = 0
    overtaken: int = 0
