"""The registry of workers: rows that say what processes do, expire, and decide nothing."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import psycopg
import pytest
from psycopg import AsyncConnection, Connection

from jobs.errors import PageInvalid
from jobs.inspect import list_workers
from jobs_sql.registry import find_lost_claims, mark_worker, remove_worker
from tests.conftest import Connect
from tests.sql.calls import HOUR, Settle, claim_ids, made, new_id, running, settle
from tests.sql.registering import BEAT, beat
from tests.sql.tables import lapse
from tests.support.buffers import explain
from tests.support.stepped import Session

pytestmark = pytest.mark.majors

Conn = Connection[Any]
NOW = timedelta(0)
GONE = timedelta(milliseconds=-1)


def ids(conn: Conn) -> set[UUID]:
    """Workers in the table, expired ones included."""
    return {id for (id,) in conn.execute("select id from jobs.worker").fetchall()}


class TestBeats:
    def test_the_first_is_a_record_and_the_next_ones_bring_it_up_to_date(self, conn: Conn) -> None:
        before = datetime.now(UTC)
        id, _ = beat(conn)
        (first,) = list_workers(conn)
        assert (first.id, first.name, first.state, first.host) == (id, "web-0", "running", "h")
        assert (first.process, first.version, first.queues) == (4711, "1", {"q": 5})
        assert first.started_at == first.beat_at >= before - timedelta(minutes=1)
        assert first.expires_at == first.beat_at + timedelta(seconds=90)
        assert first[-8:] == (9, 1, 2, 3, 4, 5, 6, 7)
        job = new_id()
        again = {"running_ids": [job], "running_names": ["send"], "in_flight": 3, "claimed": 10}
        beat(conn, id, state="draining", **again)
        (second,) = list_workers(conn)
        assert second.started_at == first.started_at
        assert second.beat_at > first.beat_at
        assert (second.state, second.in_flight, second.claimed) == ("draining", 3, 10)
        assert second.running == [(job, "send")]
        assert second.running[0].name == "send"

    def test_one_that_drains_says_so_and_lives_on(self, conn: Conn) -> None:
        (id, _), (other, _) = beat(conn), beat(conn, name="web-1")
        job = new_id()
        mark_worker(
            conn,
            lifetime=HOUR,
            in_flight=2,
            running_ids=[job],
            running_names=["send"],
            id=id,
        )
        first, second = list_workers(conn)
        assert (first.state, first.in_flight, first.running) == ("draining", 2, [(job, "send")])
        assert first.expires_at == first.beat_at + HOUR
        assert first.claimed == 9
        assert (second.id, second.state) == (other, "running")

    def test_two_processes_of_one_name_are_two_records(self, conn: Conn) -> None:
        first, second = beat(conn, process=1)[0], beat(conn, process=2)[0]
        assert [one.id for one in list_workers(conn)] == [first, second]

    def test_a_row_takes_no_more_than_a_hundred_jobs(self, conn: Conn) -> None:
        many = [new_id() for _ in range(101)]
        with pytest.raises(psycopg.errors.CheckViolation):
            beat(conn, running_ids=many, running_names=["n"] * 101)

    def test_a_beat_writes_no_index(self, conn: Conn) -> None:
        """Heap only, so the table does not grow with the beats."""
        id, _ = beat(conn)
        with conn.transaction():
            conn.execute("select from jobs.worker where id = %s for update", [id])
            for _ in range(50):
                beat(conn, id)
        conn.execute("select pg_stat_force_next_flush()")
        row = conn.execute(
            "select n_tup_upd, n_tup_hot_upd from pg_stat_user_tables where relname = 'worker'"
        ).fetchone()
        assert row is not None
        assert row[0] == 50
        assert row[1] >= 40, "but for those that find their page full"

    def test_it_waits_for_nobody(self, conn: Conn, session: Callable[..., Session]) -> None:
        expired, _ = beat(conn, lifetime=GONE)
        holder, other = session("holder", autocommit=False), session("other")
        holder.execute(f"select from jobs.worker where id = '{expired}' for update").result()
        alive, _ = other.run(beat, prune=True)
        assert ids(conn) == {expired, alive}, "the locked one waits for the next"
        holder.run(Connection.rollback)

    def test_two_that_were_silent_do_not_wait_for_each_other(
        self, conn: Conn, session: Callable[..., Session]
    ) -> None:
        """Each finds the other's row expired, after the database was away for a while say."""
        (one, _), (two, _) = beat(conn, lifetime=GONE), beat(conn, lifetime=GONE)
        conn.execute("""
            create function public.hold() returns trigger language plpgsql as $$
            begin
                if current_setting('stepped.gate', true) = 'shut' then
                    perform pg_advisory_xact_lock_shared(4712);
                end if;
                return old;
            end
            $$;
            create trigger gate before delete on jobs.worker
            for each row execute function public.hold();
        """)
        keeper, first, second = map(session, ("keeper", "first", "second"))
        keeper.execute("select pg_advisory_lock(4712)").result()
        first.execute("set stepped.gate = 'shut'").result()
        first.start(beat, one, prune=True)
        first.blocked(by=keeper)
        second.start(beat, two, prune=True)
        second.blocked(by=first)
        keeper.execute("select pg_advisory_unlock(4712)").result()
        first.result()
        second.result()
        assert ids(conn) == {one, two}


