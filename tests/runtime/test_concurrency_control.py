"""What operators do to jobs with a concurrency key."""

from __future__ import annotations

from typing import Any

from psycopg import Connection

import jobs
from jobs.control import cancel, requeue
from jobs_sql.wake import listen_wake
from tests.conftest import Connect
from tests.runtime.working import Input, job
from tests.sql.test_wake import heard


def test_a_cancel_of_the_one_let_out_lets_the_next_out(
    conn: Connection[Any], connect: Connect
) -> None:
    @job(name="waits", concurrency=1)
    async def waits(_: Input) -> None: ...

    first, second = [waits.enqueue(conn, Input()).id for _ in range(2)]
    conn.execute(
        "update jobs.job set state = 'blocked', waiting_since = available_at where id = %s",
        [second],
    )
    conn.execute("delete from jobs.wake")
    ear = connect()
    listen_wake(ear)
    cancel(conn, first)
    assert heard(ear) == [waits.queue], "idle workers look at once"
    assert conn.execute("select state from jobs.job where id = %s", [second]).fetchone() == (
        "ready",
    )


def test_in_a_transaction_that_is_left_to_a_sweep(conn: Connection[Any]) -> None:
    @job(name="waits", concurrency=1)
    async def waits(_: Input) -> None: ...

    first, second = [waits.enqueue(conn, Input()).id for _ in range(2)]
    conn.execute(
        "update jobs.job set state = 'blocked', waiting_since = available_at where id = %s",
        [second],
    )
    with conn.transaction():
        cancel(conn, first)
    assert conn.execute("select state from jobs.job").fetchone() == ("blocked",)


def test_a_requeued_job_keeps_its_key(conn: Connection[Any]) -> None:
    @job(name="again", concurrency=jobs.Concurrency(key=lambda _: "k", limit=4, when_busy="fail"))
    async def again(_: Input) -> None: ...

    made = again.enqueue(conn, Input())
    cancel(conn, made.id)
    requeue(conn, made.id)
    assert conn.execute(
        "select concurrency_key, concurrency_limit, when_busy from jobs.job"
    ).fetchone() == ("key:again:k", 4, "fail")
