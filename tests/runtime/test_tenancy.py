"""The tenant of a run: derived from the input, installed around it, and nowhere else."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

import jobs
from tests.runtime.working import Input, Table, job, make, serving, until


@pytest.fixture
def table(database: str) -> Table:
    return Table(database)


def owned(**options: Any) -> Any:
    return job(tenant=lambda input: f"t{input.n % 3}", **options)


def as_before(name: str) -> Any:
    """A job of that name whose tenant is another one."""

    async def work(input: Input) -> None:
        raise AssertionError(input)

    work.__name__ = name
    return job(tenant=lambda _: "old", retry=jobs.Retry(attempts=1))(work)


def test_a_scope_ends_where_it_ends() -> None:
    assert jobs.current_tenant() is None
    with jobs.tenant_scope("a"):
        assert jobs.current_tenant() == "a"
        with jobs.tenant_scope(None):
            assert jobs.current_tenant() is None
        with pytest.raises(ZeroDivisionError), jobs.tenant_scope("b"):
            1 / 0  # noqa: B018
        assert jobs.current_tenant() == "a"
    assert jobs.current_tenant() is None


async def test_it_is_installed_around_async_and_threaded_functions(table: Table) -> None:
    seen: list[tuple[str, int, str | None]] = []

    @owned()
    async def on_loop(input: Input) -> None:
        await asyncio.sleep(0)
        task = asyncio.create_task(helper(input.n))
        await task

    async def helper(n: int) -> None:
        seen.append(("loop", n, jobs.current_tenant()))

    @owned()
    def in_thread(input: Input) -> None:
        assert threading.current_thread() is not threading.main_thread()
        seen.append(("thread", input.n, jobs.current_tenant()))

    table.enqueue(on_loop, 6)
    table.enqueue(in_thread, 6)
    await make(table.database, on_loop, in_thread).run_until_idle()
    assert sorted(seen) == [
        (where, n, f"t{n % 3}") for where in ("loop", "thread") for n in range(6)
    ]
    assert jobs.current_tenant() is None


async def test_jobs_side_by_side_see_their_own(table: Table) -> None:
    both = asyncio.Barrier(2)
    seen: dict[int, list[str | None]] = {0: [], 1: []}

    @owned()
    async def work(input: Input) -> None:
        for _ in range(3):
            await both.wait()
            seen[input.n].append(jobs.current_tenant())

    table.enqueue(work, 2)
    await make(table.database, work).run_until_idle()
    assert seen == {0: ["t0"] * 3, 1: ["t1"] * 3}


@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_no_tenant_removes_what_was_there(table: Table, kind: str) -> None:
    """Of whoever started the worker, and of the job before on the same slot."""
    seen: list[str | None] = []

    @owned(name="owned")
    async def before(input: Input) -> None:
        assert jobs.current_tenant() == f"t{input.n % 3}"

    async def look_async(input: Input) -> None:  # noqa: ARG001
        seen.append(jobs.current_tenant())

    def look(input: Input) -> None:  # noqa: ARG001
        seen.append(jobs.current_tenant())

    work = job()(look_async if kind == "async" else look)
    with jobs.tenant_scope("whoever started it"):
        async with serving(table.database, before, work, queues={"default": 1}):
            for _ in range(5):
                table.enqueue(before)
                table.enqueue(work)
            await until(lambda: len(seen) == 5, "the jobs")
            assert jobs.current_tenant() == "whoever started it"
    assert seen == [None] * 5


async def test_a_job_that_fails_or_is_cancelled_leaves_none_behind(table: Table) -> None:
    seen: list[str | None] = []

    @owned(retry=jobs.Retry(attempts=1))
    async def failing(input: Input) -> None:  # noqa: ARG001
        raise ValueError

    @job()
    async def after(input: Input) -> None:  # noqa: ARG001
        seen.append(jobs.current_tenant())

    table.enqueue(failing, 3)
    table.enqueue(after, 3)
    await make(table.database, failing, after, queues={"default": 1}).run_until_idle()
    assert seen == [None] * 3


async def test_the_rows_tenant_and_the_runs_are_two_facts(table: Table) -> None:
    """The function has changed since the enqueue: limits go by the row, the run by the input."""
    seen: list[tuple[str | None, str | None]] = []

    @job(tenant=lambda _: "new")
    async def moved(input: Input, run: jobs.Run) -> None:  # noqa: ARG001
        seen.append((run.tenant, jobs.current_tenant()))

    table.enqueue(as_before("moved"))
    await make(table.database, moved).run_until_idle()
    assert seen == [("old", "new")]


async def test_one_that_cannot_be_derived_fails_the_attempt_before_the_body(table: Table) -> None:
    ran: list[int] = []

    @job(tenant=lambda _: "")
    async def broken(input: Input) -> None:
        ran.append(input.n)

    (id,) = table.enqueue(as_before("broken"))
    await make(table.database, broken).run_until_idle()
    row = table.settled(id)
    assert row.last_error.startswith("TenantRequired: tenant: the function of job 'broken'")
    assert ran == []


async def test_middleware_and_hooks_are_in_it(table: Table) -> None:
    seen: list[tuple[str, str | None]] = []

    class Watch:
        def __init__(self, run: jobs.Run) -> None:
            self.run = run

        async def __aenter__(self) -> None:
            seen.append(("in", jobs.current_tenant()))

        async def __aexit__(self, *_: object) -> None:
            seen.append(("out", jobs.current_tenant()))

    def told(settled: jobs.Settled[Any]) -> None:  # noqa: ARG001
        seen.append(("hook", jobs.current_tenant()))

    @owned(on_settled=told)
    def work(input: Input) -> None:  # noqa: ARG001
        seen.append(("body", jobs.current_tenant()))

    table.enqueue(work)
    async with serving(table.database, work, middleware=[Watch]):
        await until(lambda: len(seen) == 4, "the hook")
    assert seen == [("in", "t0"), ("body", "t0"), ("out", "t0"), ("hook", "t0")]
