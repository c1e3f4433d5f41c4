-- what: things
-- lock: none
-- time: constant
-- rollback: drop it

create table jobs.thing (
    id bigint not null
);
comment on table jobs.other is 'Another';
