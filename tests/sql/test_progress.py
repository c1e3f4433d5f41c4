"""WriteProgress: three answers, the fence, heap-only updates, and what becomes of it afterwards."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from psycopg import Connection, sql

from jobs_sql import control as control_sql
from jobs_sql.progress import WriteProgressRow, write_progress
from tests.sql import tables
from tests.sql.calls import (
    HOUR,
    Held,
    Settle,
    claim,
    claim_one,
    made,
    new_id,
    retry,
    running,
    settle,
    strict,
)
from tests.sql.volume import never_analysed
from tests.support.buffers import explain
from tests.support.stepped import Session

pytestmark = pytest.mark.majors

Conn = Connection[Any]
Sessions = Callable[..., Session]

# Bytes a job at batch 100. Measured on PostgreSQL 18: 142 to 176, whatever the size of the payload.
WAL = 260


def report(
    conn: Conn,
    held: Sequence[Held],
    fraction: float | None = 0.5,
    message: str | None = None,
    *,
    worker: str = "w1",
) -> list[str]:
    """`WriteProgress`; the verdicts in the order of the pairs."""
    rows = strict(
        WriteProgressRow,
        write_progress(
            conn,
            ids=[id for id, _ in held],
            claims=[claims for _, claims in held],
            fractions=[fraction] * len(held),
            messages=[message] * len(held),
            worker=worker,
        ),
    )
    verdicts = {(row.id, row.claims): row.verdict for row in rows}
    assert len(rows) == len(held)
    return [verdicts[pair] for pair in held]


def seen(row: dict[str, Any]) -> tuple[float | None, str | None]:
    return row["progress"], row["progress_message"]


def cancel(conn: Conn, held: Held) -> list[str]:
    rows = control_sql.cancel_jobs(conn, ids=[held[0]], reason=None)
    return [row.verdict for row in rows]


class TestAnswers:
    def test_it_is_written_and_nothing_else_changes(self, conn: Conn) -> None:
        held = running(conn)
        before = tables.job(conn, held[0])
        assert report(conn, [held], 0.25, "a quarter") == ["landed"]
        after = tables.job(conn, held[0])
        assert seen(after) == (0.25, "a quarter")
        changed = {key for key in after if after[key] != before[key]}
        assert changed - {"xmax"} == {"xmin", "ctid", "progress", "progress_message"}

    def test_each_pair_gets_its_own_answer(self, conn: Conn) -> None:
        mine, ended, again, foreign = (running(conn) for _ in range(4))
        settle(conn, ended)
        settle(conn, retry(again, HOUR))
        other = running(conn, worker="w2")
        asked = [mine, ended, again, other, (made(conn), 0), (new_id(), 1), foreign]
        assert report(conn, asked) == ["landed", *["lost"] * 5, "landed"]
        assert seen(tables.job(conn, again[0])) == (None, None)
        assert seen(tables.job(conn, other[0])) == (None, None)

    def test_nothing_asked_nothing_answered(self, conn: Conn) -> None:
        assert report(conn, []) == []

    def test_a_row_that_another_session_holds_is_busy_and_not_waited_for(
        self, conn: Conn, session: Sessions
    ) -> None:
        held, free = running(conn), running(conn)
        keeper = session("keeper", autocommit=False)
        lock = "select id from jobs.job where id = %s for update"
        keeper.start(lambda conn: conn.execute(lock, [held[0]]).fetchall())
        keeper.result()
        assert report(conn, [held, free]) == ["busy", "landed"]
        keeper.start(lambda conn: conn.rollback())
        keeper.result()
        assert report(conn, [held]) == ["landed"]

    @pytest.mark.parametrize("fraction", [-0.1, 1.5, float("nan"), float("inf")], ids=repr)
    def test_the_table_takes_no_other_fraction(self, conn: Conn, fraction: float) -> None:
        held = running(conn)
        with pytest.raises(Exception, match="job_progress_check"):
            report(conn, [held], fraction)


class TestFence:
    def test_a_late_report_touches_nothing(self, conn: Conn) -> None:
        """W1 slept past its lease, W2 has the job."""
        held = running(conn, worker="w1")
        tables.lapse(conn, held[0])
        again = claim_one(conn, worker="w2", rescue=True)
        assert report(conn, [(again.id, again.claims)], 0.1, worker="w2") == ["landed"]
        assert report(conn, [held], 0.9) == ["lost"]
        assert seen(tables.job(conn, held[0])) == (pytest.approx(0.1), None)

    def test_nor_does_one_with_the_token_of_another_name(self, conn: Conn) -> None:
        held = running(conn, worker="w1")
        assert report(conn, [held], worker="w2") == ["lost"]
        assert report(conn, [(held[0], held[1] + 1)]) == ["lost"]

    def test_a_process_of_the_same_name_is_told_apart_by_the_token(self, conn: Conn) -> None:
        held = running(conn, worker="web-0")
        tables.lapse(conn, held[0])
        claim_one(conn, worker="web-0", rescue=True)
        assert report(conn, [held], worker="web-0") == ["lost"]


class TestAfterwards:
    @pytest.mark.parametrize("outcome", ["completed", "dead", "cancelled", "refused"])
    def test_the_finished_job_keeps_it(self, conn: Conn, outcome: str) -> None:
        held = running(conn)
        report(conn, [held], 0.75, "nearly")
        settle(conn, Settle(held, outcome))
        assert seen(tables.settled(conn, held[0])) == (0.75, "nearly")

    @pytest.mark.parametrize("outcome", ["retry", "released", "snoozed"])
    def test_the_next_attempt_begins_with_it(self, conn: Conn, outcome: str) -> None:
        held = running(conn)
        report(conn, [held], 0.75, "nearly")
        settle(conn, Settle(held, outcome))
        assert seen(tables.job(conn, held[0])) == (0.75, "nearly")
        row = claim_one(conn)
        assert seen(tables.job(conn, held[0])) == (0.75, "nearly")
        assert report(conn, [(row.id, row.claims)], 0.1) == ["landed"]
        assert seen(tables.job(conn, held[0])) == (pytest.approx(0.1), None)

    def test_a_rescue_keeps_it_and_a_burial_too(self, conn: Conn) -> None:
        held, last = running(conn), running(conn, max_attempts=1)
        report(conn, [held, last], 0.5, "half")
        tables.lapse(conn, held[0])
        tables.lapse(conn, last[0])
        assert {row.verdict for row in claim(conn, rescue=True)} == {"claimed", "buried"}
        assert seen(tables.job(conn, held[0])) == (0.5, "half")
        assert seen(tables.settled(conn, last[0])) == (0.5, "half")

    def test_a_cancel_keeps_it_whether_the_job_waits_or_has_lapsed(self, conn: Conn) -> None:
        waits, lapsed = running(conn), running(conn)
        report(conn, [waits, lapsed], 0.5, "half")
        settle(conn, retry(waits, HOUR))
        tables.lapse(conn, lapsed[0])
        for held in (waits, lapsed):
            assert cancel(conn, held) == ["cancelled"]
            assert seen(tables.settled(conn, held[0])) == (0.5, "half")

    def test_a_requeue_forgets_it(self, conn: Conn) -> None:
        held = running(conn)
        report(conn, [held], 0.5, "half")
        settle(conn, Settle(held, "dead"))
        control_sql.requeue_jobs(
            conn, ids=[held[0]], run_at=None, delay=dt.timedelta(0), completed=False
        )
        assert seen(tables.job(conn, held[0])) == (None, None)


class TestCost:
    def updates(self, conn: Conn) -> tuple[int, int]:
        conn.execute("select pg_stat_force_next_flush()")
        row = conn.execute(
            "select n_tup_upd, n_tup_hot_upd from pg_stat_user_tables"
            " where schemaname = 'jobs' and relname = 'job'"
        ).fetchone()
        assert row is not None
        return row[0], row[1]

    def test_every_update_is_heap_only(self, quiet: Conn) -> None:
        held = [running(quiet) for _ in range(50)]
        updates, hot = self.updates(quiet)
        for step in range(10):
            assert report(quiet, held, step / 10, f"step {step}") == ["landed"] * 50
        after, hot_after = self.updates(quiet)
        assert (after - updates, hot_after - hot) == (500, 500)

    @pytest.mark.parametrize("size", [60, 1000], ids=["60-bytes", "1-kB"])
    def test_no_payload_is_logged_again(self, quiet: Conn, size: int) -> None:
        never_analysed(quiet)
        held = [running(quiet, input='"' + "x" * size + '"') for _ in range(100)]
        for _ in range(2):
            plan = explain(
                quiet,
                "WriteProgress",
                ids=[id for id, _ in held],
                claims=[claims for _, claims in held],
                fractions=[0.5] * 100,
                messages=["half of it"] * 100,
                worker="w1",
            )
            assert plan.rows == 100
            assert plan.wal_bytes / 100 < WAL

    def test_it_finds_its_rows_by_the_primary_key(self, quiet: Conn) -> None:
        held = [running(quiet) for _ in range(3)]
        quiet.execute(
            sql.SQL(
                "insert into jobs.job (id, run_id, queue, name, max_attempts, input)"
                " select gen_random_uuid(), gen_random_uuid(), 'other', 'n', 3, '{}'"
                " from generate_series(1, 5000)"
            )
        )
        quiet.execute("vacuum analyze jobs.job")
        plan = explain(
            quiet,
            "WriteProgress",
            ids=[id for id, _ in held],
            claims=[claims for _, claims in held],
            fractions=[0.5] * 3,
            messages=[None] * 3,
            worker="w1",
        )
        assert plan.buffers < 60
