-- what: things
--     of all kinds
-- lock: none
-- time: constant
-- rollback: drop it

create table jobs.thing (
    id bigint generated always as identity,
    priority smallint not null,
    version integer not null,
    run_id uuid not null constraint thing_run_fkey references jobs.settled (id),
    constraint thing_pkey primary key (id),
    constraint thing_priority_check check (priority >= 0)
);
create index thing_priority_idx on jobs.thing (priority);
comment on table jobs.thing is 'A thing';
alter table jobs.thing add column if not exists amount bigint;