class TestExpiry:
    def test_one_that_is_silent_is_not_listed_and_the_next_removes_it(self, conn: Conn) -> None:
        silent, _ = beat(conn, lifetime=GONE)
        alive, _ = beat(conn)
        assert [one.id for one in list_workers(conn)] == [alive]
        assert ids(conn) == {silent, alive}
        beat(conn, alive, prune=True)
        assert ids(conn) == {alive}

    def test_one_that_is_heard_of_again_is_back(self, conn: Conn) -> None:
        id, _ = beat(conn, lifetime=GONE)
        assert list_workers(conn) == []
        beat(conn, id, prune=True)
        assert [one.id for one in list_workers(conn)] == [id]

    def test_the_table_is_bounded_however_many_start_and_die(self, conn: Conn) -> None:
        for _ in range(300):
            beat(conn, lifetime=GONE, prune=True)
        assert len(ids(conn)) == 1

    def test_the_databases_clock_decides(self, conn: Conn) -> None:
        id, _ = beat(conn)
        row = conn.execute(
            "select beat_at <= now(), expires_at - beat_at from jobs.worker where id = %s", [id]
        ).fetchone()
        assert row == (True, timedelta(seconds=90))
        (listed,) = list_workers(conn)
        assert timedelta(0) <= listed.silent_for < timedelta(minutes=1)

    def test_forgetting_removes_one_and_is_harmless_twice(self, conn: Conn) -> None:
        (first, _), (second, _) = beat(conn), beat(conn)
        for _ in range(2):
            remove_worker(conn, id=first)
            assert ids(conn) == {second}


