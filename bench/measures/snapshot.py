"""Drain while another session holds an old snapshot open, against the same without it.

Nothing that dies may be removed then, so dead index entries pile up in front of the live ones. Of
ours, the buffers a claimed job are sampled over the drain as well.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise

import psycopg

from bench.contestant import Contestant, Turn
from bench.measures.backlog import claim_buffers
from bench.measures.drain import drain
from bench.run import OURS, Run

NAME = "snapshot"
_SAMPLE_SECONDS = 0.25
_FIFTHS = 5


def run(run: Run) -> None:
    """Fresh and held, one after the other, for everybody in every round."""
    for number, contestant in run.rounds():
        for held in (False, True):
            _measure(run, number, contestant, held)


def _measure(run: Run, number: int, contestant: Contestant, held: bool) -> None:
    name = "held" if held else "fresh"
    with run.attempt(NAME, name, contestant.name, "jobs/s", number) as take:
        most = run.sizes.scaled(contestant.subject.backlog["tuned"])
        count = run.sizes.snapshot if contestant.name == OURS else min(most, run.sizes.snapshot)
        with contestant.turn(contestant.load("noop", count)) as turn, _holder(turn, held):
            run.arena.reset()
            with _samples(run, turn) as samples:
                # Twice the time, since what is measured is the end of it.
                rate, finished = drain(turn, "tuned", 1, count, 2 * run.sizes.cap)
            take(
                rate,
                finished=finished,
                rates_by_fifth=by_fifth(turn.marks()),
                claim_buffers_a_job=slopes(samples) if contestant.name == OURS else None,
            )
            if contestant.name == OURS:
                with run.attempt(
                    NAME, f"claim at the end, {name}", OURS, "buffers/job", number
                ) as also:
                    also(at_the_end(samples))


@contextmanager
def _holder(turn: Turn, held: bool) -> Iterator[None]:
    """A session with a snapshot of now, for the length of the block."""
    with psycopg.connect(turn.dsn) as conn:
        if held:
            conn.execute("set transaction isolation level repeatable read")
            conn.execute("select count(*) from pg_class")
        yield


@contextmanager
def _samples(run: Run, turn: Turn) -> Iterator[list[tuple[int, float]]]:
    """Pairs of jobs run and buffers of the claims so far, a few a second."""
    taken: list[tuple[int, float]] = []
    done = threading.Event()

    def look() -> None:
        taken.append((turn.count(), claim_buffers(run.arena, turn)))

    def take() -> None:
        look()
        while not done.wait(_SAMPLE_SECONDS):
            look()
        look()

    thread = threading.Thread(target=take)
    thread.start()
    try:
        yield taken
    finally:
        done.set()
        thread.join()


def slopes(samples: list[tuple[int, float]]) -> list[float]:
    """Buffers a job between neighbouring samples."""
    return [
        round((buffers - before) / (jobs - jobs_before), 1)
        for (jobs_before, before), (jobs, buffers) in pairwise(samples)
        if jobs > jobs_before
    ]


def at_the_end(samples: list[tuple[int, float]]) -> float:
    """Buffers a job over the last fifth of the jobs, or over all where samples are too few.

    A single pair of neighbours says little: a claim takes hundreds of jobs before they have run.
    """
    jobs, buffers = samples[-1]
    before = [each for each in samples if each[0] <= 0.8 * jobs]
    jobs_before, buffers_before = before[-1] if before else samples[0]
    return (buffers - buffers_before) / max(1, jobs - jobs_before)


def by_fifth(marks: list[float]) -> list[float]:
    """Jobs a second in each fifth of the jobs."""
    size = len(marks) // _FIFTHS
    ends = [marks[min(len(marks) - 1, size * part)] for part in range(_FIFTHS + 1)]
    return [
        round(size / (after - before), 1)
        for before, after in pairwise(ends)
        if size and after > before
    ]
