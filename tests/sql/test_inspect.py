"""One job, its attempts, the counts: what is shown, and that it is one moment's truth."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from typing import Any

import pytest
from psycopg import AsyncConnection, ClientCursor, Connection, sql
from psycopg.pq import TransactionStatus
from psycopg.rows import dict_row

from jobs.errors import ConfigError, JobNotFound, UnknownState
from jobs.inspect import (
    Attempt,
    JobRecord,
    OutcomeCount,
    QueueStats,
    get_job,
    list_attempts,
    list_jobs,
    outcome_counts,
    queue_stats,
)
from tests.sql.calls import (
    HOUR,
    MINUTE,
    NOTHING,
    claim,
    claim_one,
    dead,
    made,
    new_id,
    retry,
    running,
    seed,
    settle,
)
from tests.sql.gate import Gate
from tests.support.stepped import Session

pytestmark = pytest.mark.majors

Conn = Connection[Any]


def put(conn: Conn, id: Any, **columns: Any) -> None:
    """Change a live job behind the library's back."""
    for name, value in columns.items():
        statement = sql.SQL("update jobs.job set {} = %s where id = %s")
        conn.execute(statement.format(sql.Identifier(name)), [value, id])


class TestGetJob:
    def test_every_field_of_a_ready_job(self, conn: Conn) -> None:
        id, run_id = new_id(), new_id()
        trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
        made(
            conn,
            id=id,
            run_id=run_id,
            queue="q1",
            name="n1",
            tenant="t1",
            priority=2,
            max_attempts=7,
            idempotency_scope="waiting",
            idempotency_key="k",
            concurrency_key="c",
            traceparent=trace,
            enqueued_by="me",
            input='{"a":  1}',
        )
        job = get_job(conn, id)
        assert job == JobRecord(
            id=id,
            run_id=run_id,
            queue="q1",
            name="n1",
            tenant="t1",
            state="ready",
            priority=2,
            attempt=0,
            max_attempts=7,
            claims=0,
            worker=None,
            available_at=job.available_at,
            claimed_at=None,
            lease_expires_at=None,
            cancel_requested_at=None,
            cancel_reason=None,
            created_at=job.created_at,
            settled_at=None,
            stop_reason=None,
            last_error=None,
            idempotency_scope="waiting",
            idempotency_key="k",
            concurrency_key="c",
            traceparent=trace,
            enqueued_by="me",
            input='{"a":  1}',
        )

    def test_a_running_job(self, conn: Conn) -> None:
        id, claims = running(conn, worker="w7")
        job = get_job(conn, id)
        assert (job.state, job.worker, job.claims, job.attempt) == ("running", "w7", claims, 1)
        assert job.claimed_at is not None
        assert job.lease_expires_at is not None
        assert job.lease_expires_at > job.claimed_at
        assert job.settled_at is None

    def test_a_finished_job(self, conn: Conn) -> None:
        held = running(conn, max_attempts=1, idempotency_key="k")
        settle(conn, dead(held, "no way"))
        job = get_job(conn, held[0])
        assert (job.state, job.available_at, job.lease_expires_at) == ("dead", None, None)
        assert job.last_error is not None
        assert "no way" in job.last_error
        assert job.stop_reason
        assert job.settled_at is not None
        assert job.claimed_at is not None
        assert job.created_at <= job.claimed_at <= job.settled_at
        assert (job.idempotency_key, job.input) == ("k", "{}")

    @pytest.mark.parametrize("state", ["suspended", "blocked"])
    def test_the_other_live_states(self, conn: Conn, state: str) -> None:
        id = made(conn)
        put(conn, id, state=state)
        assert get_job(conn, id).state == state

    @pytest.mark.parametrize("state", ["completed", "failed", "dead", "cancelled"])
    def test_the_other_final_states(self, conn: Conn, state: str) -> None:
        held = running(conn)
        settle(conn, held)
        conn.execute("update jobs.settled set state = %s", [state])
        assert get_job(conn, held[0]).state == state

    def test_a_job_that_is_not_due_is_delayed(self, conn: Conn) -> None:
        id = made(conn, delay=HOUR)
        assert get_job(conn, id).state == "delayed"
        held = running(conn)
        settle(conn, retry(held, HOUR))
        assert get_job(conn, held[0]).state == "delayed"

    def test_a_job_enqueued_a_moment_ago_in_this_transaction_is_ready(self, connect: Any) -> None:
        conn = connect(autocommit=False)
        conn.execute("select now()")
        id = made(conn)
        assert get_job(conn, id).state == "ready"
        assert [job.state for job in list_jobs(conn).jobs] == ["ready"]
        assert queue_stats(conn)[0].ready == 1

    def test_no_tenant_is_none(self, conn: Conn) -> None:
        assert get_job(conn, made(conn)).tenant is None

    def test_no_such_job(self, conn: Conn) -> None:
        id = new_id()
        with pytest.raises(JobNotFound, match=str(id)) as missing:
            get_job(conn, id)
        assert isinstance(missing.value, LookupError)

    def test_times_are_in_utc_whatever_the_session_shows(self, connect: Any) -> None:
        conn = connect(options="-c timezone=Asia/Kolkata")
        due = dt.datetime(2031, 5, 5, 12, 30, 0, 123456, dt.timezone(-7 * HOUR))
        later = get_job(conn, made(conn, run_at=due))
        assert later.available_at == due
        held = running(conn)
        settle(conn, retry(held, NOTHING))
        held = (held[0], claim_one(conn).claims)
        settle(conn, dead(held))
        job = get_job(conn, held[0])
        (listed,) = (job for job in list_jobs(conn, state="dead").jobs)
        times = [later.available_at, job.created_at, job.claimed_at, job.settled_at]
        times += [listed.created_at, listed.settled_at]
        times += [attempt.failed_at for attempt in list_attempts(conn, held[0])]
        assert len(times) == 8
        assert all(time is not None and time.tzinfo is dt.UTC for time in times)


