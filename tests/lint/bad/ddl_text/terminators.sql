;
create table jobs.a (
    id bigint not null
);;
create table jobs.b (
    id bigint not null
);
create function jobs.f() returns bigint language sql begin atomic
    select 1;
    select 2;
end;
create table jobs.c (
    id bigint not null
)
