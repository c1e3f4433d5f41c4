-- name: ReadThings :many
with /* jobs:read_things */ due as (
    select j.id from job as j
),

late as (
    select d.id from due as d
    union all
    select t.id from public.thing as t
)

select l.id
from late as l
where l.id in (select s.id from settled as s);

-- name: ReadTwice :many
select /* jobs:read_twice */ d.id from due as d;

-- name: ReadBefore :many
with /* jobs:read_before */ late as (
    select d.id from due as d
),

due as (
    select j.id from jobs.job as j
)

select d.id from due as d;

-- name: DropInto :exec
with /* jobs:drop_into */ job as (
    select j.id from jobs.job as j
)

delete from job
where job.id in (select j.id from job as j);
