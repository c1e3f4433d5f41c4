"""EnqueueJob, FindEnqueued, UndoRepublished and CopyJobs without contention."""

from __future__ import annotations

import datetime as dt
import secrets
from typing import Any

import pytest
from psycopg import Connection, errors

from jobs_sql.bulk import CopyJobsParams, copy_jobs
from tests.sql import tables
from tests.sql.calls import (
    HOUR,
    MINUTE,
    claim,
    claim_one,
    enqueue,
    find,
    made,
    new_id,
    retry,
    running,
    settle,
    undo,
)

pytestmark = pytest.mark.majors

Conn = Connection[Any]

WAITING = {"idempotency_scope": "waiting", "idempotency_key": "k"}


class TestTheRow:
    def test_everything_is_stored(self, conn: Conn) -> None:
        given = {
            "id": new_id(),
            "run_id": new_id(),
            "queue": "mail",
            "name": "send",
            "tenant": "t1",
            "priority": 3,
            "max_attempts": 7,
            "dead_letter": False,
            "idempotency_scope": "waiting",
            "idempotency_key": "k",
            "traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "enqueued_by": "alice",
            "input": '{"a":  1}',
        }
        made(conn, **given)
        row = tables.job(conn, given["id"])
        assert {key: row[key] for key in given} == given
        assert (row["state"], row["claims"], row["attempt"], row["revoked"]) == ("ready", 0, 0, 0)

    def test_the_due_time_is_the_databases_plus_the_delay(self, conn: Conn) -> None:
        row = tables.job(conn, made(conn, delay=HOUR))
        assert abs(row["available_at"] - row["created_at"] - HOUR) < MINUTE

    def test_a_start_time_wins_over_the_delay(self, conn: Conn) -> None:
        at = dt.datetime(2040, 2, 29, 12, 0, 0, 123456, tzinfo=dt.timezone(HOUR))
        row = tables.job(conn, made(conn, run_at=at, delay=MINUTE))
        assert row["available_at"] == at

    def test_a_long_transaction_does_not_backdate_its_jobs(self, conn: Conn) -> None:
        with conn.transaction():
            begun = conn.execute("select now()").fetchone()
            first, second = made(conn), made(conn)
        rows = [tables.job(conn, first), tables.job(conn, second)]
        assert begun is not None
        assert begun[0] < rows[0]["available_at"] < rows[1]["available_at"]
        assert begun[0] < rows[0]["created_at"] < rows[1]["created_at"]

    @pytest.mark.parametrize(
        ("column", "value"),
        [
            ("queue", ""),
            ("queue", "é" * 128),
            ("name", ""),
            ("name", "é" * 128),
            ("tenant", "é" * 128),
            ("priority", -1),
            ("priority", 4),
            ("max_attempts", 0),
            ("idempotency_scope", "for ever"),
        ],
    )
    def test_the_table_refuses_what_python_would_have_refused(
        self, conn: Conn, column: str, value: object
    ) -> None:
        with pytest.raises(errors.CheckViolation):
            made(conn, **{column: value})

    def test_names_may_be_as_long_as_they_say(self, conn: Conn) -> None:
        """O-17: the unique index holds the three together, with a digest of the key."""
        noise = secrets.token_urlsafe(12_000)
        given = {"queue": noise[:255], "name": noise[1:256], "tenant": noise[2:257]}
        key = noise[:16_000]
        id = made(conn, **given, idempotency_key=key)
        assert enqueue(conn, **given, idempotency_key=key) is None
        assert enqueue(conn, **given, idempotency_key=key + "x") is not None
        assert tables.job(conn, id)["idempotency_key"] == key


