"""The catalog read from DDL files follows what later files change."""

from __future__ import annotations

from tests.lint.catalog import catalog_of, installed

FIRST = """
create table jobs.a (
    id bigint primary key,
    name text unique,
    kind text,
    constraint a_kind_key unique (kind),
    constraint a_range_excl exclude using gist (range with &&)
);
create table jobs.b (id bigint, unique (id, kind), constraint b_pkey primary key (id));
create table jobs.c (id bigint);
create index a_name_idx on jobs.a (name);
create index a_old_idx on jobs.a (name);
create type jobs.mood as enum ('calm');
create type jobs.pair as (a bigint, b bigint);
create domain jobs.positive as bigint;
create function jobs.f() returns bigint language sql begin atomic select 1; end;
comment on table jobs.a is 'A';
comment on column jobs.b.id is 'B';
"""
SECOND = """
alter table jobs.a add column more text, drop constraint a_kind_key;
alter table jobs.b add constraint b_more_key unique (more);
alter index jobs.a_old_idx rename to a_new_idx;
drop index jobs.a_name_idx;
drop table jobs.c;
"""


def test_first_file() -> None:
    made = catalog_of([FIRST])
    assert made.tables == {"a": {"id", "name", "kind"}, "b": {"id"}, "c": {"id"}}
    assert made.indexes == {
        "a_pkey",
        "a_name_key",
        "a_kind_key",
        "a_range_excl",
        "b_pkey",
        "b_id_kind_key",
        "a_name_idx",
        "a_old_idx",
    }
    assert made.types == {"mood", "pair", "positive"}
    assert made.functions == {"f"}
    assert made.commented == {"a"}


def test_second_file() -> None:
    before, after = catalog_of([FIRST]), catalog_of([FIRST, SECOND])
    assert before.indexes - after.indexes == {"a_kind_key", "a_old_idx", "a_name_idx"}
    assert after.indexes - before.indexes == {"b_more_key", "a_new_idx"}
    assert after.tables == {"a": {"id", "name", "kind", "more"}, "b": {"id"}}


def test_our_files() -> None:
    assert {"id", "claims", "input"} < installed().tables["job"]
    assert {"job_pkey", "job_ready_idx"} < installed().indexes
