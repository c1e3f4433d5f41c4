"""Reasons to doubt a never-null: found where they are, and only there."""

from __future__ import annotations

import pytest

from codegen.sqlc_gen_python.nullability import doubts

TABLES = {
    ("s", "t"): {"id": None, "n": None, "note": "s.t.note may be null"},
    ("s", "u"): {"id": None, "t_id": None, "memo": "s.u.memo may be null"},
}


def whys(text: str, params: frozenset[int] = frozenset()) -> list[str | None]:
    """The doubts about each result column of a statement."""
    return [why for _, why in doubts(text, TABLES, params)]


@pytest.mark.parametrize(
    "expression",
    [
        "t.note",
        "t.note::text",
        "(t.note)::varchar(10)",
        "cast(t.note as text)",
        "note::text",
        "upper(t.note)",
        "t.note || 'x'",
        "coalesce(t.note, t.note)",
        "coalesce(t.note, null)::text",
        "greatest(t.note, upper(t.note))",
        "nullif(t.id, 1)::int",
        "null::text",
        "case when t.id = 1 then t.id end",
        "case when t.id = 1 then t.id else null end",
        "case when t.id = 1 then t.note else 'x' end::text",
        "case t.id when 1 then 'a' else t.note end",
        "(case when t.id = 1 then 'x' end)::text",
        "1 + case when t.id = 1 then 2 end",
        "min(t.id)::bigint",
        "sum(t.n) + 1",
        "array_agg(t.id)::bigint[]",
        "max(t.id) filter (where t.id > 1)",
        "(select u.id from s.u as u where u.t_id = t.id)",
        "(select u.id from s.u as u limit 1)::bigint",
        "(select max(u.id) from s.u as u)",
        "(select count(*) from s.u as u group by u.t_id)",
        "(select 1 where t.id > 3)",
        "current_setting('a', true)",
        "lag(t.id) over (order by t.id)",
        "t.n -> 'a'",
        "(t.n ->> 'a')::int",
        "t.id = any(array[1]) and t.note = 'x'",
        "(t.note = 'x')::boolean",
        "$2::text",
        "left(t.note, 10)",
    ],
)
def test_may_be_null(expression: str) -> None:
    text = f"select /* x */ t.id, {expression} as it from s.t as t where t.id = $1::bigint"  # noqa: S608
    assert whys(text, frozenset({2}))[0] is None
    assert whys(text, frozenset({2}))[1] is not None


