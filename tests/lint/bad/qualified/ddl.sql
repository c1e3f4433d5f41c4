create table thing (
    id bigint not null references other (id)
);
create index thing_idx on thing (id);
create type mood as enum ('calm');
create domain positive as bigint;
create function f() returns bigint language sql as 'select 1';
create function jobs.g() returns bigint language sql as $$ select 1 $$;
drop index thing_idx;
comment on column thing.id is 'x';
comment on table thing is 'x';
comment on schema jobs is 'x';
comment on index jobs.thing_idx is 'x';
alter table thing add column more bigint;
create trigger t after insert on jobs.job for each row execute function f();
do $$ begin end $$;
