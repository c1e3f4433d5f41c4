from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import wait
from typing import Any

import psycopg
import pytest
from psycopg import Connection

from tests.support.stepped import Session

Sessions = Callable[..., Session]

pytestmark = pytest.mark.majors


@pytest.fixture
def table(conn: Connection[Any]) -> None:
    conn.execute("create table public.t (id int primary key, n int not null)")
    conn.execute("insert into public.t values (1, 0), (2, 0)")


@pytest.mark.usefixtures("table")
class TestBlocked:
    def test_a_real_wait_is_proven_with_its_holder(self, session: Sessions) -> None:
        holder, waiter = session("holder", autocommit=False), session("waiter")
        holder.run(lambda c: c.execute("update public.t set n = 1 where id = 1"))
        waiter.execute("update public.t set n = n + 1 where id = 1 returning n")

        block = waiter.blocked(by=holder)

        assert block.by == {holder.pid}
        assert block.lock == "transactionid ShareLock"
        assert not waiter.done()
        holder.run(lambda c: c.commit())
        assert waiter.result() == [(2,)]

    def test_a_step_that_ends_is_not_called_blocked(self, session: Sessions) -> None:
        one = session("one")
        one.execute("select 1")
        with pytest.raises(AssertionError, match="one: expected to wait, but it ended"):
            one.blocked()

    def test_a_wait_for_something_else_is_not_called_blocked(self, session: Sessions) -> None:
        sleeper = session("sleeper")
        sleeper.execute("select pg_sleep(30)")
        with pytest.raises(AssertionError, match=r"does not wait for a lock.*PgSleep"):
            sleeper.blocked(timeout=0.3)

    def test_a_wait_for_a_third_session_is_not_called_blocked_by_the_second(
        self, session: Sessions
    ) -> None:
        holder, bystander = session("holder", autocommit=False), session("bystander")
        waiter = session("waiter")
        holder.run(lambda c: c.execute("update public.t set n = 1 where id = 1"))
        waiter.execute("update public.t set n = 2 where id = 1")
        waiter.blocked(by=holder)
        with pytest.raises(AssertionError, match=r"does not wait for a lock for bystander"):
            waiter.blocked(by=bystander, timeout=0.3)

    def test_skip_locked_does_not_block(self, session: Sessions) -> None:
        holder, other = session("holder", autocommit=False), session("other")
        holder.run(lambda c: c.execute("update public.t set n = 1 where id = 1"))
        other.execute("select id from public.t for update skip locked")
        assert other.result() == [(2,)]


def test_a_failed_step_raises_in_the_test(session: Sessions) -> None:
    one = session("one")
    one.execute("select 1 / 0")
    with pytest.raises(psycopg.errors.DivisionByZero):
        one.result()


def test_a_failed_step_that_nobody_looked_at_is_reported(connect: Callable[..., Any]) -> None:
    one = Session(connect(), connect(), "one")
    wait([one.execute("select 1 / 0")])
    with pytest.raises(AssertionError, match="one: a step failed and nobody asked"):
        one.close()