@pytest.mark.parametrize(
    "expression",
    [
        "t.id",
        "t.id::text",
        "upper(t.id::text)",
        "coalesce(t.note, '')",
        "coalesce(t.note, t.id::text, null)::character varying",
        "coalesce(min(t.id), 0)::bigint",
        "count(*)",
        "count(t.note)",
        "t.note is null",
        "not (t.note is null)",
        "(t.note is not null)::boolean",
        "t.note is distinct from 'x'",
        "not t.note is null and t.id = 1",
        "exists(select u.memo from s.u as u)",
        "array(select u.memo from s.u as u)::text[]",
        "array[t.note]",
        "case when t.note = 'x' then 1 else 2 end",
        "case t.note when 'x' then 1 else 2 end",
        "(select count(*) from s.u as u)",
        "(select coalesce(max(u.id), 0) from s.u as u)",
        "(select 1)",
        "clock_timestamp()",
        "t.id::timestamp with time zone at time zone 'null'",
        "t.id::double precision",
        "row_number() over (partition by t.note)",
        "sum(t.n) over (order by t.id)",
        "lag(t.id, 1, 0) over (order by t.id)",
        "extract(epoch from now() - t.n)::float8",
        "'null'::text",
        "concat(t.note, 'x')",
        "$1::text",
        "least(t.note, 'x')",
        "left(t.id::text, 3)",
        "$tag$ null $tag$::text /* null */",
        '"null"(t.id)',
    ],
)
def test_is_never_null(expression: str) -> None:
    text = f"select /* x */ t.id, {expression} as it from s.t as t where t.id = $1::bigint"  # noqa: S608
    assert whys(text) == [None, None]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # Outer joins, and what is joined behind them.
        ("select t.id, u.id from s.t as t left join s.u as u on u.t_id = t.id", [False, True]),
        ("select t.id, u.id from s.t t right outer join s.u u on left(u.memo, 1) = 'x'",
         [True, False]),
        ("select t.id, u.id from s.t t full join s.u u using (id)", [True, True]),
        ("select t.id, u.id from s.t as t inner join s.u as u on true", [False, False]),
        ("select t.id, u.id from s.t as t, s.u as u", [False, False]),
        ("select a.id, b.id from s.t as a cross join lateral (select u.id from s.u as u) as b",
         [False, False]),
        ("select a.id, b.id from s.t as a left join lateral (select u.id from s.u as u) as b "
         "on true", [False, True]),
        # Through CTEs, subselects and column lists.
        ("with c as (select min(t.id)::int as low from s.t as t) select c.low from c", [True]),
        ("with c as materialized (select t.id from s.t as t), d as (select c.id from c) "
         "select d.id from d", [False]),
        ("with c (a, b) as (select t.id, t.note from s.t as t) select c.a, c.b::text from c",
         [False, True]),
        ("select x.a, x.b::text from (select t.id, t.note from s.t as t) as x (a, b)",
         [False, True]),
        ("select x.b from (select nullif(t.id, 1)::int as b from s.t as t) as x", [True]),
        ("with recursive r as (select 1 as n union all select r.n + 1 from r) select r.n from r",
         [False]),
        # Either branch of a union.
        ("select t.id from s.t as t union all select nullif(u.id, 1)::int from s.u as u", [True]),
        ("(select t.id from s.t as t) union (select u.t_id from s.u as u)", [False]),
        ("values (1, null), (2, 3)", [False, True]),
        # Returning.
        ("insert into s.t as t (id) values ($1::int) returning t.id, t.note::text", [False, True]),
        ("insert into s.t (id) select u.id from s.u as u returning id, note::text",
         [False, True]),
        ("update s.t as t set id = 1 from s.u as u where u.id = t.id returning t.id, u.memo::text",
         [False, True]),
        ("delete from s.t as t using s.u as u where u.id = t.id returning t.note::text, u.id",
         [True, False]),
        ("with c as (update s.t as t set id = 1 returning t.note, t.id) "
         "select c.note::text, c.id from c", [True, False]),
        # Aggregates with groups.
        ("select t.id, min(t.n) from s.t as t group by t.id", [False, False]),
        ("select t.id, min(t.note)::text from s.t as t group by t.id", [False, True]),
        ("select distinct on (t.id) t.id, t.note::text from s.t as t order by t.id",
         [False, True]),
        # Correlated names, and a name of an inner level that hides one outside.
        ("select (select t.note::text) from s.t as t", [True]),
        ("select (select count(*) from s.t as t) from s.t as t", [False]),
        # Functions as sources are taken as never null.
        ("select g.n from generate_series(1, 3) as g (n)", [False]),
        ("select x.id from (select unnest($1::int[]) as id) as x", [False]),
    ],
)  # fmt: skip
def test_where_a_column_comes_from(text: str, expected: list[bool]) -> None:
    assert [why is not None for why in whys(text)] == expected


@pytest.mark.parametrize(
    "text",
    ["", "listen x", "select", "with c as", "with c as (", "select from", "((((", "select 'open",
     "values", "insert into", "update s.t", "select case", "select x from (", "delete from s.t",
     "select coalesce() as x", "with recursive", "select (select) as x", "select a.", "select .",
     "select array[1 as x", "select 1::", "returning 1", "select x filter from t"],
)  # fmt: skip
def test_what_it_cannot_read_does_not_stop_it(text: str) -> None:
    doubts(text, TABLES, frozenset())