class TestMoving:
    """A job that is being settled is seen on one side of that, by whatever reads it."""

    @pytest.mark.parametrize("read", [get_job, list_jobs])
    def test_before_and_after_the_commit(
        self, conn: Conn, session: Callable[..., Session], read: Callable[..., Any]
    ) -> None:
        held = running(conn)
        settler = session("settler", autocommit=False)

        def seen() -> list[JobRecord]:
            found = read(conn, held[0]) if read is get_job else read(conn)
            return [found] if read is get_job else found.jobs

        settler.run(settle, held)
        assert [job.state for job in seen()] == ["running"]
        settler.run(lambda c: c.commit())
        assert [job.state for job in seen()] == ["completed"]

    @pytest.mark.parametrize("newest_first", [True, False])
    def test_in_the_middle_of_the_statement(
        self, conn: Conn, gate: Gate, session: Callable[..., Session], newest_first: bool
    ) -> None:
        """The move commits after the reader's snapshot and before it reads the first row."""
        held = running(conn)
        reader = session("reader")
        gate.hold(reader)
        reader.start(list_jobs, newest_first=newest_first)
        gate.reached(reader)
        settle(conn, held)
        gate.release()
        assert [job.state for job in reader.result().jobs] == ["running"]
        assert [job.state for job in list_jobs(conn).jobs] == ["completed"]

    def test_in_the_middle_of_get_job(
        self, conn: Conn, gate: Gate, session: Callable[..., Session]
    ) -> None:
        held = running(conn)
        reader = session("reader")
        gate.hold(reader)
        reader.start(get_job, held[0])
        gate.reached(reader)
        settle(conn, held)
        gate.release()
        assert reader.result().state == "running"
        assert get_job(conn, held[0]).state == "completed"

    def test_in_one_snapshot_it_stays_where_it_was(self, conn: Conn, connect: Any) -> None:
        held = running(conn)
        reader = connect(autocommit=False)
        reader.execute("set transaction isolation level repeatable read")
        assert get_job(reader, held[0]).state == "running"
        settle(conn, held)
        assert get_job(reader, held[0]).state == "running"
        assert [job.state for job in list_jobs(reader).jobs] == ["running"]
        reader.commit()
        assert get_job(reader, held[0]).state == "completed"


class TestUnknownState:
    @pytest.fixture
    def newer(self, conn: Conn) -> Any:
        """A job in a state that a later release might add."""
        for name in ("job_state_check", "job_holder_check"):
            conn.execute(f"alter table jobs.job drop constraint {name}".encode())
        id = made(conn)
        put(conn, id, state="parked")
        return id

    def test_it_is_refused_by_name(self, conn: Conn, newer: Any) -> None:
        for read in (lambda: get_job(conn, newer), lambda: list_jobs(conn)):
            with pytest.raises(UnknownState, match=f"{newer} is in the state 'parked'"):
                read()

    def test_the_counts_stay_complete(self, conn: Conn, newer: Any) -> None:
        made(conn)
        (stats,) = queue_stats(conn)
        assert (stats.ready, stats.other) == (1, 1)
        assert newer


class TestAttempts:
    def test_each_failure_once_oldest_first(self, conn: Conn) -> None:
        held = running(conn, worker="w1")
        settle(conn, retry(held, NOTHING, "first"))
        again = claim_one(conn, worker="w2")
        settle(conn, dead((held[0], again.claims), "second"), worker="w2")
        attempts = list_attempts(conn, held[0])
        assert attempts == [
            Attempt(
                held[0], 1, 1, attempts[0].failed_at, "w1", "ValueError", "first", "Traceback ..."
            ),
            Attempt(
                held[0], 2, 2, attempts[1].failed_at, "w2", "TypeError", "second", "Traceback ..."
            ),
        ]

    def test_none_for_a_job_without_failures_or_unknown(self, conn: Conn) -> None:
        assert list_attempts(conn, made(conn)) == []
        assert list_attempts(conn, new_id()) == []