class TestKeys:
    @pytest.mark.parametrize("scope", ["live", "waiting"])
    def test_a_key_is_held_by_one_job_that_has_not_started(self, conn: Conn, scope: str) -> None:
        over = {"idempotency_scope": scope, "idempotency_key": "k"}
        first = made(conn, **over, delay=HOUR)
        assert [enqueue(conn, **over) for _ in range(5)] == [None] * 5
        found = find(conn, "k")
        assert found is not None
        assert found.id == first

    def test_of_scope_live_it_is_held_until_the_end(self, conn: Conn) -> None:
        over = {"idempotency_scope": "live", "idempotency_key": "k"}
        held = running(conn, **over)
        assert enqueue(conn, **over) is None
        settle(conn, retry(held, HOUR))
        assert enqueue(conn, **over) is None
        tables.make_due(conn, held[0])
        row = claim_one(conn)
        settle(conn, (row.id, row.claims))
        assert enqueue(conn, **over) is not None

    def test_of_scope_waiting_until_the_start(self, conn: Conn) -> None:
        """O-13: exactly one further job waits, and the caller learns which."""
        held = running(conn, **WAITING)
        further = made(conn, **WAITING)
        assert further != held[0]
        for _ in range(4):
            assert enqueue(conn, **WAITING) is None
            found = find(conn, "k")
            assert found is not None
            assert found.id == further

    def test_a_retry_does_not_take_the_key_back(self, conn: Conn) -> None:
        held = running(conn, **WAITING)
        settle(conn, retry(held))
        assert enqueue(conn, **WAITING) is not None

    @pytest.mark.parametrize("other", [{"name": "m"}, {"tenant": "t"}, {"idempotency_key": "K"}])
    def test_the_namespace_is_name_tenant_and_key(self, conn: Conn, other: dict[str, str]) -> None:
        over: dict[str, Any] = {"idempotency_key": "k"}
        made(conn, **over)
        made(conn, **(over | other))
        assert enqueue(conn, **over, queue="another") is None

    def test_the_scopes_share_one_namespace(self, conn: Conn) -> None:
        made(conn, idempotency_scope="live", idempotency_key="k")
        assert enqueue(conn, **WAITING) is None

    def test_jobs_without_a_key_are_never_the_same(self, conn: Conn) -> None:
        assert len({made(conn) for _ in range(5)}) == 5

    @pytest.mark.parametrize("key", ["'", "\\", "\n", " ", "\U0001f600", "NULL", "{}", "é"])
    def test_any_text_is_a_key(self, conn: Conn, key: str) -> None:
        id = made(conn, idempotency_key=key)
        assert enqueue(conn, idempotency_key=key) is None
        found = find(conn, key)
        assert found is not None
        assert found.id == id

    def test_an_existing_job_is_neither_written_nor_locked(self, conn: Conn) -> None:
        id = made(conn, idempotency_key="k")
        before = tables.job(conn, id)
        with conn.transaction():
            assert enqueue(conn, idempotency_key="k") is None
            assert find(conn, "k") is not None
            assert tables.job(conn, id) == before
        assert int(before["xmax"]) == 0


class TestSuppliedIds:
    def test_one_that_is_live_inserts_nothing(self, conn: Conn) -> None:
        id, run_id = new_id(), new_id()
        made(conn, id=id, run_id=run_id)
        assert enqueue(conn, id=id, input='"other"') is None
        found = find(conn, None, id=id)
        assert found is not None
        assert (found.id, found.run_id) == (id, run_id)
        assert tables.job(conn, id)["input"] == "{}"

    def test_one_that_has_finished_inserts_nothing(self, conn: Conn) -> None:
        id, run_id = new_id(), new_id()
        held = running(conn, id=id, run_id=run_id)
        settle(conn, held)
        assert enqueue(conn, id=id) is None
        found = find(conn, None, id=id)
        assert found is not None
        assert (found.id, found.run_id) == (id, run_id)
        assert tables.settled(conn, id)["state"] == "completed"

    def test_an_id_made_by_the_library_does_not_pay_for_that_look(self, conn: Conn) -> None:
        held = running(conn)
        settle(conn, held)
        assert enqueue(conn, id=held[0], id_supplied=False) == held[0]

    def test_what_was_just_inserted_stays_where_nothing_has_finished(self, conn: Conn) -> None:
        id, run_id = new_id(), new_id()
        with conn.transaction():
            made(conn, id=id, run_id=run_id)
            assert undo(conn, id, run_id) == []
        assert tables.job(conn, id)["state"] == "ready"

    def test_only_the_row_of_this_very_call_is_taken_back(self, conn: Conn) -> None:
        held = running(conn)
        settle(conn, held)
        made(conn, id=held[0], id_supplied=False)
        mine = tables.job(conn, held[0])["run_id"]
        assert undo(conn, held[0], new_id()) == []
        assert undo(conn, held[0], mine) == [held[0]]
        assert tables.settled(conn, held[0])["state"] == "completed"


