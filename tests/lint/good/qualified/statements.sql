-- name: ReadThings :many
with recursive /* jobs:read_things */ due as (
    select j.id from jobs.job as j for no key update of j skip locked
),

tree as (
    select d.id from due as d
    union all
    select t.id from tree as t inner join late as l on t.id = l.id
),

late as (
    select c.oid as id from pg_catalog.pg_class as c
)

update jobs.job as j
set id = j.id
from tree as t
where j.id = t.id and j.queue = sqlc.narg('queue')::text
returning j.id, now(), pg_catalog.now(), 'jobs.job'::regclass;