class TestQueueStats:
    def test_each_job_is_in_exactly_one_bucket(self, conn: Conn) -> None:
        made(conn)
        made(conn, delay=HOUR)
        settle(conn, retry(running(conn), HOUR))
        claimed = running(conn)
        suspended, blocked = made(conn), made(conn)
        put(conn, suspended, state="suspended")
        put(conn, blocked, state="blocked")
        # A suspended job that is due, and a blocked one that is not, are no second bucket's.
        put(conn, blocked, available_at=dt.datetime(2100, 1, 1, tzinfo=dt.UTC))
        settle(conn, running(conn))
        settle(conn, dead(running(conn)))
        made(conn, queue="a")
        (other, stats) = queue_stats(conn)
        assert other.queue == "a"
        assert stats == QueueStats(
            queue="q",
            ready=1,
            delayed=2,
            running=1,
            suspended=1,
            blocked=1,
            other=0,
            dead=1,
            oldest_ready=stats.oldest_ready,
        )
        live = sum(stats[1:7]) + sum(other[1:7])
        assert conn.execute("select count(*) from jobs.job").fetchone() == (live,)
        assert claimed

    def test_a_queue_with_nothing_but_dead_jobs(self, conn: Conn) -> None:
        settle(conn, dead(running(conn)))
        assert queue_stats(conn) == [QueueStats("q", 0, 0, 0, 0, 0, 0, 1, None)]

    def test_a_queue_with_nothing_but_completed_jobs_is_not_there(self, conn: Conn) -> None:
        settle(conn, running(conn))
        assert queue_stats(conn) == []

    def test_the_oldest_due_job(self, conn: Conn) -> None:
        made(conn, run_at=dt.datetime.now(dt.UTC) - 2 * HOUR)
        made(conn, delay=HOUR)
        old = made(conn, run_at=dt.datetime.now(dt.UTC) - 5 * HOUR)
        put(conn, old, state="suspended")
        (stats,) = queue_stats(conn)
        assert stats.oldest_ready is not None
        assert 2 * HOUR <= stats.oldest_ready < 5 * HOUR


class TestOutcomes:
    def test_outcomes_are_summed_by_name(self, conn: Conn) -> None:
        for _ in range(3):
            settle(conn, running(conn, name="a"))
        settle(conn, dead(running(conn, name="b")))
        assert outcome_counts(conn, MINUTE) == [
            OutcomeCount("a", "completed", 3),
            OutcomeCount("b", "dead", 1),
        ]

    def test_older_minutes_are_left_out(self, conn: Conn) -> None:
        def minute() -> Any:
            return conn.execute("select date_trunc('minute', clock_timestamp())").fetchone()

        while True:
            start = minute()
            conn.execute("truncate jobs.counter")
            conn.execute(
                "insert into jobs.counter (bucket, amount, name, outcome) "
                "select date_trunc('minute', now()) - i * interval '1 min', 10 ^ i, 'n', 'dead' "
                "from generate_series(0, 3) as s (i)"
            )
            (recent,), (now,) = outcome_counts(conn, 2 * MINUTE), outcome_counts(conn, NOTHING)
            (ever,) = outcome_counts(conn, dt.timedelta.max)
            if minute() == start:
                break
        # The minute in which the time begins counts whole.
        assert (recent.amount, now.amount, ever.amount) == (111, 1, 1111)

    def test_a_negative_time_is_refused(self, conn: Conn) -> None:
        with pytest.raises(ConfigError, match="since"):
            outcome_counts(conn, -MINUTE)


class TestFlavours:
    async def test_the_same_on_an_asynchronous_connection(
        self, conn: Conn, aconn: AsyncConnection[Any]
    ) -> None:
        seed(conn, 5)
        held = running(conn)
        settle(conn, retry(held, HOUR))
        assert await get_job(aconn, held[0]) == get_job(conn, held[0])
        assert await list_attempts(aconn, held[0]) == list_attempts(conn, held[0])
        for newest_first in (True, False):
            page = await list_jobs(aconn, page_size=4, newest_first=newest_first)
            assert page == list_jobs(conn, page_size=4, newest_first=newest_first)
            assert page.next_cursor == page.jobs[-1].id
        assert [row[:8] for row in await queue_stats(aconn)] == [
            row[:8] for row in queue_stats(conn)
        ]
        assert await outcome_counts(aconn, HOUR) == outcome_counts(conn, HOUR)
        with pytest.raises(JobNotFound):
            await get_job(aconn, new_id())

    def test_no_transaction_is_ended_or_left_failed(self, connect: Any) -> None:
        conn = connect(autocommit=False)
        id = made(conn)
        with pytest.raises(JobNotFound):
            get_job(conn, new_id())
        list_jobs(conn)
        assert conn.info.transaction_status is TransactionStatus.INTRANS
        conn.rollback()
        with pytest.raises(JobNotFound):
            get_job(conn, id)

    def test_rows_of_any_factory(self, connect: Any) -> None:
        conn = connect(row_factory=dict_row, cursor_factory=ClientCursor)
        id = made(conn)
        assert get_job(conn, id).id == id
        assert [job.id for job in list_jobs(conn).jobs] == [id]
        assert claim(conn)
        assert queue_stats(conn)[0].running == 1