class TestFind:
    def test_nothing_is_found_where_nothing_is(self, conn: Conn) -> None:
        made(conn, idempotency_key="other")
        assert find(conn, "k") is None
        assert find(conn, "k", since=HOUR) is None
        assert find(conn, None) is None
        assert find(conn, None, since=HOUR) is None

    @pytest.mark.parametrize("scope", ["live", "waiting"])
    def test_a_job_that_ended_a_moment_ago_is_found_when_asked_for(
        self, conn: Conn, scope: str
    ) -> None:
        held = running(conn, idempotency_scope=scope, idempotency_key="k")
        settle(conn, held)
        assert find(conn, "k") is None
        found = find(conn, "k", since=HOUR)
        assert found is not None
        assert found.id == held[0]

    def test_so_is_one_that_has_let_go_of_its_key_and_started(self, conn: Conn) -> None:
        held = running(conn, **WAITING)
        assert find(conn, "k") is None
        found = find(conn, "k", since=HOUR)
        assert found is not None
        assert found.id == held[0]

    @pytest.mark.parametrize("since", [dt.timedelta(seconds=10), dt.timedelta(days=1)])
    def test_older_ones_are_not(self, conn: Conn, since: dt.timedelta) -> None:
        ended, started = running(conn, idempotency_key="a"), running(conn, **WAITING)
        settle(conn, ended)
        ago = since + MINUTE
        conn.execute("update jobs.settled set settled_at = settled_at - %s", [ago])
        conn.execute("update jobs.job set claimed_at = claimed_at - %s", [ago])
        assert find(conn, "a", since=since) is None
        assert find(conn, "k", since=since) is None
        assert started[0] != ended[0]

    @pytest.mark.parametrize("other", [{"name": "m"}, {"tenant": "t"}])
    def test_nor_those_of_another_name_or_tenant(self, conn: Conn, other: dict[str, str]) -> None:
        settle(conn, running(conn, idempotency_key="a"))
        running(conn, **WAITING)
        assert find(conn, "a", since=HOUR, **other) is None
        assert find(conn, "k", since=HOUR, **other) is None

    @pytest.mark.parametrize("first_ends", [False, True])
    @pytest.mark.parametrize("second_ends", [False, True])
    def test_of_several_it_is_the_last_holder_of_the_key(
        self, conn: Conn, first_ends: bool, second_ends: bool
    ) -> None:
        """Those before it had let go of the key before it was made, tried again or not."""
        first, second = running(conn, **WAITING), running(conn, **WAITING)
        settle(conn, retry(first))
        row = claim_one(conn)
        first = (row.id, row.claims)
        if second_ends:
            settle(conn, second)
        if first_ends:
            settle(conn, first)
        found = find(conn, "k", since=HOUR)
        assert found is not None
        assert found.id == second[0]

    def test_the_holder_of_the_key_is_preferred_to_former_ones(self, conn: Conn) -> None:
        settle(conn, running(conn, idempotency_key="k"))
        holder = made(conn, idempotency_key="k")
        found = find(conn, "k", since=HOUR)
        assert found is not None
        assert found.id == holder


TRICKY = ["\\N", "\\", "\t", "\r\n", "\\.", "NULL", "a\\tb", "\U0001f600", '"', "'", "%s", "$1"]


class TestCopy:
    def params(self, **over: Any) -> CopyJobsParams:
        given: dict[str, Any] = {
            "id": new_id(),
            "run_id": new_id(),
            "queue": "q",
            "name": "n",
            "tenant": "",
            "priority": 0,
            "max_attempts": 3,
            "dead_letter": True,
            "concurrency_key": None,
            "concurrency_limit": None,
            "when_busy": None,
            "traceparent": None,
            "enqueued_by": None,
            "input": "{}",
        }
        return CopyJobsParams(**(given | over))

    def test_rows_are_jobs_like_others(self, conn: Conn) -> None:
        rows = [self.params(priority=n % 4) for n in range(1000)]
        assert copy_jobs(conn, iter([rows[:400], rows[400:]])) == 1000
        taken = claim(conn, 2000)
        assert {row.id for row in taken} == {row.id for row in rows}
        assert {row.tenant for row in taken} == {""}

    def test_any_text_arrives_as_it_was(self, conn: Conn) -> None:
        rows = [self.params(queue=t, name=t, tenant=t, enqueued_by=t) for t in TRICKY]
        assert copy_jobs(conn, [rows]) == len(TRICKY)
        for row, text in zip(rows, TRICKY, strict=True):
            kept = tables.job(conn, row.id)
            assert [kept[key] for key in ("queue", "name", "tenant", "enqueued_by")] == [text] * 4

    def test_none_is_null_and_never_a_word(self, conn: Conn) -> None:
        row = self.params()
        copy_jobs(conn, [[row]])
        kept = tables.job(conn, row.id)
        assert kept["enqueued_by"] is kept["traceparent"] is kept["idempotency_key"] is None
        assert kept["tenant"] == ""

    def test_a_payload_keeps_its_bytes(self, conn: Conn) -> None:
        payloads = [r'{"a": "\\N\t\n"}', r'"\ud800"', '"\U0001f600"', ' {"a":1,\t"a":2}\n']
        rows = [self.params(input=payload) for payload in payloads]
        copy_jobs(conn, [rows])
        assert [tables.job(conn, row.id)["input"] for row in rows] == payloads

    def test_the_due_time_is_taken_row_by_row(self, conn: Conn) -> None:
        rows = [self.params() for _ in range(3)]
        with conn.transaction():
            begun = conn.execute("select now()").fetchone()
            copy_jobs(conn, [rows])
        assert begun is not None
        assert all(tables.job(conn, row.id)["available_at"] > begun[0] for row in rows)

    def test_one_bad_row_inserts_nothing(self, conn: Conn) -> None:
        rows = [self.params(), self.params(priority=9), self.params()]
        with pytest.raises(errors.CheckViolation):
            copy_jobs(conn, [rows])
        assert claim(conn) == []

    def test_no_rows_are_no_rows(self, conn: Conn) -> None:
        assert copy_jobs(conn, []) == copy_jobs(conn, [[]]) == 0
