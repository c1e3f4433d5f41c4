"""Functions in processes: what they are given, how they end, and what is never left behind."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import psycopg
import pytest
from psycopg import AsyncConnection

import jobs
from jobs.control import cancel
from jobs.errors import ConfigError, DeclarationError
from jobs.inspect import get_job
from tests.runtime import crunching
from tests.runtime.crunching import Input
from tests.runtime.working import Table, job, logged, registry, serving, until

Conn = AsyncConnection[Any]


@pytest.fixture
def table(database: str) -> Table:
    return Table(database)


@pytest.fixture
def note(tmp_path: Path) -> Path:
    return tmp_path / "notes"


def notes(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def go(path: Path) -> None:
    """Let a function go on that waits for it."""
    Path(f"{path}.go").touch()


def alive(pid: int | str) -> bool:
    """Whether a process is there that has not ended yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] not in "ZX"
    except FileNotFoundError:
        return False


def children() -> set[int]:
    """Processes that this one has started and that are there."""
    found = set()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(") ")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(fields[1]) == os.getpid() and "jobs.worker.child" in _command(stat.parent):
            found.add(int(stat.parent.name))
    return found


def _command(place: Path) -> str:
    try:
        return (place / "cmdline").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""


@asynccontextmanager
async def working(table: Table, *handles: Any, **options: Any) -> AsyncIterator[jobs.Worker]:
    """A worker with these jobs, that leaves no process behind."""
    settings = {"processes": 2, "lease": timedelta(seconds=30), "drain": timedelta(seconds=20)}
    async with serving(table.database, *handles, **(settings | options)) as worker:
        yield worker
    assert children() == set()


async def begun(note: Path, lines: int = 1) -> list[str]:
    """Wait for notes of a function."""
    await until(lambda: len(notes(note)) >= lines, f"{lines} notes")
    return notes(note)


async def put(aconn: Conn, handle: Any, n: int, note: Path) -> UUID:
    made = await handle.enqueue(aconn, Input(n=n, note=str(note)))
    id: UUID = made.id
    return id


async def test_it_is_given_all_that_others_are(table: Table, aconn: Conn, note: Path) -> None:
    async with working(table, crunching.crunch) as worker:
        id = await put(aconn, crunching.crunch, 7, note)
        answer = await crunching.crunch.result(aconn, id)
        pid = answer.pop("pid")
        assert answer == {
            "square": 49,
            "tenant": "t7",
            "attempt": 1,
            "worker": worker.name,
            "remaining": None,
        }
        assert pid != os.getpid()
        assert jobs.current_tenant() is None


async def test_none_is_started_before_there_is_work_and_then_kept(
    table: Table, aconn: Conn, note: Path
) -> None:
    async with working(table, crunching.silent):
        assert children() == set()
        for number in range(1, 4):
            await put(aconn, crunching.silent, 0, note)
            await begun(note, number)
        assert len(set(notes(note))) == 1


async def test_a_job_does_not_see_context_variables_of_others(
    table: Table, aconn: Conn, note: Path
) -> None:
    async with working(table, crunching.remembers, processes=1):
        for number in range(1, 4):
            await put(aconn, crunching.remembers, number, note)
            await begun(note, number)
    assert notes(note) == ["None"] * 3


async def test_a_thread_left_behind_says_nothing_of_the_next_job(
    table: Table, aconn: Conn, note: Path, tmp_path: Path
) -> None:
    other = tmp_path / "others"
    async with working(table, crunching.lingers, crunching.slow, processes=1, drain=timedelta(0)):
        await put(aconn, crunching.lingers, 0, note)
        await begun(note)
        await until(lambda: not table.count_live(), "the end of the first")
        id = await put(aconn, crunching.slow, 0, other)
        await begun(other)
        await asyncio.sleep(1.5)  # longer than between two writes
        found = await get_job(aconn, id)
        go(note)
    assert found is not None
    assert found.progress is None


async def test_one_that_somebody_else_has_waited_for_is_replaced(
    table: Table, aconn: Conn, note: Path
) -> None:
    """As where the application ignores SIGCHLD: the kernel keeps nothing of it to be looked at."""
    async with working(table, crunching.silent):
        await put(aconn, crunching.silent, 0, note)
        (first,) = await begun(note)
        await until(lambda: not table.count_live(), "the end")
        os.kill(int(first), signal.SIGKILL)
        os.waitpid(int(first), 0)  # noqa: ASYNC222 (it is dead)
        await put(aconn, crunching.silent, 0, note)
        await begun(note, 2)
        await until(lambda: not table.count_live(), "the end of the second")
    assert table.counters() == {"completed": 2}


async def test_there_are_never_more_than_allowed(table: Table, aconn: Conn, note: Path) -> None:
    async with working(table, crunching.slow, queues={"default": 5}) as worker:
        ids = [await put(aconn, crunching.slow, 0, note) for _ in range(4)]
        await begun(note, 2)
        await until(lambda: worker.stats().in_flight == 4, "all to be claimed")
        assert len(children()) == 2
        assert len(notes(note)) == 2
        for id in ids:
            await cancel(aconn, id)
        worker.stop()
        worker.stop()


