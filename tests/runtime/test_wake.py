"""A worker that hears enqueues: what that speeds up, and what it never depends on.

`FAR` keeps the polls out: what runs within a test's patience was not found by one of them.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

import jobs
from devkit import pgbouncer
from devkit.postgres import Server
from devkit.proxy import Proxy
from devkit.rundir import run_dir
from jobs.errors import ConfigError
from jobs.service import listener
from jobs.worker import claimer, config, register, slots
from tests.runtime.working import Input, Table, execute, job, make, rows, serving, until
from tests.support.server import Clones

FAR: dict[str, Any] = {"poll": timedelta(minutes=1), "idle_poll": timedelta(minutes=1)}
needs_pgbouncer = pytest.mark.skipif(pgbouncer.find() is None, reason="pgbouncer is not installed")
_TERMINATE = """
    select pg_terminate_backend(pid) from pg_stat_activity
    where datname = current_database() and query like '%jobs:listen_wake%'
    and pid <> pg_backend_pid()
"""


@job()
async def noop(_: Input) -> None:
    pass


@job(concurrency=1)
async def alone(_: Input) -> None:
    pass


@job(queue="elsewhere")
async def elsewhere(_: Input) -> None:
    pass


def live(worker: jobs.Worker) -> bool:
    """Whether the worker knows that it hears enqueues."""
    return worker._listener is not None and worker._listener.live


@asynccontextmanager
async def hearing(database: str, *handles: Any, **options: Any) -> AsyncIterator[jobs.Worker]:
    """A worker that hears, and whose next look at the queues is a minute away."""
    async with serving(database, *handles, **(FAR | options)) as worker:
        await until(lambda: live(worker), "the probe to arrive")
        await asyncio.sleep(0.1)  # the look that follows the probe
        yield worker


async def runs(worker: jobs.Worker, database: str, count: int = 1) -> None:
    """Enqueue some jobs and wait until they are done."""
    wanted = worker.stats().completed + count
    await asyncio.to_thread(Table(database).enqueue, noop, count)
    await until(lambda: worker.stats().completed == wanted, "the jobs")


def said(caplog: pytest.LogCaptureFixture, event: str) -> list[str]:
    """Levels of the log records of an event."""
    return [r.levelname for r in caplog.records if getattr(r, "event", None) == event]


@pytest.fixture
def claims(database: str) -> Any:
    """Function that counts the claims sent to the database, since it was called last."""
    execute(database, "create extension if not exists pg_stat_statements schema public")

    def count(pattern: str = "%/* jobs:claim_jobs */%", reset: bool = True) -> int:
        row = rows(
            database,
            "with total as (select coalesce(sum(s.calls), 0)::int as calls"
            " from pg_stat_statements as s join pg_database as d on d.oid = s.dbid"
            " where d.datname = current_database() and s.query like %s"
            " and s.query not like '%%pg_stat_statements%%'"
            " and s.query not in ('BEGIN', 'COMMIT')),"
            " reset as (select pg_stat_statements_reset(0, d.oid, 0) from pg_database as d"
            " where %s and d.datname = current_database())"
            " select total.calls from total left join reset on true",
            pattern,
            reset,
        )[0]
        return int(row.calls)

    return count


class Tries:
    """When the listener has tried to have its ear back."""

    def __init__(self) -> None:
        self.at: list[float] = []

    def since(self, then: float) -> int:
        """How many tries were begun since then."""
        return sum(at > then for at in self.at)


@pytest.fixture
def tries(monkeypatch: pytest.MonkeyPatch) -> Tries:
    """What is within one step of the backoff needs one more try, the one at the end of it."""
    seen, real = Tries(), listener.Listener._listen

    async def counted(self: listener.Listener) -> Any:
        seen.at.append(time.monotonic())
        await real(self)

    monkeypatch.setattr(listener.Listener, "_listen", counted)
    return seen


class TestHearing:
    async def test_a_job_starts_before_the_next_poll_could_find_it(self, database: str) -> None:
        async with hearing(database, noop) as worker:
            await runs(worker, database)

    async def test_so_do_those_that_did_not_notify(self, database: str) -> None:
        """One enqueue after the other, most of them within the time in which one is enough."""
        async with hearing(database, noop) as worker:
            table = Table(database)
            for _ in range(40):
                await asyncio.to_thread(table.enqueue, noop)
            await until(lambda: worker.stats().completed == 40, "all")
        found = rows(database, "select count(*) as times from jobs.wake")[0].times
        assert 0 < found < 40

    async def test_copied_jobs_too(self, database: str) -> None:
        async with hearing(database, noop) as worker:
            with psycopg.connect(database, autocommit=True) as conn:
                noop.copy_many(conn, [Input()] * 20)
            await until(lambda: worker.stats().completed == 20, "all")

    async def test_without_listening_it_waits_for_the_poll(self, database: str) -> None:
        async with serving(database, noop, **FAR, listen=False) as worker:
            await asyncio.sleep(0.2)
            Table(database).enqueue(noop)
            await asyncio.sleep(0.5)
            assert worker.stats().completed == 0
            assert worker._listener is None

    async def test_another_queue_does_not_wake_it(self, database: str, claims: Any) -> None:
        async with hearing(database, noop):
            claims()
            Table(database).enqueue(elsewhere)
            execute(database, "select pg_notify('jobs_wake', 'no queue of anybody')")
            await asyncio.sleep(0.3)
            assert claims() == 0

    async def test_no_claim_is_sent_for_a_queue_without_a_free_slot(
        self, database: str, claims: Any
    ) -> None:
        release = asyncio.Event()

        @job()
        async def slow(_: Input) -> None:
            await release.wait()

        async with hearing(database, noop, slow, queues={"default": 1}) as worker:
            Table(database).enqueue(slow)
            await until(lambda: worker.stats().in_flight == 1, "the slot to be taken")
            claims()
            await asyncio.sleep(0.3)  # the wake of that one is over
            Table(database).enqueue(noop)
            await asyncio.sleep(0.3)
            assert claims() == 0
            release.set()
            await until(lambda: worker.stats().completed == 2, "the slot to be used again")


class TestIdle:
    """Statements of an idle minute, in a minute that is twenty times as fast."""

    FASTER = 20

    @pytest.mark.serial
    @pytest.mark.parametrize(("listen", "most"), [("auto", 12), (False, 30)])
    @pytest.mark.parametrize("used", ["nothing", "keys", "tenants"])
    async def test_statements_an_idle_minute(
        self,
        database: str,
        claims: Any,
        monkeypatch: pytest.MonkeyPatch,
        listen: Any,
        most: int,
        used: str,
    ) -> None:
        """60 s / 5 s = 12 with a live wake, 60 s / 2 s = 30 without; nothing else is sent.

        Two of them are signs of life for the registry, which look at the queues as well. One that
        limits tenants asks in two statements, of which it sends the second where there is a reason.
        """
        faster = self.FASTER
        monkeypatch.setattr(config, "IDLE_POLL", config.IDLE_POLL / faster)
        monkeypatch.setattr(config, "LIVE_POLL", config.LIVE_POLL / faster)
        monkeypatch.setattr(listener, "PING_EVERY", listener.PING_EVERY / faster)
        for module in (register, claimer):
            monkeypatch.setattr(module, "BEAT_EVERY", module.BEAT_EVERY / faster)
        for name in ("LOOK_EVERY", "TIDY_EVERY"):
            monkeypatch.setattr(slots, name, getattr(slots, name) / faster)
        poll = timedelta(seconds=0.25) / faster
        # Lapsed leases are looked for by every look, as they are in a minute of the usual length.
        lease = timedelta(seconds=1)
        options: dict[str, Any] = {"poll": poll, "idle_poll": None, "listen": listen}
        if used == "tenants":
            options["limits"] = jobs.Limits(per_tenant=5, rate_per_tenant=10)
        handle = alone if used == "keys" else noop
        async with serving(database, handle, lease=lease, **options) as worker:
            await until(lambda: not listen or live(worker), "the probe to arrive")
            await asyncio.sleep(20 / faster)  # the waits double up to the ceiling
            claims()
            await asyncio.sleep(60 / faster)
            beats = claims("%/* jobs:record_worker */%", reset=False)
            sent = claims("%")
        assert most * 0.5 <= sent <= most
        assert 1 <= beats <= 2

    def test_the_numbers(self) -> None:
        assert (timedelta(seconds=2), timedelta(seconds=5)) == (config.IDLE_POLL, config.LIVE_POLL)


class TestTrouble:
    """O-30: it comes back, and until then polls go on."""

    async def test_a_terminated_session(
        self, database: str, caplog: pytest.LogCaptureFixture, tries: Tries
    ) -> None:
        with caplog.at_level(logging.INFO, "jobs.worker"):
            async with hearing(database, noop) as worker:
                assert rows(database, _TERMINATE.replace("%", "%%"))
                await until(lambda: not live(worker), "the loss to be noticed")
                # Missed by the ear: found by the look that a loss is answered with.
                Table(database).enqueue(noop)
                await until(lambda: live(worker), "the ear to be back")
                assert len(tries.at) == 2, "the first try has it back"
                await until(lambda: worker.stats().completed == 1, "the job of the gap")
                await asyncio.sleep(0.1)
                await runs(worker, database)
        assert said(caplog, "jobs.worker.wake_lost") == ["WARNING"]
        assert said(caplog, "jobs.worker.wake_live") == ["INFO", "INFO"]

    async def test_silence_is_found_out_and_over_when_the_line_is_back(
        self,
        database: str,
        clones: Clones,
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
        tries: Tries,
    ) -> None:
        """A peer that acknowledges everything and says nothing, as behind a dead firewall."""
        monkeypatch.setattr(listener, "PING_EVERY", 0.2)
        monkeypatch.setattr(listener, "_PING_TIMEOUT", 0.5)
        name = str(conninfo_to_dict(database)["dbname"])
        with Proxy(Path(clones.host)) as proxy, caplog.at_level(logging.INFO, "jobs.worker"):
            dsn = f"{proxy.dsn(name)}?sslmode=disable&gssencmode=disable&connect_timeout=2"
            options: dict[str, Any] = {"idle_poll": timedelta(milliseconds=100)}
            async with serving(database, noop, listen=dsn, **options) as worker:
                await until(lambda: live(worker), "the probe to arrive")
                proxy.hang()
                await until(lambda: not live(worker), "the silence to be noticed")
                await runs(worker, database)
                proxy.ok()
                back = time.monotonic()
                await until(lambda: live(worker), "the ear to be back")
                assert tries.since(back) <= 1, "within one step"
                await runs(worker, database)
        assert said(caplog, "jobs.worker.wake_lost")[:1] == ["WARNING"]
        assert said(caplog, "jobs.worker.wake_lost").count("WARNING") == 1

    async def test_a_stop_does_not_wait_for_a_line_that_hangs(
        self, database: str, clones: Clones
    ) -> None:
        name = str(conninfo_to_dict(database)["dbname"])
        with Proxy(Path(clones.host)) as proxy:
            dsn = f"{proxy.dsn(name)}?sslmode=disable&gssencmode=disable"
            async with serving(database, noop, listen=dsn) as worker:
                await until(lambda: live(worker), "the probe to arrive")
                proxy.hang()
                worker.stop()
                # Long before anybody would have noticed that the line hangs.
                async with asyncio.timeout(listener.PING_EVERY):
                    await worker.wait()

    async def test_a_restart_of_the_server(
        self,
        durable_server: Server,
        durable_database: str,
        caplog: pytest.LogCaptureFixture,
        tries: Tries,
    ) -> None:
        with caplog.at_level(logging.INFO, "jobs.worker"):
            async with serving(durable_database, noop) as worker:
                await until(lambda: live(worker), "the probe to arrive")
                await asyncio.to_thread(durable_server.stop)
                await until(lambda: not live(worker), "the loss to be noticed")
                await asyncio.to_thread(durable_server.launch)
                back = time.monotonic()
                await until(lambda: live(worker), "the ear to be back")
                assert tries.since(back) <= 1, "within one step"
                await runs(worker, durable_database)
        assert said(caplog, "jobs.worker.wake_lost").count("WARNING") == 1

    async def test_a_start_does_not_need_it(
        self, database: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        nowhere = "postgresql://127.0.0.1:1/none"
        with caplog.at_level(logging.DEBUG, "jobs.worker"):
            async with serving(database, noop, listen=nowhere) as worker:
                await runs(worker, database)
                await until(lambda: len(said(caplog, "jobs.worker.wake_lost")) >= 3, "three tries")
                assert not live(worker)
        assert said(caplog, "jobs.worker.wake_lost").count("WARNING") == 1

    async def test_a_session_that_cannot_listen_is_tried_again(
        self, database: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """As on a standby that is not yet the primary."""
        real, refused = listener.listen_wake_async, []

        async def refuse_twice(conn: Any) -> None:
            if len(refused) < 2:
                refused.append(1)
                raise psycopg.errors.ReadOnlySqlTransaction("cannot execute LISTEN during recovery")
            await real(conn)

        monkeypatch.setattr(listener, "listen_wake_async", refuse_twice)
        async with hearing(database, noop) as worker:
            await runs(worker, database)
        assert len(refused) == 2

    async def test_a_probe_that_cannot_be_sent_keeps_nobody_from_claiming(
        self, database: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        """As where the right to call pg_notify was taken away."""
        execute(database, "create role nobody_notifies login")
        try:
            execute(
                database,
                "revoke execute on function pg_notify(text, text) from public;"
                " grant usage on schema jobs to nobody_notifies;"
                " grant all on all tables in schema jobs to nobody_notifies",
            )
            with caplog.at_level(logging.WARNING, "jobs.worker"):
                dsn = make_conninfo(database, user="nobody_notifies")
                async with serving(database, noop, dsn=dsn) as worker:
                    await until(lambda: said(caplog, "jobs.worker.wake_lost"), "the refusal")
                    await runs(worker, database)
            assert said(caplog, "jobs.worker.claim_failed") == []
        finally:
            execute(database, "drop owned by nobody_notifies; drop role nobody_notifies")


class TestDeaf:
    """O-28: a LISTEN that was accepted and hears nothing."""

    @pytest.fixture(autouse=True)
    def _quick(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(listener, "PROOF_WITHIN", 0.5)
        monkeypatch.setattr(listener, "_DEAF_PAUSE", 0.05)

    @pytest.fixture
    def pooled(self, database: str, clones: Clones) -> Iterator[str]:
        """DSN of the database through a pooler in transaction mode."""
        name = str(conninfo_to_dict(database)["dbname"])
        with (
            run_dir("sql-jobs-bouncer") as place,
            pgbouncer.running(place, Path(clones.host)) as pooler,
        ):
            yield pooler.dsn(name)

    @needs_pgbouncer
    async def test_a_pooler_is_found_out_and_said_once(
        self, database: str, pooled: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        with caplog.at_level(logging.DEBUG, "jobs.worker"):
            async with make(pooled, noop) as worker:
                await until(lambda: len(said(caplog, "jobs.worker.wake_deaf")) >= 2, "two findings")
                await runs(worker, database, 20)
                assert not live(worker)
        assert said(caplog, "jobs.worker.wake_deaf").count("WARNING") == 1
        assert said(caplog, "jobs.worker.wake_live") == []
        assert said(caplog, "jobs.worker.claim_failed") == []

    @needs_pgbouncer
    async def test_a_direct_string_for_listening_alone(self, database: str, pooled: str) -> None:
        async with make(pooled, noop, listen=database, **FAR) as worker:
            await until(lambda: live(worker), "the probe to arrive")
            await runs(worker, database)

    async def test_another_database(
        self, database: str, clones: Clones, caplog: pytest.LogCaptureFixture
    ) -> None:
        with clones.clone() as other, caplog.at_level(logging.WARNING, "jobs.worker"):
            async with serving(database, noop, listen=other) as worker:
                await until(lambda: said(caplog, "jobs.worker.wake_deaf"), "it to be found out")
                await runs(worker, database)


class TestSettings:
    @pytest.mark.parametrize("listen", [True, None, 5, b"dsn"])
    def test_listen_is_a_word_a_string_or_false(self, listen: Any) -> None:
        with pytest.raises(ConfigError, match="listen is"):
            make("", noop, listen=listen)

    def test_a_string_that_cannot_be_read(self) -> None:
        with pytest.raises(ConfigError, match="connection string") as refused:
            make("", noop, listen="postgresql://u:secret@[")
        assert "secret" not in str(refused.value)

    async def test_a_run_until_idle_does_not_listen(self, database: str) -> None:
        Table(database).enqueue(noop)
        worker = make(database, noop)
        assert (await worker.run_until_idle()).completed == 1
        assert worker._listener is None
