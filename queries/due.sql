-- name: ReadDueAges :many
-- purpose: how long the oldest due job of each queue and priority has waited, so that starving
--     priorities are seen.
-- callers: jobs.inspect (due_ages)
-- tx: any
-- locks: none
-- index: job_ready_idx
-- fence: none, it reads
-- clock: statement_timestamp(), as the listings
-- rows: one a queue and priority in which a job is due, in order of both
-- cost: one probe a queue and priority that has a ready job, whatever their number
-- nullable: -queue, -priority
with /* jobs:read_due_ages */ recursive line as (
    (
        select
            j.queue,
            j.priority,
            j.available_at
        from jobs.job as j
        where j.state = 'ready'
        order by j.queue, j.priority, j.available_at, j.id
        limit 1
    )
    union all
    select
        following.queue,
        following.priority,
        following.available_at
    from line as l
    cross join lateral (
        select
            j.queue,
            j.priority,
            j.available_at
        from jobs.job as j
        where j.state = 'ready' and (j.queue, j.priority) > (l.queue, l.priority)
        order by j.queue, j.priority, j.available_at, j.id
        limit 1
    ) as following
)

select
    l.queue::text as queue,
    l.priority::smallint as priority,
    extract(
        epoch from pg_catalog.statement_timestamp() - l.available_at
    )::double precision as oldest_seconds
from line as l
where l.available_at <= pg_catalog.statement_timestamp()
order by l.queue, l.priority;