@pytest.mark.parametrize(
    ("n", "kind", "text"),
    [
        (0, "ValueError", "no such size"),
        (1, "OddError", "odd 1"),
        (2, "Terminal", "the account is closed"),
        (3, "SystemExit", "leaving"),
        (4, "GeneratorExit", ""),
        (5, "QuittingError", "not to be copied"),
    ],
    ids=["plain", "unpicklable", "terminal", "exit", "generator-exit", "exit-of-a-copy"],
)
async def test_an_error_keeps_its_name_text_and_traceback(
    table: Table, aconn: Conn, note: Path, n: int, kind: str, text: str
) -> None:
    async with working(table, crunching.fails, crunching.silent):
        id = await put(aconn, crunching.fails, n, note)
        await until(lambda: table.settled(id), "the end")
        await put(aconn, crunching.silent, 0, note)  # the process is as good as before
        await begun(note)
    (attempt,) = table.attempts(id)
    assert attempt.error_type == kind
    assert text in attempt.error_message
    assert "tests/runtime/crunching.py" in attempt.traceback
    assert table.settled(id).stop_reason == ("terminal" if kind == "Terminal" else "exhausted")


async def test_a_result_that_cannot_be_stored_is_found_there(
    table: Table, aconn: Conn, note: Path
) -> None:
    async with working(table, crunching.unstorable):
        id = await put(aconn, crunching.unstorable, 0, note)
        await until(lambda: table.settled(id), "the end")
    assert table.settled(id).last_error.startswith("ResultInvalid: result[1]: is a object")
    assert table.settled(id).stop_reason == "terminal"


@pytest.mark.parametrize(
    ("n", "how"),
    [
        (0, "ended with the exit status 3"),
        (1, "was killed by SIGKILL"),
        (2, "was killed by SIGSEGV"),
        (3, "was killed by SIGKILL"),
    ],
    ids=["os-exit", "killed", "crashed", "killed-after-a-fork"],
)
async def test_a_process_that_dies_costs_that_attempt_only(
    table: Table, aconn: Conn, note: Path, n: int, how: str
) -> None:
    async with working(table, crunching.dies, crunching.slow):
        other = await put(aconn, crunching.slow, 0, note)
        await begun(note)
        id = await put(aconn, crunching.dies, n, note)
        assert await crunching.dies.result(aconn, id) == "alive"
        (attempt,) = table.attempts(id)
        assert attempt.error_type == "ProcessDied"
        assert f"the process of job {id} (dies) {how}" in attempt.error_message
        assert table.live(other).claims == 1
        for line in notes(note):
            assert not (line.startswith("orphan") and alive(line.split()[1]))
        await cancel(aconn, other)
        await until(lambda: table.settled(other), "the other one")


async def test_one_that_died_while_it_had_nothing_to_do_costs_nobody_anything(
    table: Table, aconn: Conn, note: Path
) -> None:
    async with working(table, crunching.silent, processes=1):
        await put(aconn, crunching.silent, 0, note)
        (first,) = await begun(note)
        os.kill(int(first), signal.SIGKILL)
        ids = [await put(aconn, crunching.silent, 0, note) for _ in range(3)]
        await begun(note, 4)
        await until(lambda: all(table.settled(id) for id in ids), "the others")
        assert first not in notes(note)[1:]
        assert {table.settled(id).attempt for id in ids} == {1}


async def test_a_cancel_is_told_and_a_function_that_listens_ends_by_itself(
    table: Table, aconn: Conn, note: Path
) -> None:
    async with working(table, crunching.slow, crunching.silent, lease=timedelta(seconds=2)):
        id = await put(aconn, crunching.slow, 0, note)
        (first,) = await begun(note)
        await cancel(aconn, id)
        await until(lambda: table.settled(id), "the end")
        assert notes(note)[1:] == ["stopped True"]
        # It returned, so that its work is done; and its process lives.
        assert table.settled(id).state == "completed"
        assert alive(first.split()[1])


async def test_one_that_does_not_is_killed_and_its_process_replaced(
    table: Table, aconn: Conn, note: Path
) -> None:
    async with working(
        table, crunching.endless, crunching.silent, lease=timedelta(seconds=2), processes=1
    ):
        id = await put(aconn, crunching.endless, 0, note)
        (first,) = await begun(note)
        await cancel(aconn, id)
        await until(lambda: table.settled(id), "the end")
        assert (table.settled(id).state, table.attempts(id)) == ("cancelled", [])
        assert not alive(first.split()[1])
        await put(aconn, crunching.silent, 0, note)
        assert (await begun(note, 2))[1] != first.split()[1]


async def test_the_deadline_kills_the_process_with_what_it_has_started(
    table: Table, aconn: Conn, note: Path
) -> None:
    async with working(table, crunching.stubborn):
        id = await put(aconn, crunching.stubborn, 0, note)
        (first,) = await begun(note)
        await until(lambda: table.settled(id), "the end")
        row = table.settled(id)
        assert row.last_error.startswith("JobTimeout: the attempt took longer than 0:00:00.5")
        for pid in first.split()[1:]:
            await until(lambda pid=pid: not alive(pid), "the processes to be gone")


