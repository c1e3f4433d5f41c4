-- name: GetJob :one
-- purpose: one job, live or finished, with its payload.
-- callers: jobs.inspect (get_job)
-- tx: any
-- locks: none
-- index: job_pkey, settled_pkey
-- fence: none, it reads
-- clock: now() to tell ready from delayed
-- rows: the job, or nothing. Live and finished rows are read under one snapshot, so a job that is just
--     being moved is seen exactly once.
-- cost: two unique probes
-- nullable: worker, available_at, claimed_at, lease_expires_at, settled_at, stop_reason, last_error,
--     idempotency_key, traceparent, enqueued_by
select /* jobs:get_job */
    both_tables.id,
    both_tables.run_id,
    both_tables.queue,
    both_tables.name,
    both_tables.tenant,
    both_tables.state,
    both_tables.priority,
    both_tables.attempt,
    both_tables.max_attempts,
    both_tables.claims,
    both_tables.worker,
    both_tables.available_at,
    both_tables.claimed_at,
    both_tables.lease_expires_at,
    both_tables.created_at,
    both_tables.settled_at,
    both_tables.stop_reason,
    both_tables.last_error,
    both_tables.idempotency_scope,
    both_tables.idempotency_key,
    both_tables.traceparent,
    both_tables.enqueued_by,
    both_tables.input
from (
    select
        j.id,
        j.run_id,
        j.queue,
        j.name,
        j.tenant,
        (
            case when j.state = 'ready' and j.available_at > now() then 'delayed' else j.state end
        )::text as state,
        j.priority,
        j.attempt,
        j.max_attempts,
        j.claims,
        j.worker,
        j.available_at,
        j.claimed_at,
        j.lease_expires_at,
        j.created_at,
        null::timestamptz as settled_at,
        null::text as stop_reason,
        j.last_error,
        j.idempotency_scope,
        j.idempotency_key,
        j.traceparent,
        j.enqueued_by,
        j.input::text as input
    from jobs.job as j
    where j.id = @id::uuid
    union all
    select
        s.id,
        s.run_id,
        s.queue,
        s.name,
        s.tenant,
        s.state,
        s.priority,
        s.attempt,
        s.max_attempts,
        s.claims,
        s.worker,
        null::timestamptz,
        s.claimed_at,
        null::timestamptz,
        s.created_at,
        s.settled_at,
        s.stop_reason,
        s.last_error,
        s.idempotency_scope,
        s.idempotency_key,
        s.traceparent,
        s.enqueued_by,
        s.input::text
    from jobs.settled as s
    where s.id = @id::uuid
) as both_tables
limit 1;

-- name: ListAttempts :many
-- purpose: the failed attempts of one job, oldest first.
-- callers: jobs.inspect (list_attempts)
-- tx: any
-- locks: none
-- index: attempt_pkey
-- fence: none, it reads
-- rows: one for each attempt that failed, in order of the fencing token
-- cost: one index range
select /* jobs:list_attempts */
    a.job_id,
    a.claims,
    a.attempt,
    a.failed_at,
    a.worker,
    a.error_type,
    a.error_message,
    a.traceback
from jobs.attempt as a
where a.job_id = @job_id::uuid
order by a.claims;

-- name: ListJobsNewest :many
-- purpose: a page of live and finished jobs, newest first, without their payloads.
-- callers: jobs.inspect (list_jobs)
-- tx: any
-- locks: none
-- index: job_pkey, settled_pkey; settled_unsuccessful_idx may serve a filter by queue and state
-- fence: none, it reads
-- clock: now() to tell ready from delayed
-- rows: at most @page_size in order of id desc, after the last row of the page before when @cursor is given. Ids are unique and
--     never change, also while a job moves between the tables, so a walk sees each job that existed
--     throughout exactly once and ends. Ids made by the library are in order of creation.
-- cost: two index walks that stop at the page; a rare filter walks further
-- nullable: worker, available_at, claimed_at, lease_expires_at, settled_at, stop_reason, last_error,
--     idempotency_key, traceparent, enqueued_by
select /* jobs:list_jobs_newest */
    both_tables.id,
    both_tables.run_id,
    both_tables.queue,
    both_tables.name,
    both_tables.tenant,
    both_tables.state,
    both_tables.priority,
    both_tables.attempt,
    both_tables.max_attempts,
    both_tables.claims,
    both_tables.worker,
    both_tables.available_at,
    both_tables.claimed_at,
    both_tables.lease_expires_at,
    both_tables.created_at,
    both_tables.settled_at,
    both_tables.stop_reason,
    both_tables.last_error,
    both_tables.idempotency_scope,
    both_tables.idempotency_key,
    both_tables.traceparent,
    both_tables.enqueued_by
