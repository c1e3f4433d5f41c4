"""Looking at the tables, and moving time for single rows, from the tests' side."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Iterable
from typing import Any
from uuid import UUID

from psycopg import Connection, sql
from psycopg.rows import dict_row
from psycopg.types.string import TextLoader


def one(conn: Connection[Any], table: str, id: UUID) -> dict[str, Any] | None:
    """A row of ``job`` or ``settled`` with all its columns, and xmin, xmax, ctid."""
    with conn.cursor(row_factory=dict_row) as cursor:
        # The payload as it is stored: text, whether or not Python could decode it.
        cursor.adapters.register_loader("json", TextLoader)
        query = sql.SQL("select xmin, xmax, ctid, t.* from jobs.{} as t where id = %s")
        return cursor.execute(query.format(sql.Identifier(table)), [id]).fetchone()


def job(conn: Connection[Any], id: UUID) -> dict[str, Any]:
    """A live job that must be there."""
    row = one(conn, "job", id)
    assert row is not None, f"{id} is not in jobs.job"
    return row


def settled(conn: Connection[Any], id: UUID) -> dict[str, Any]:
    """A finished job that must be there, and not live any more."""
    assert one(conn, "job", id) is None, f"{id} is still in jobs.job"
    row = one(conn, "settled", id)
    assert row is not None, f"{id} is not in jobs.settled"
    return row


def where(conn: Connection[Any], ids: Iterable[UUID]) -> Counter[str]:
    """How many of the jobs are in which state, live or finished; 'nowhere' for lost ones."""
    wanted = list(ids)
    rows = conn.execute(
        """
        select state from jobs.job where id = any(%(ids)s)
        union all
        select state from jobs.settled where id = any(%(ids)s)
        """,
        {"ids": wanted},
    ).fetchall()
    found = Counter(row[0] for row in rows)
    if missing := len(wanted) - found.total():
        found["nowhere"] = missing
    return found


def counters(conn: Connection[Any], name: str | None = None) -> dict[str, int]:
    """Sums of jobs.counter by outcome, of one job name or of all."""
    rows = conn.execute(
        """
        select outcome, sum(amount)::bigint from jobs.counter
        where %(name)s::text is null or name = %(name)s
        group by outcome
        """,
        {"name": name},
    ).fetchall()
    return dict(rows)


def attempts(conn: Connection[Any], id: UUID) -> list[tuple[int, int, str, str, str | None]]:
    """(claims, attempt, error type, message, traceback) of each failed attempt, oldest first."""
    return conn.execute(
        """
        select claims, attempt, error_type, error_message, traceback
        from jobs.attempt where job_id = %s order by claims
        """,
        [id],
    ).fetchall()


def lapse(conn: Connection[Any], *ids: UUID, ago: dt.timedelta = dt.timedelta(seconds=1)) -> None:
    """Let the leases of running jobs have ended some time ago, as time would."""
    changed = conn.execute(
        """
        update jobs.job
        set lease_expires_at = now() - %(ago)s, rescue_at = now() - %(ago)s
        where id = any(%(ids)s) and state = 'running'
        """,
        {"ago": ago, "ids": list(ids)},
    ).rowcount
    assert changed == len(set(ids))


def make_due(conn: Connection[Any], *ids: UUID) -> None:
    """Let the due time of ready jobs have come a moment ago."""
    changed = conn.execute(
        """
        update jobs.job set available_at = now() - interval '1 ms'
        where id = any(%s) and state = 'ready'
        """,
        [list(ids)],
    ).rowcount
    assert changed == len(set(ids))


def remaining(conn: Connection[Any], id: UUID) -> dt.timedelta:
    """How long the lease of a running job still lasts."""
    row = conn.execute(
        "select lease_expires_at - clock_timestamp() from jobs.job where id = %s", [id]
    ).fetchone()
    assert row is not None
    left: dt.timedelta = row[0]
    return left


def lockable(conn: Connection[Any], ids: Iterable[UUID]) -> set[UUID]:
    """Those of the jobs that this other session can lock at once, in the strongest mode."""
    with conn.transaction(force_rollback=True):
        rows = conn.execute(
            "select id from jobs.job where id = any(%s) for update skip locked", [list(ids)]
        ).fetchall()
    return {row[0] for row in rows}


def deadlocks(conn: Connection[Any]) -> int:
    """Deadlocks that the server has resolved in this database."""
    # Sessions report their statistics now and then, and at their end.
    conn.execute("select pg_stat_force_next_flush()")
    row = conn.execute(
        "select deadlocks from pg_stat_database where datname = current_database()"
    ).fetchone()
    assert row is not None
    count: int = row[0]
    return count


def everything(conn: Connection[Any]) -> dict[str, list[str]]:
    """Every row of the tables that our statements write, as text: equal means nothing happened."""
    content = {}
    for table in ("job", "settled", "attempt", "counter"):
        query = sql.SQL("select t::text from jobs.{} as t order by 1")
        rows = conn.execute(query.format(sql.Identifier(table))).fetchall()
        content[table] = [row[0] for row in rows]
    return content