async def test_a_drain_waits_then_kills_and_hands_the_job_back(
    table: Table, aconn: Conn, note: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with working(table, crunching.endless, drain=timedelta(seconds=0.2)):
        id = await put(aconn, crunching.endless, 0, note)
        (first,) = await begun(note)
    assert not alive(first.split()[1])
    row = table.live(id)
    assert (row.state, row.attempt, row.last_error) == ("ready", 0, None)
    assert not logged(caplog, "jobs.worker.abandoned")


async def test_progress_is_seen_from_outside_and_its_last_word_is_kept(
    table: Table, aconn: Conn, note: Path
) -> None:
    async with working(table, crunching.reporting):
        id = await put(aconn, crunching.reporting, 0, note)
        await begun(note, 2)
        await until(lambda: progress(table, "job", id) == (0.5995, "step 999"), "the progress")
        go(note)
        await until(lambda: table.settled(id), "the end")
    assert progress(table, "settled", id) == (1.0, "the last word")


def progress(table: Table, where: str, id: UUID) -> tuple[float | None, str | None]:
    with psycopg.connect(table.database) as conn:
        found = get_job(conn, id)
    assert (found.settled_at is None) == (where == "job")
    return None if found.progress is None else round(found.progress, 4), found.progress_message


async def test_what_stays_in_the_workers_process_is_a_typed_error(
    table: Table, aconn: Conn, note: Path
) -> None:
    async with working(table, crunching.connecting):
        id = await put(aconn, crunching.connecting, 0, note)
        await until(lambda: table.settled(id), "the end")
    assert notes(note) == ["begun"]
    assert table.settled(id).last_error.startswith("RunFeatureUnavailable: run.connection()")


async def test_it_may_complete_in_its_own_transaction(
    table: Table, aconn: Conn, note: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CRUNCHING_DSN", table.database)
    async with working(table, crunching.completing) as worker:
        id = await put(aconn, crunching.completing, 0, note)
        assert await crunching.completing.result(aconn, id) == 7
        await until(lambda: worker.stats().completed == 1, "the worker to know")
    assert worker.stats().lost == 0
    assert [(one.id, one.result) for one in crunching.told] == [(id, "7")]
    cursor = await aconn.execute("select to_regclass('made_by_a_process')::text")
    assert await cursor.fetchone() == ("made_by_a_process",)


async def test_it_may_snooze(table: Table, aconn: Conn, note: Path) -> None:
    async with working(table, crunching.snoozing):
        id = await put(aconn, crunching.snoozing, 0, note)
        await begun(note)
        await until(lambda: table.live(id).state == "ready", "the snooze")
    assert (table.live(id).attempt, table.attempts(id)) == (0, [])


class TestDeclaring:
    def test_what_a_process_could_not_find_is_refused(self) -> None:
        with pytest.raises(DeclarationError, match="is not found under its name in a module"):

            @job(executor="process")
            def local(input: Input) -> None:
                raise AssertionError(input)

    def test_so_is_the_script_that_is_started(self) -> None:
        def work(input: Input) -> None:
            raise AssertionError(input)

        work.__qualname__, work.__module__ = "work", "__main__"
        with pytest.raises(DeclarationError, match=r"__main__\.work"):
            job(executor="process")(work)

    def test_a_place_that_does_not_fit_the_function(self) -> None:
        async def on_loop(input: Input) -> None:
            raise AssertionError(input)

        def threaded(input: Input) -> None:
            raise AssertionError(input)

        for where in ("thread", "process"):
            with pytest.raises(DeclarationError, match=f"is asynchronous, .* run as '{where}'"):
                job(executor=where)(on_loop)
        with pytest.raises(DeclarationError, match=r"is not asynchronous, .* run as 'async'"):
            job(executor="async")(threaded)
        with pytest.raises(DeclarationError, match="must be 'async', 'thread' or 'process'"):
            job(executor="fork")
        assert (job()(on_loop).executor, job()(threaded).executor) == ("async", "thread")

    def test_a_handle_under_another_name_is_refused_by_the_worker(self) -> None:
        def crunch(input: Input) -> None:
            raise AssertionError(input)

        crunch.__qualname__ = "crunch"
        crunch.__module__ = crunching.__name__
        handle = job(executor="process", name="other")(crunch)
        with pytest.raises(ConfigError, match=r"crunching\.crunch is not its handle"):
            jobs.Worker("postgresql://", registry(handle))

    @pytest.mark.parametrize("processes", [0, -1, 1001, 1.5, True, "2"], ids=repr)
    def test_a_bad_number_of_processes_is_refused(self, processes: Any) -> None:
        with pytest.raises(ConfigError, match=r"processes is .*, expected a whole number"):
            jobs.Worker("postgresql://", registry(), processes=processes)
