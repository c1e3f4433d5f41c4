"""A run: who takes part, what is measured, in rounds where everybody has a turn."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from bench.arena import Arena
from bench.contestant import Contestant
from bench.environments import UnavailableError
from bench.figures import Figure
from bench.machine import Load
from bench.sizes import Sizes
from bench.subjects.drive import load as load_subject

OURS = "sql-jobs"
PEERS = ("procrastinate", "pgqueuer", "chancy", "oban", "awa", "absurd", "taskq", "pq")


@dataclass
class Run:
    """What every measurement is given.

    Attributes:
        arena: The server.
        sizes: How much to do.
        contestants: Those that could be installed, ours first.
        absent: Name -> why it takes no part.
        figures: What was measured so far.
    """

    arena: Arena
    sizes: Sizes
    contestants: list[Contestant] = field(default_factory=list)
    absent: dict[str, str] = field(default_factory=dict)
    figures: list[Figure] = field(default_factory=list)

    def enter(self, names: Iterable[str], cache: Path) -> None:
        """Install those libraries; one that cannot be is absent, with the reason."""
        for name in names:
            try:
                self.contestants.append(Contestant(self.arena, load_subject(name), cache))
            except UnavailableError as error:
                self.absent[name] = str(error)
                say(f"{name} is absent: {error}")

    @property
    def ours(self) -> Contestant:
        """This library."""
        return self.contestants[0]

    def rounds(self) -> Iterator[tuple[int, Contestant]]:
        """Every contestant in every round, each round beginning with another one."""
        count = len(self.contestants)
        for number in range(self.sizes.rounds):
            for place in range(count):
                yield number, self.contestants[(number + place) % count]

    def add(self, figure: Figure) -> None:
        """Keep a figure, and show it."""
        self.figures.append(figure)
        shown = figure.reason if figure.value is None else f"{figure.value:,.4g} {figure.unit}"
        say(f"{figure.measure}: {figure.name}, round {figure.round + 1}, {figure.subject}: {shown}")

    @contextmanager
    def attempt(
        self, measure: str, name: str, subject: str, unit: str, number: int
    ) -> Iterator[Callable[..., None]]:
        """Take one figure: call what is yielded with the value. A subject that fails is noted."""

        def take(value: float, **detail: object) -> None:
            detail["load"] = load.used()
            self.add(Figure(measure, name, subject, unit, value, number, detail=detail))

        load = Load()
        try:
            yield take
        except UnavailableError as error:
            self.add(Figure(measure, name, subject, unit, None, number, str(error)))


def say(text: str) -> None:
    """Progress, apart from the results."""
    print(text, file=sys.stderr, flush=True)
