-- a comment without marks
create table jobs.a (
    id bigint not null default 0,
    name text not null default '' /* two apostrophes are a string */
);
comment on table jobs.a is 'A table';
create function jobs.f() returns bigint language sql begin atomic
    select 1;
end;
