"""What a measurement yields."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class Figure:
    """One number of one subject in one round, or the reason why there is none.

    Attributes:
        measure: The measurement, e.g. ``drain``.
        name: What was measured, e.g. ``tuned``.
        subject: Whom, e.g. ``sql-jobs`` or ``pgbench batch 100``.
        unit: Of the value, e.g. ``jobs/s``.
        value: The number; None where there is none.
        round: From 0.
        reason: Why there is no number.
        detail: Whatever else was seen, for the JSON file.
    """

    measure: str
    name: str
    subject: str
    unit: str
    value: float | None
    round: int = 0
    reason: str = ""
    detail: dict[str, Any] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """For the file of results."""
        return asdict(self)


@dataclass(frozen=True)
class Summary:
    """The rounds of one figure."""

    median: float
    low: float
    high: float
    count: int

    @classmethod
    def of(cls, values: Iterable[float]) -> Summary | None:
        """None without values."""
        known = sorted(values)
        if not known:
            return None
        return cls(statistics.median(known), known[0], known[-1], len(known))


def by_round(figures: Iterable[Figure], name: str, subject: str) -> dict[int, float]:
    """Round -> value of one figure of one subject."""
    return {
        each.round: each.value
        for each in figures
        if each.name == name and each.subject == subject and each.value is not None
    }


def ratios(over: dict[int, float], under: dict[int, float]) -> Summary | None:
    """The quotient in each round in which both were measured."""
    return Summary.of(over[n] / under[n] for n in over if under.get(n))
