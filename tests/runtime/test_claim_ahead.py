"""Jobs claimed ahead of their slots: how many, and that they are as safe as those that run."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

import jobs
from jobs.worker.demand import Ask, Demand
from jobs.worker.held import Held
from jobs.worker.lane import HORIZON, MOST, PROOF, Lane
from jobs_sql.claim import ClaimJobsRow
from tests.runtime.working import (
    Input,
    Table,
    execute,
    job,
    leaving_nothing,
    logged,
    make,
    serving,
    until,
)


def claimed(claims: int) -> ClaimJobsRow:
    """A row of an answer."""
    none: Any = None
    values = dict.fromkeys(ClaimJobsRow._fields, none)
    return ClaimJobsRow(
        **values | {"verdict": "claimed", "queue": "q", "claims": claims, "input": ""}
    )


class Steps:
    """A lane whose jobs come and go as a test says, by a clock of its own."""

    def __init__(self, slots: int) -> None:
        self.lane = Lane("q", slots)
        self.now = 100.0

    def comes(self, count: int) -> None:
        """Jobs are claimed and wait."""
        for _ in range(count):
            self.lane.arrives(Held(None, "w", self.now), self.now)  # type: ignore[arg-type]

    def runs(self, count: int, seconds: float) -> None:
        """Jobs run one after the other, each for so long."""
        for _ in range(count):
            self.lane.waiting.popleft()
            self.lane.busy += 1
            self.now += seconds
            self.lane.busy -= 1
            self.lane.ended += 1
            if not self.lane.held:
                self.lane.rests(self.now)

    def passes(self, seconds: float, size: int = 2) -> int:
        """A claim that comes back full, and its jobs; return what was asked for."""
        asked = self.lane.room(self.now, look=False)
        self.lane.answered(asked, asked, asked * size)
        self.comes(asked)
        self.runs(asked, seconds)
        self.now += 1.0  # without jobs, which says nothing
        return asked


class TestHowMany:
    def test_slots_at_first_then_twice_as_many_each_time(self) -> None:
        steps = Steps(5)
        asked = [steps.passes(0.00001) for _ in range(13)]
        proven = 4  # passes of five until there is proof
        assert asked[:proven] == [5] * proven
        assert 5 * proven == PROOF
        assert asked[proven:] == sorted(asked[proven:])
        assert asked[-1] == MOST
        assert sum(asked[:-2]) > MOST, "not at once"

    @pytest.mark.parametrize(("seconds", "most"), [(0.02, 5), (0.01, 10), (0.001, 100), (0.2, 5)])
    def test_no_more_than_runs_within_the_horizon(self, seconds: float, most: int) -> None:
        steps = Steps(5)
        asked = [steps.passes(seconds) for _ in range(60)]
        assert max(asked) == pytest.approx(most, abs=1)
        assert most * seconds <= HORIZON or most == 5

    def test_slots_again_with_the_first_claim_that_is_not_full(self) -> None:
        steps = Steps(5)
        while steps.passes(0.00001) < MOST:
            pass
        steps.lane.answered(MOST, MOST - 1, 2 * MOST)
        assert not steps.lane.hungry
        assert steps.lane.room(steps.now, look=False) == 5

    def test_slower_jobs_are_believed_at_once(self) -> None:
        steps = Steps(5)
        while steps.passes(0.00001) < MOST:
            pass
        steps.lane.room(steps.now, look=False)
        steps.comes(100)
        steps.runs(100, 0.05)
        assert steps.lane.room(steps.now, look=False) == 5

    def test_half_is_left_when_more_is_asked_for(self) -> None:
        steps = Steps(5)
        while steps.passes(0.00001) < MOST:
            pass
        steps.comes(MOST)
        steps.lane.hungry = True
        assert steps.lane.room(steps.now, look=False) == 0
        assert not steps.lane.wants
        steps.runs(MOST // 2, 0.00001)
        assert steps.lane.wants
        assert steps.lane.room(steps.now, look=False) == MOST // 2

    def test_more_slots_than_the_most_are_filled_all_the_same(self) -> None:
        steps = Steps(3 * MOST)
        assert {steps.passes(0.00001) for _ in range(9)} == {3 * MOST}

    def test_large_payloads_are_not_piled_up(self) -> None:
        steps = Steps(5)
        asked = [steps.passes(0.00001, size=1024 * 1024) for _ in range(20)]
        assert max(asked) == 16

    def test_what_waits_too_long_is_given_up_newest_first(self) -> None:
        steps = Steps(5)
        while steps.passes(0.00001) < MOST:
            pass
        steps.comes(100)
        line = list(steps.lane.waiting)
        assert steps.lane.overdue(steps.now) == [], "no time has passed"
        steps.runs(16, 1 / 64)
        assert steps.lane.overdue(steps.now) == line[:21:-1], "all but what a tenth of it runs"
        assert list(steps.lane.waiting) == line[16:22]
        steps.runs(6, 1 / 64)
        assert steps.lane.room(steps.now, look=False) == 5

    def test_what_goes_on_in_time_is_kept(self) -> None:
        steps = Steps(5)
        steps.comes(100)
        steps.runs(60, 0.004)
        assert steps.lane.overdue(steps.now) == []

    def test_lapsed_leases_are_looked_for_with_free_slots_only(self) -> None:
        """What crashed a process is not claimed together with a crowd."""
        steps = Steps(5)
        demand = Demand({"q": steps.lane}, 1.0)
        steps.lane.looked_at = steps.now
        while steps.passes(0.00001) < MOST:
            steps.lane.looked_at = steps.now
        steps.lane.looked_at = steps.now
        assert demand.ask(steps.now) == Ask({"q": MOST}, rescue=False, ahead=True)
        steps.comes(MOST)
        steps.now += 1.0
        steps.runs(MOST - 5, 0.00001)
        assert demand.ask(steps.now) is None, "the others run out first"
        steps.runs(2, 0.00001)
        ask = demand.ask(steps.now)
        assert ask == Ask({"q": 2}, rescue=True)
        demand.answered(ask, [claimed(2), claimed(1)], steps.now)
        assert demand.ask(steps.now) == ask, "where something was rescued there may be more"
        demand.answered(ask, [claimed(2)], steps.now)
        assert demand.ask(steps.now) == Ask({"q": 2}, rescue=False)


@job()
async def short(_: Input) -> None:
    """Does nothing."""


def watch(worker: jobs.Worker) -> list[int]:
    """What each claim of a worker asks for."""
    asked: list[int] = []
    claim = worker._claimer._claim

    async def watched(ask: Ask) -> Any:
        asked.append(sum(ask.room.values()))
        return await claim(ask)

    worker._claimer._claim = watched  # type: ignore[method-assign]
    return asked


async def ahead(worker: jobs.Worker, table: Table, count: int = 1_500) -> None:
    """Let a worker run short jobs until it claims many ahead, and end them all."""
    table.enqueue(short, count)
    await until(lambda: not table.count_live(), "the short ones to end")
    await until(lambda: not worker.stats().in_flight, "their answers")


async def test_a_backlog_of_short_jobs_takes_few_claims(database: str) -> None:
    table = Table(database)
    table.enqueue(short, 3_000)
    async with leaving_nothing(database):
        worker = make(database, short, lease=timedelta(minutes=1))
        await worker.start()
        asked = watch(worker)
        await until(lambda: not table.count_live(), "the end")
        worker.stop()
        await worker.wait()
    assert worker.stats().completed == 3_000
    assert max(asked) > 50
    assert len(asked) < 300, "by slots it would be 600"


async def test_no_more_run_than_there_are_slots(database: str) -> None:
    running = most = 0
    seen: Counter[UUID] = Counter()

    @job()
    async def brief(_: Input, run: jobs.Run) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        seen[run.id] += 1
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        running -= 1

    table = Table(database)
    ids = table.enqueue(brief, 1_000)
    async with serving(database, brief, queues={"default": 3}) as worker:
        asked = watch(worker)
        await until(lambda: not table.count_live(), "the end")
    assert max(asked) > 3
    assert most == 3
    assert seen == Counter(ids), "each once"


class Stuck:
    """Asynchronous jobs that take longer than anybody expected."""

    def __init__(self) -> None:
        self.open = asyncio.Event()
        self.starts: Counter[UUID] = Counter()

        @job(name="stuck")
        async def stuck(_: Input, run: jobs.Run) -> None:
            self.starts[run.id] += 1
            await self.open.wait()

        self.job = stuck


def overfull(worker: jobs.Worker) -> None:
    """Have a worker believe that its jobs take no time."""
    lane = worker._lanes["default"]
    lane.ended = max(lane.ended, PROOF)
    lane._pace, lane._reach = 1e-6, 200
    lane._ended_before, lane._began = lane.ended, float("inf")


async def held_back(database: str) -> tuple[Table, Stuck, list[UUID]]:
    stuck = Stuck()
    table = Table(database)
    return table, stuck, table.enqueue(stuck.job, 60)


async def test_what_waits_behind_long_jobs_is_handed_back(database: str) -> None:
    table, stuck, ids = await held_back(database)
    async with leaving_nothing(database):
        worker = make(database, stuck.job, short)
        await worker.start()
        overfull(worker)
        await until(lambda: worker.stats().claimed >= 60, "all to be claimed")
        await until(lambda: worker.stats().released == 55, "the rest to be handed back")
        states = Counter(table.live(one).state for one in ids)
        assert states == {"running": 5, "ready": 55}
        assert {table.live(one).attempt for one in ids if one not in stuck.starts} == {0}
        assert len(stuck.starts) == 5
        stuck.open.set()
        await until(lambda: not table.count_live(), "the end")
        worker.stop()
        await worker.wait()
    assert stuck.starts == Counter(ids), "each once"
    assert {table.settled(one).attempt for one in ids} == {1}


async def test_another_worker_takes_what_was_handed_back(database: str) -> None:
    table, stuck, ids = await held_back(database)
    other = Stuck()
    async with leaving_nothing(database):
        worker = make(database, stuck.job)
        await worker.start()
        overfull(worker)
        await until(lambda: worker.stats().claimed >= 60, "all to be claimed")
        async with make(database, other.job, queues={"default": 55}):
            other.open.set()
            await until(lambda: len(other.starts) == 55, "the other to have its part")
            stuck.open.set()
            await until(lambda: not table.count_live(), "the end")
        worker.stop()
        await worker.wait()
    assert stuck.starts + other.starts == Counter(ids)


async def test_a_drain_hands_back_what_waits_and_lets_the_rest_end(database: str) -> None:
    table, stuck, ids = await held_back(database)
    async with leaving_nothing(database):
        worker = make(database, stuck.job)
        await worker.start()
        overfull(worker)
        await until(lambda: worker.stats().claimed >= 60, "all to be claimed")
        worker.stop()
        await until(lambda: worker.stats().released == 55, "the rest to be handed back")
        assert worker.stats().state == "draining"
        stuck.open.set()
        await worker.wait()
    assert worker.stats().completed == 5
    assert len(stuck.starts) == 5
    left = [table.live(one) for one in ids if one not in stuck.starts]
    assert {(row.state, row.attempt) for row in left} == {("ready", 0)}
    assert table.attempts(left[0].id) == []


async def test_an_operator_cancels_one_that_waits(database: str) -> None:
    """It ends as cancelled, by a renewal, without having begun."""
    table, stuck, ids = await held_back(database)
    async with leaving_nothing(database):
        worker = make(database, stuck.job, lease=timedelta(seconds=1))
        await worker.start()
        worker._crew._look = lambda: None  # type: ignore[method-assign]  # the others stay
        overfull(worker)
        await until(lambda: worker.stats().claimed >= 60, "all to be claimed")
        execute(
            database,
            "update jobs.job set cancel_requested_at = now() where id = %s",
            ids[40],
        )
        await until(lambda: table.settled(ids[40]), "its end")
        stuck.open.set()
        await until(lambda: not table.count_live(), "the end")
        worker.stop()
        await worker.wait()
    row = table.settled(ids[40])
    assert (row.state, row.stop_reason) == ("cancelled", "cancel requested")
    assert stuck.starts == Counter(one for one in ids if one != ids[40])


async def test_one_that_lost_its_lease_while_it_waited_is_not_begun(
    database: str, caplog: pytest.LogCaptureFixture
) -> None:
    table, stuck, ids = await held_back(database)
    async with leaving_nothing(database):
        worker = make(database, stuck.job, lease=timedelta(seconds=1))
        await worker.start()
        worker._crew._look = lambda: None  # type: ignore[method-assign]  # the others stay
        overfull(worker)
        await until(lambda: worker.stats().claimed >= 60, "all to be claimed")
        execute(database, "delete from jobs.job where id = %s", ids[40])
        await until(lambda: worker.stats().lost == 1, "the loss to be found")
        stuck.open.set()
        await until(lambda: not table.count_live(), "the end")
        worker.stop()
        await worker.wait()
    assert stuck.starts == Counter(one for one in ids if one != ids[40])
    assert len(logged(caplog, "jobs.worker.lease_lost")) == 1


async def test_a_backlog_is_shared_by_two_workers(database: str) -> None:
    """One that has claimed by the hundred does not take all of what takes time."""
    starts: Counter[str] = Counter()

    @job()
    async def takes_time(_: Input, run: jobs.Run) -> None:
        starts[run.worker] += 1
        await asyncio.sleep(0.02)

    table = Table(database)
    async with (
        serving(database, short, takes_time, name="a") as a,
        make(database, takes_time, name="b"),
    ):
        await until(lambda: a.stats().state == "running", "the start")
        table.enqueue(takes_time, 400)
        await until(lambda: not table.count_live(), "the end")
    assert starts.total() == 400
    assert min(starts.values()) >= 100, starts
