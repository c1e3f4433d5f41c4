create function jobs.age(a bigint) returns bigint language sql
begin atomic
    select a;
end;
create type jobs.mood as enum ('calm');
select age(1), jobs.age(2), other.age(3), pg_catalog.now();
select 'calm'::mood, 'calm'::jobs.mood, 'calm'::other.mood, 1::bigint;