class TestTheLook:
    """A beat says whether a claim would find something, so that it may stand for one."""

    @staticmethod
    def due(conn: Conn, *queues: str) -> bool:
        answer = beat(conn, looked_at=queues or ("q",))[1]
        assert answer is not None
        return answer

    def test_nothing_there(self, conn: Conn) -> None:
        assert not self.due(conn)

    @pytest.mark.parametrize("priority", range(4))
    def test_a_job_of_any_priority(self, conn: Conn, priority: int) -> None:
        made(conn, priority=priority)
        assert self.due(conn)
        assert self.due(conn, "p", "q")
        assert not self.due(conn, "p")

    def test_not_one_that_is_due_later(self, conn: Conn) -> None:
        made(conn, delay=HOUR)
        assert not self.due(conn)

    def test_not_one_that_runs_until_its_lease_lapses(self, conn: Conn) -> None:
        held = running(conn)
        assert not self.due(conn)
        lapse(conn, held[0])
        assert self.due(conn)

    def test_not_in_a_paused_queue(self, conn: Conn) -> None:
        made(conn)
        conn.execute("insert into jobs.pause (kind, name) values ('queue', 'q')")
        assert not self.due(conn)
        conn.execute("update jobs.pause set kind = 'task'")
        assert self.due(conn)

    def test_one_that_waits_for_its_key(self, conn: Conn) -> None:
        """A claim looks after those as well, wherever they are."""
        made(conn, concurrency_key="k", concurrency_limit=1, when_busy="wait", queue="other")
        assert not self.due(conn)
        conn.execute("update jobs.job set state = 'blocked', waiting_since = now()")
        assert self.due(conn)

    def test_none_of_no_queue(self, conn: Conn) -> None:
        made(conn)
        assert beat(conn, looked_at=())[1] is False

    @pytest.mark.lone
    def test_it_costs_no_more_than_a_claim_that_finds_nothing(self, connect: Connect) -> None:
        conn = connect(options="-c plan_cache_mode=force_generic_plan -c enable_seqscan=off")
        conn.execute(
            "insert into jobs.job (id, run_id, queue, name, max_attempts, available_at, input)"
            " select gen_random_uuid(), gen_random_uuid(), q, 'n', 1,"
            " now() + case when q = 'due' then interval '-1 h' else interval '1 day' end, '{}'"
            " from generate_series(1, 5000), unnest(array['due', 'later']) as q"
        )
        conn.execute("vacuum (analyze) jobs.job")
        id, _ = beat(conn)
        for queue in ("due", "later"):
            asked = BEAT | {"id": id, "looked_at": [queue]}
            plan = explain(conn, "RecordWorker", generic=True, **asked)
            assert plan.buffers < 25, str(plan)


class TestNothingReliesOnIt:
    def test_with_the_table_emptied_everything_goes_on(self, conn: Conn) -> None:
        held = running(conn)
        beat(conn, name="w")
        conn.execute("truncate jobs.worker")
        made(conn)
        assert len(claim_ids(conn)) == 1
        assert settle(conn, Settle(held))


class TestListing:
    async def test_in_order_of_name_and_both_flavours(self, database: str, conn: Conn) -> None:
        for name in ("b", "a", "c"):
            beat(conn, name=name)
        assert [one.name for one in list_workers(conn)] == ["a", "b", "c"]
        assert [one.name for one in list_workers(conn, limit=2)] == ["a", "b"]
        async with await AsyncConnection.connect(database) as other:
            found = await list_workers(other)
        assert [one.name for one in found] == ["a", "b", "c"]

    @pytest.mark.parametrize("limit", [0, 10_001, True, None])
    def test_a_limit_that_is_none(self, conn: Conn, limit: Any) -> None:
        with pytest.raises(PageInvalid, match="limit must be 1 to 10000"):
            list_workers(conn, limit=limit)


class TestLostClaims:
    """What the database has given to a process that has not heard of it."""

    @staticmethod
    def find(conn: Conn, **changes: Any) -> set[UUID]:
        asked: dict[str, Any] = {
            "queues": ["q"],
            "worker": "w1",
            "within": timedelta(minutes=1),
            "most": 10,
        }
        return {row.id for row in find_lost_claims(conn, **(asked | changes))}

    def test_those_of_the_worker_of_late(self, conn: Conn) -> None:
        held = running(conn)
        made(conn)
        (row,) = find_lost_claims(
            conn, queues=["q"], worker="w1", within=timedelta(minutes=1), most=10
        )
        assert (row.id, row.claims, row.attempt, row.name, row.input) == (*held[:2], 1, "n", "{}")

    def test_nobody_elses(self, conn: Conn) -> None:
        held = running(conn)
        assert self.find(conn) == {held[0]}
        assert self.find(conn, worker="v") == set()
        assert self.find(conn, queues=["p"]) == set()

    def test_none_from_before(self, conn: Conn) -> None:
        held = running(conn)
        conn.execute("update jobs.job set claimed_at = claimed_at - interval '1 minute'")
        assert self.find(conn) == set()
        assert self.find(conn, within=timedelta(minutes=2)) == {held[0]}

    def test_none_whose_lease_has_lapsed(self, conn: Conn) -> None:
        lapse(conn, running(conn)[0])
        assert self.find(conn) == set()

    def test_no_more_than_asked(self, conn: Conn) -> None:
        held = sorted(running(conn)[0] for _ in range(3))
        assert self.find(conn, most=2) == set(held[:2])