from (
    (
        select
            j.id,
            j.run_id,
            j.queue,
            j.name,
            j.tenant,
            (
            case when j.state = 'ready' and j.available_at > now() then 'delayed' else j.state end
        )::text as state,
            j.priority,
            j.attempt,
            j.max_attempts,
            j.claims,
            j.worker,
            j.available_at,
            j.claimed_at,
            j.lease_expires_at,
            j.created_at,
            null::timestamptz as settled_at,
            null::text as stop_reason,
            j.last_error,
            j.idempotency_scope,
            j.idempotency_key,
            j.traceparent,
            j.enqueued_by
        from jobs.job as j
        where
            (sqlc.narg('cursor')::uuid is null or j.id < sqlc.narg('cursor')::uuid)
            and (
                sqlc.narg('state')::text is null
                or case
                    when j.state = 'ready' and j.available_at > now() then 'delayed' else j.state
                end = sqlc.narg('state')::text
            )
            and (sqlc.narg('queue')::text is null or j.queue = sqlc.narg('queue')::text)
            and (sqlc.narg('name')::text is null or j.name = sqlc.narg('name')::text)
            and (sqlc.narg('tenant')::text is null or j.tenant = sqlc.narg('tenant')::text)
        order by j.id desc
        limit @page_size::integer
    )
    union all
    (
        select
            s.id,
            s.run_id,
            s.queue,
            s.name,
            s.tenant,
            s.state,
            s.priority,
            s.attempt,
            s.max_attempts,
            s.claims,
            s.worker,
            null::timestamptz,
            s.claimed_at,
            null::timestamptz,
            s.created_at,
            s.settled_at,
            s.stop_reason,
            s.last_error,
            s.idempotency_scope,
            s.idempotency_key,
            s.traceparent,
            s.enqueued_by
        from jobs.settled as s
        where
            (sqlc.narg('cursor')::uuid is null or s.id < sqlc.narg('cursor')::uuid)
            and (sqlc.narg('state')::text is null or s.state = sqlc.narg('state')::text)
            and (sqlc.narg('queue')::text is null or s.queue = sqlc.narg('queue')::text)
            and (sqlc.narg('name')::text is null or s.name = sqlc.narg('name')::text)
            and (sqlc.narg('tenant')::text is null or s.tenant = sqlc.narg('tenant')::text)
        order by s.id desc
        limit @page_size::integer
    )
) as both_tables
order by both_tables.id desc
limit @page_size::integer;

-- name: ListJobsOldest :many
-- purpose: a page of live and finished jobs, oldest first, without their payloads.
-- callers: jobs.inspect (list_jobs)
-- tx: any
-- locks: none
-- index: job_pkey, settled_pkey; settled_unsuccessful_idx may serve a filter by queue and state
-- fence: none, it reads
-- clock: now() to tell ready from delayed
-- rows: at most @page_size in order of id, after the last row of the page before when @cursor is given. Ids are unique and
--     never change, also while a job moves between the tables, so a walk sees each job that existed
--     throughout exactly once and ends. Ids made by the library are in order of creation.
-- cost: two index walks that stop at the page; a rare filter walks further
-- nullable: worker, available_at, claimed_at, lease_expires_at, settled_at, stop_reason, last_error,
--     idempotency_key, traceparent, enqueued_by
select /* jobs:list_jobs_oldest */
    both_tables.id,
    both_tables.run_id,
    both_tables.queue,
    both_tables.name,
    both_tables.tenant,
    both_tables.state,
    both_tables.priority,
    both_tables.attempt,
    both_tables.max_attempts,
    both_tables.claims,
    both_tables.worker,
    both_tables.available_at,
    both_tables.claimed_at,
    both_tables.lease_expires_at,
    both_tables.created_at,
    both_tables.settled_at,
    both_tables.stop_reason,
    both_tables.last_error,
    both_tables.idempotency_scope,
    both_tables.idempotency_key,
    both_tables.traceparent,
    both_tables.enqueued_by
