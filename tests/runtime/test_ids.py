"""Job ids: the layout of RFC 9562, and order whatever the clock, the threads and forks do."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from uuid import RFC_4122, UUID

import pytest

from jobs.ids import Generator, uuid7


def milliseconds(value: UUID) -> int:
    return value.int >> 80


def counter(value: UUID) -> int:
    return ((value.int >> 64 & 0xFFF) << 30) | (value.int >> 32 & 0x3FFF_FFFF)


def test_layout_is_that_of_rfc_9562() -> None:
    before = time.time_ns() // 1_000_000
    made = Generator()()
    after = time.time_ns() // 1_000_000
    assert made.version == 7
    assert made.variant == RFC_4122
    assert before <= milliseconds(made) <= after


def test_ids_only_grow_and_never_repeat() -> None:
    made = [uuid7() for _ in range(20_000)]
    assert made == sorted(set(made))


def test_ids_grow_when_the_clock_steps_back(monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.time_ns()
    make = Generator()
    first = make()
    monkeypatch.setattr("jobs.ids.time.time_ns", lambda: now - 3_600 * 10**9)
    second = make()
    third = make()
    assert first < second < third
    assert milliseconds(second) == milliseconds(first)
    monkeypatch.setattr("jobs.ids.time.time_ns", lambda: now + 10**9)
    assert make() > third
    assert milliseconds(make()) == (now + 10**9) // 1_000_000


def test_a_full_counter_borrows_from_the_next_millisecond(monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.time_ns()
    monkeypatch.setattr("jobs.ids.time.time_ns", lambda: now)
    make = Generator()
    make._milliseconds = now // 1_000_000
    make._counter = (1 << 42) - 2
    last = make()
    assert counter(last) == (1 << 42) - 1
    borrowed = make()
    assert borrowed > last
    assert milliseconds(borrowed) == now // 1_000_000 + 1
    assert counter(borrowed) < 1 << 41


def test_the_counter_starts_at_random_in_its_lower_half(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    starts = set()
    for step in range(50):
        monkeypatch.setattr("jobs.ids.time.time_ns", lambda step=step: (step + 1) * 10**9)
        starts.add(counter(Generator()()))
    assert max(starts) < 1 << 41
    assert len(starts) == 50


class Slow(Generator):
    """Lets another thread run after each look at the counter."""

    @property
    def _counter(self) -> int:
        seen = self._value
        time.sleep(0.00001)
        return seen

    @_counter.setter
    def _counter(self, value: int) -> None:
        self._value = value


def test_many_ids_are_as_if_made_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    make = Generator()
    now = time.time_ns()
    monkeypatch.setattr("jobs.ids.time.time_ns", lambda: now)
    before = make()
    made = make.many(1_000)
    assert [before, *made] == sorted({before, *made})
    assert make() > made[-1]
    assert [counter(id) for id in made] == [counter(before) + 1 + n for n in range(1_000)]
    assert len({id.int & 0xFFFF_FFFF for id in made}) > 990, "each has random bits of its own"
    for id in (made[0], made[-1]):
        assert (id.version, id.variant, milliseconds(id)) == (7, RFC_4122, now // 1_000_000)
        same = UUID(int=id.int)
        assert (id, hash(id), str(id), id.is_safe) == (same, hash(same), str(same), same.is_safe)
    assert make.many(0) == []


def test_many_ids_grow_whatever_the_clock_does(monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.time_ns()
    make = Generator()
    made = make.many(3)
    monkeypatch.setattr("jobs.ids.time.time_ns", lambda: now - 3_600 * 10**9)
    made += make.many(3)
    monkeypatch.setattr("jobs.ids.time.time_ns", lambda: now + 10**9)
    made += make.many(3)
    assert made == sorted(set(made))
    assert milliseconds(made[-1]) == (now + 10**9) // 1_000_000


@pytest.mark.parametrize("start", [(1 << 30) - 3, (7 << 30) - 3, (1 << 42) - 3])
def test_many_ids_carry_over_the_variant_and_the_end(
    monkeypatch: pytest.MonkeyPatch, start: int
) -> None:
    now = time.time_ns()
    monkeypatch.setattr("jobs.ids.time.time_ns", lambda: now)
    make = Generator()
    make._milliseconds = now // 1_000_000
    make._counter = start
    made = make.many(10)
    assert made == sorted(set(made))
    assert {(id.version, id.variant) for id in made} == {(7, RFC_4122)}
    full = start == (1 << 42) - 3
    assert [milliseconds(id) - now // 1_000_000 for id in made] == [0] * 2 + [int(full)] * 8
    if full:
        assert counter(made[2]) < 1 << 41
    else:
        assert [counter(id) for id in made] == [start + 1 + n for n in range(10)]


def test_threads_share_one_order(monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.time_ns()
    monkeypatch.setattr("jobs.ids.time.time_ns", lambda: now)
    make = Slow()
    start = threading.Barrier(4)

    def some() -> list[UUID]:
        start.wait()
        return [make() for _ in range(100)]

    with ThreadPoolExecutor(4) as threads:
        lists = [f.result() for f in [threads.submit(some) for _ in range(4)]]
    assert all(made == sorted(made) for made in lists)
    counters = sorted(counter(one) for made in lists for one in made)
    assert counters == list(range(counters[0], counters[0] + 400))


def test_an_id_made_in_a_signal_handler_does_not_lock_up() -> None:
    made: list[UUID] = []
    previous = signal.signal(signal.SIGUSR1, lambda *_: made.append(uuid7()))
    try:
        with uuid7._lock:  # as if the signal came in the middle of making one
            os.kill(os.getpid(), signal.SIGUSR1)
            while not made:
                time.sleep(0)
    finally:
        signal.signal(signal.SIGUSR1, previous)
    assert made[0] < uuid7()


def _some_ids(queue: multiprocessing.SimpleQueue[list[UUID]]) -> None:
    queue.put([uuid7() for _ in range(500)])


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_forked_children_make_ids_of_their_own() -> None:
    fork = multiprocessing.get_context("fork")
    queue = fork.SimpleQueue()
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with uuid7._lock:
            held.set()
            done.wait()

    # A thread that has the lock at the moment of the fork does not exist in the child.
    holder = threading.Thread(target=hold)
    holder.start()
    held.wait()
    # Daemons, so that children which stand still for ever end with the test run.
    children = [fork.Process(target=_some_ids, args=(queue,), daemon=True) for _ in range(3)]
    for child in children:
        child.start()
    done.set()
    holder.join()
    made = [one for _ in children for one in queue.get()]
    for child in children:
        child.join()
    made += [uuid7() for _ in range(500)]
    assert len(set(made)) == 2_000
    # Not by luck of the 32 random bits at the end: the counters differ as well.
    assert len({one.int >> 32 for one in made}) == 2_000
