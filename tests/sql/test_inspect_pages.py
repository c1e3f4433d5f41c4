"""Walking through the listing: every job once, both ways, whatever happens meanwhile (O-43)."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator
from typing import Any
from uuid import UUID

import psycopg
import pytest
from psycopg import Connection

from jobs.errors import PageInvalid
from jobs.ids import uuid7
from jobs.inspect import MAX_PAGE_SIZE, Page, list_jobs
from tests.sql.calls import claim, made, running, seed, settle
from tests.support.stepped import Session

pytestmark = pytest.mark.majors

Conn = Connection[Any]
Walk = Callable[..., Iterator[Page]]

PAGE_SIZE = 7
FILTERS: list[dict[str, str]] = [
    {},
    *(
        {"state": state}
        for state in (
            *("ready", "delayed", "running", "suspended", "blocked"),
            *("completed", "failed", "dead", "cancelled"),
        )
    ),
    {"queue": "q1"},
    {"name": "n1"},
    {"tenant": "t1"},
    {"tenant": ""},
    {"queue": "q1", "state": "dead"},
    {"queue": "q2", "name": "n0", "tenant": "t1"},
    {"queue": "nowhere"},
]


def pages(conn: Conn, cursor: UUID | None = None, **options: Any) -> Iterator[Page]:
    """All pages from a cursor on. Fails where the walk would not end."""
    seen = set()
    while True:
        page = list_jobs(conn, cursor=cursor, page_size=PAGE_SIZE, **options)
        assert len(page.jobs) <= PAGE_SIZE
        yield page
        if page.next_cursor is None:
            return
        assert len(page.jobs) == PAGE_SIZE, "only the last page may be short"
        assert page.next_cursor == page.jobs[-1].id
        assert page.next_cursor not in seen, "the walk goes round in circles"
        cursor = page.next_cursor
        seen.add(cursor)


def ids(conn: Conn, cursor: UUID | None = None, **options: Any) -> list[UUID]:
    return [job.id for page in pages(conn, cursor, **options) for job in page.jobs]


@pytest.fixture(scope="module")
def many(module_database: str) -> Iterator[Conn]:
    """1,000 jobs of one transaction in all states, all created at one instant."""
    with psycopg.connect(module_database, autocommit=True) as conn:
        with conn.transaction():
            seed(
                conn,
                1000,
                created_at="now()",
                available_at="now() + case when i % 3 = 0 then interval '1 day' else '0 s' end",
                queue="'q' || i % 4",
                name="'n' || i % 3",
                tenant="case i % 5 when 0 then '' else 't' || i % 5 end",
                state="(array['ready', 'suspended', 'blocked', 'ready'])[1 + i / 60 % 4]",
            )
            conn.execute(
                "update jobs.job set state = 'running', worker = 'w', lease_expires_at = now(), "
                "rescue_at = now() where id in (select id from jobs.job order by id limit 200)"
            )
            conn.execute(
                """
                with moved as (
                    delete from jobs.job
                    where id in (select id from jobs.job order by run_id limit 450)
                    returning *
                )
                insert into jobs.settled (
                    id, claims, revoked, attempt, state, run_id, created_at, max_attempts,
                    priority, dead_letter, queue, name, tenant, idempotency_scope, input
                )
                select
                    id, claims, revoked, attempt,
                    (array['completed', 'failed', 'dead', 'cancelled'])[
                        1 + row_number() over () % 4
                    ],
                    run_id, created_at, max_attempts, priority, dead_letter, queue, name, tenant,
                    idempotency_scope, input
                from moved
                """
            )
        yield conn


def expected(conn: Conn, **filters: str) -> list[UUID]:
    """The ids that a filter must find, in ascending order, told without the statement at test."""
    rows = conn.execute(
        """
        select id, queue, name, tenant, case
            when state = 'ready' and available_at > clock_timestamp() then 'delayed' else state
        end
        from jobs.job
        union all
        select id, queue, name, tenant, state from jobs.settled
        """
    ).fetchall()
    names = ("queue", "name", "tenant", "state")
    return sorted(
        row[0]
        for row in rows
        if all(dict(zip(names, row[1:], strict=True))[k] == v for k, v in filters.items())
    )


class TestStill:
    def test_the_jobs_are_as_the_case_wants_them(self, many: Conn) -> None:
        row = many.execute(
            "select count(*), count(distinct created_at) from (select created_at from jobs.job "
            "union all select created_at from jobs.settled) as x"
        ).fetchone()
        assert row == (1000, 1)
        for filters in FILTERS[:-1]:
            assert len(expected(many, **filters)) > 0, filters

    @pytest.mark.parametrize("newest_first", [True, False])
    @pytest.mark.parametrize("filters", FILTERS, ids=repr)
    def test_forward_and_back(
        self, many: Conn, filters: dict[str, str], newest_first: bool
    ) -> None:
        wanted = expected(many, **filters)
        if newest_first:
            wanted.reverse()
        walked = ids(many, newest_first=newest_first, **filters)
        assert walked == wanted
        if walked:
            # From the last one back: everything before it, the other way round.
            back = ids(many, walked[-1], newest_first=not newest_first, **filters)
            assert back == wanted[-2::-1]
            middle = walked[len(walked) // 2]
            back = ids(many, middle, newest_first=not newest_first, **filters)
            assert back == wanted[: wanted.index(middle)][::-1]

    @pytest.mark.parametrize("page_size", [1, 499, 500, 999, 1000])
    def test_page_sizes_around_the_end(self, many: Conn, page_size: int) -> None:
        walked: list[UUID] = []
        cursor, count = None, 0
        while cursor is not None or not count:
            page = list_jobs(many, cursor=cursor, page_size=page_size)
            walked += [job.id for job in page.jobs]
            cursor, count = page.next_cursor, count + 1
            assert page.jobs, "no empty page at the end"
        assert walked == expected(many)[::-1]
        assert count == -(-1000 // page_size)

    def test_pages_do_not_read_payloads(self, many: Conn) -> None:
        assert {job.input for job in list_jobs(many, page_size=1000).jobs} == {None}


class TestMeanwhile:
    """Another session inserts, settles and deletes between any two pages."""

    @pytest.mark.parametrize("newest_first", [True, False])
    @pytest.mark.parametrize("filters", [{}, {"queue": "q"}, {"tenant": ""}], ids=repr)
    def test_jobs_that_existed_throughout_are_seen_once(
        self, conn: Conn, connect: Any, filters: dict[str, str], newest_first: bool
    ) -> None:
        other = connect()
        seed(conn, 200)
        for row in claim(conn, 60):
            settle(conn, (row.id, row.claims))
        before = set(expected(conn))
        removed: set[UUID] = set()
        walked: list[UUID] = []
        for page in pages(conn, newest_first=newest_first, **filters):
            walked += [job.id for job in page.jobs]
            seed(other, 2)
            for row in claim(other, 2):
                settle(other, (row.id, row.claims))
            # Anywhere, and the very row that the next page continues from.
            victims = other.execute(
                "delete from jobs.settled where id in (select id from jobs.settled "
                "order by md5(id::text) limit 1) or id = %s returning id",
                [page.next_cursor],
            ).fetchall()
            removed |= {row[0] for row in victims}
        assert len(walked) == len(set(walked))
        assert before - removed <= set(walked)
        assert before & removed, "some of those there at the start were removed"

    @pytest.mark.parametrize("newest_first", [True, False])
    def test_a_job_that_moves_ahead_of_the_walk_or_behind_it(
        self, conn: Conn, newest_first: bool
    ) -> None:
        """Settled between two pages: neither missed in the new table nor seen again there."""
        seed(conn, 60)
        held = {row.id: row.claims for row in claim(conn, 60)}
        walked: list[UUID] = []
        for page in pages(conn, newest_first=newest_first):
            walked += [job.id for job in page.jobs]
            behind = [id for id in walked if id in held][:2]
            ahead = [id for id in held if id not in walked][-2:]
            for id in {*behind, *ahead}:
                settle(conn, (id, held.pop(id)))
        assert sorted(walked) == expected(conn)
        assert len(walked) == 60

    def test_a_concurrent_writer(self, conn: Conn, session: Callable[..., Session]) -> None:
        """The same unstepped: whatever the interleaving, once and only once."""
        seed(conn, 150)
        writer = session("writer")
        before = set(expected(conn))
        stop: list[bool] = []

        def churn(c: Conn) -> int:
            rounds = 0
            while not stop:
                made(c)
                for row in claim(c, 3):
                    settle(c, (row.id, row.claims))
                rounds += 1
            return rounds

        writing = writer.start(churn)
        try:
            walks = [ids(conn, newest_first=newest_first) for newest_first in (True, False)]
        finally:
            stop.append(True)
        assert writing.result(30) > 0
        for walked in walks:
            assert len(walked) == len(set(walked))
            assert before <= set(walked)

    def test_a_cursor_whose_job_is_gone(self, conn: Conn) -> None:
        seed(conn, 20)
        first = list_jobs(conn, page_size=5)
        conn.execute("delete from jobs.job where id = %s", [first.next_cursor])
        second = list_jobs(conn, page_size=100, cursor=first.next_cursor)
        assert len(second.jobs) == 15


class TestEdges:
    def test_the_first_and_the_last_id_there_are(self, conn: Conn) -> None:
        edges = [UUID(int=0), UUID(int=2**128 - 1)]
        between = [made(conn) for _ in range(3)]
        for id in edges:
            made(conn, id=id)
        wanted = sorted([*edges, *between])
        for size in (1, 2, 5):
            for newest_first in (True, False):
                walked, cursor = [], None
                while True:
                    page = list_jobs(conn, page_size=size, cursor=cursor, newest_first=newest_first)
                    walked += [job.id for job in page.jobs]
                    cursor = page.next_cursor
                    if cursor is None:
                        break
                assert walked == (wanted[::-1] if newest_first else wanted)
        assert list_jobs(conn, cursor=edges[0]).jobs == []
        assert list_jobs(conn, cursor=edges[1], newest_first=False).jobs == []

    def test_newest_first_by_default_and_a_hundred(self, conn: Conn) -> None:
        made_ids = [made(conn, id=uuid7()) for _ in range(101)]
        page = list_jobs(conn)
        assert [job.id for job in page.jobs] == made_ids[:0:-1]
        created = [job.created_at for job in page.jobs]
        assert created == sorted(created, reverse=True)

    def test_an_empty_database(self, conn: Conn) -> None:
        assert list_jobs(conn) == Page([], None)

    def test_a_state_is_the_derived_one(self, conn: Conn) -> None:
        due, delayed = made(conn), made(conn, delay=dt.timedelta(hours=1))
        held = running(conn)
        for state, id in (("ready", due), ("delayed", delayed), ("running", held[0])):
            assert [job.id for job in list_jobs(conn, state=state).jobs] == [id]  # type: ignore[arg-type]

    @pytest.mark.parametrize(
        "options",
        [
            {"page_size": 0},
            {"page_size": -1},
            {"page_size": MAX_PAGE_SIZE + 1},
            {"page_size": True},
            {"page_size": 7.0},
            {"page_size": "7"},
            {"page_size": None},
            {"state": "Ready"},
            {"state": "parked"},
            {"state": ""},
            {"cursor": "01a22e4a-6717-7dac-a4a0-ba6cf28c5c7c"},
            {"cursor": 7},
            {"queue": "a\x00b"},
            {"name": "\ud800"},
            {"tenant": 5},
        ],
        ids=repr,
    )
    def test_a_page_that_cannot_be_is_refused_before_anything_is_read(
        self, conn: Conn, options: dict[str, Any]
    ) -> None:
        conn.close()
        with pytest.raises(PageInvalid, match=next(iter(options))) as refused:
            list_jobs(conn, **options)
        assert isinstance(refused.value, ValueError)

    def test_the_bounds_are_allowed(self, conn: Conn) -> None:
        made(conn)
        for page_size in (1, MAX_PAGE_SIZE):
            assert len(list_jobs(conn, page_size=page_size).jobs) == 1