from (
    (
        select
            j.id,
            j.run_id,
            j.queue,
            j.name,
            j.tenant,
            (
            case when j.state = 'ready' and j.available_at > now() then 'delayed' else j.state end
        )::text as state,
            j.priority,
            j.attempt,
            j.max_attempts,
            j.claims,
            j.worker,
            j.available_at,
            j.claimed_at,
            j.lease_expires_at,
            j.created_at,
            null::timestamptz as settled_at,
            null::text as stop_reason,
            j.last_error,
            j.idempotency_scope,
            j.idempotency_key,
            j.traceparent,
            j.enqueued_by
        from jobs.job as j
        where
            (sqlc.narg('cursor')::uuid is null or j.id > sqlc.narg('cursor')::uuid)
            and (
                sqlc.narg('state')::text is null
                or case
                    when j.state = 'ready' and j.available_at > now() then 'delayed' else j.state
                end = sqlc.narg('state')::text
            )
            and (sqlc.narg('queue')::text is null or j.queue = sqlc.narg('queue')::text)
            and (sqlc.narg('name')::text is null or j.name = sqlc.narg('name')::text)
            and (sqlc.narg('tenant')::text is null or j.tenant = sqlc.narg('tenant')::text)
        order by j.id
        limit @page_size::integer
    )
    union all
    (
        select
            s.id,
            s.run_id,
            s.queue,
            s.name,
            s.tenant,
            s.state,
            s.priority,
            s.attempt,
            s.max_attempts,
            s.claims,
            s.worker,
            null::timestamptz,
            s.claimed_at,
            null::timestamptz,
            s.created_at,
            s.settled_at,
            s.stop_reason,
            s.last_error,
            s.idempotency_scope,
            s.idempotency_key,
            s.traceparent,
            s.enqueued_by
        from jobs.settled as s
        where
            (sqlc.narg('cursor')::uuid is null or s.id > sqlc.narg('cursor')::uuid)
            and (sqlc.narg('state')::text is null or s.state = sqlc.narg('state')::text)
            and (sqlc.narg('queue')::text is null or s.queue = sqlc.narg('queue')::text)
            and (sqlc.narg('name')::text is null or s.name = sqlc.narg('name')::text)
            and (sqlc.narg('tenant')::text is null or s.tenant = sqlc.narg('tenant')::text)
        order by s.id
        limit @page_size::integer
    )
) as both_tables
order by both_tables.id
limit @page_size::integer;

-- name: QueueStats :many
-- purpose: how many jobs of each queue are in each state, and how long the oldest due one has waited.
-- callers: jobs.inspect (queue_stats)
-- tx: any
-- locks: none
-- index: settled_unsuccessful_idx for the dead ones; live rows are read once
-- fence: none, it reads
-- clock: now()
-- rows: one a queue that has a live or a dead job, in order of the queue name. Each live job is in
--     exactly one of ready, delayed, running, suspended, blocked.
-- cost: one pass over the live rows and over the index of dead letters. Never reads completed rows.
-- nullable: oldest_ready_seconds, -queue
with /* jobs:queue_stats */ live as (
    select
        j.queue,
        count(*) filter (where j.state = 'ready' and j.available_at <= now()) as ready,
        count(*) filter (where j.state = 'ready' and j.available_at > now()) as delayed,
        count(*) filter (where j.state = 'running') as running,
        count(*) filter (where j.state = 'suspended') as suspended,
        count(*) filter (where j.state = 'blocked') as blocked,
        min(j.available_at) filter (
            where j.state = 'ready' and j.available_at <= now()
        ) as oldest_ready_at
    from jobs.job as j
    group by j.queue
),

ended as (
    select
        s.queue,
        count(*) as dead
    from jobs.settled as s
    where s.state = 'dead'
    group by s.queue
)

select
    coalesce(l.queue, e.queue)::text as queue,
    coalesce(l.ready, 0)::bigint as ready,
    coalesce(l.delayed, 0)::bigint as delayed,
    coalesce(l.running, 0)::bigint as running,
    coalesce(l.suspended, 0)::bigint as suspended,
    coalesce(l.blocked, 0)::bigint as blocked,
    coalesce(e.dead, 0)::bigint as dead,
    extract(epoch from now() - l.oldest_ready_at)::float8 as oldest_ready_seconds
from live as l
full outer join ended as e on l.queue = e.queue
order by 1;

-- name: OutcomeCounts :many
-- purpose: how many jobs of each name ended how, in the last minutes.
-- callers: jobs.inspect (outcome_counts)
-- tx: any
-- locks: none
-- index: counter_bucket_idx
-- fence: none, it reads
-- clock: now()
-- rows: one a job name and outcome that occurred, in order of both
-- cost: one index range, some rows a minute and job name
select /* jobs:outcome_counts */
    c.name,
    c.outcome,
    sum(c.amount)::bigint as amount
from jobs.counter as c
where c.bucket >= date_trunc('minute', now() - @since::interval)
group by c.name, c.outcome
order by c.name, c.outcome;
