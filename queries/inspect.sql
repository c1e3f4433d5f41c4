-- name: GetJob :one
-- purpose: one job, live or finished, with its payload.
-- callers: jobs.inspect (get_job)
-- tx: any
-- locks: none
-- index: job_pkey, settled_pkey
-- fence: none, it reads
-- clock: statement_timestamp() to tell ready from delayed, so that a job enqueued earlier in the
--     same transaction reads as ready
-- rows: the job, or nothing. Live and finished rows are read under one snapshot, so a job that is
--     just being moved is seen exactly once.
-- cost: two unique probes
-- nullable: worker, available_at, claimed_at, lease_expires_at, cancel_requested_at,
--     cancel_reason, progress, progress_message, settled_at, stop_reason, last_error,
--     idempotency_key, concurrency_key, traceparent, enqueued_by, result
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
    both_tables.cancel_requested_at,
    both_tables.cancel_reason,
    both_tables.progress,
    both_tables.progress_message,
    both_tables.created_at,
    both_tables.settled_at,
    both_tables.stop_reason,
    both_tables.last_error,
    both_tables.idempotency_scope,
    both_tables.idempotency_key,
    both_tables.concurrency_key,
    both_tables.traceparent,
    both_tables.enqueued_by,
    both_tables.input,
    both_tables.result
from (
    select
        j.id,
        j.run_id,
        j.queue,
        j.name,
        j.tenant,
        shown.state,
        j.priority,
        j.attempt,
        j.max_attempts,
        j.claims,
        j.worker,
        j.available_at,
        j.claimed_at,
        j.lease_expires_at,
        j.cancel_requested_at,
        j.cancel_reason,
        j.progress,
        j.progress_message,
        j.created_at,
        null::timestamptz as settled_at,
        null::text as stop_reason,
        j.last_error,
        j.idempotency_scope,
        j.idempotency_key,
        j.concurrency_key,
        j.traceparent,
        j.enqueued_by,
        j.input::text as input,
        null::text as result
    from jobs.job as j
    cross join
        lateral (
            select
                case
                    when j.state <> 'ready' then j.state
                    when j.available_at <= pg_catalog.statement_timestamp() then 'ready'
                    else 'delayed'
                end as state
        ) as shown
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
        s.cancel_requested_at,
        s.cancel_reason,
        s.progress,
        s.progress_message,
        s.created_at,
        s.settled_at,
        s.stop_reason,
        s.last_error,
        s.idempotency_scope,
        s.idempotency_key,
        s.concurrency_key,
        s.traceparent,
        s.enqueued_by,
        s.input::text,
        s.result::text
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

-- name: ReadQueueStats :many
-- purpose: how many jobs of each queue are in each state, and how long the oldest due one has
--     waited.
-- callers: jobs.inspect (queue_stats)
-- tx: any
-- locks: none
-- index: settled_unsuccessful_idx for the dead ones; live rows are read once
-- fence: none, it reads
-- clock: statement_timestamp(), as the listings
-- rows: one a queue that has a live or a dead job, in order of the queue name. Each live job is in
--     exactly one of ready, delayed, running, suspended, blocked, other (a state added later).
-- cost: one pass over the live rows and over the index of dead letters. Never reads completed rows.
-- nullable: oldest_ready_seconds, -queue
with /* jobs:read_queue_stats */ live as (
    select
        j.queue,
        j.available_at,
        case
            when j.state <> 'ready' then j.state
            when j.available_at <= pg_catalog.statement_timestamp() then 'ready'
            else 'delayed'
        end as state
    from jobs.job as j
),

counted as (
    select
        l.queue,
        pg_catalog.count(*) filter (where l.state = 'ready') as ready,
        pg_catalog.count(*) filter (where l.state = 'delayed') as delayed,
        pg_catalog.count(*) filter (where l.state = 'running') as running,
        pg_catalog.count(*) filter (where l.state = 'suspended') as suspended,
        pg_catalog.count(*) filter (where l.state = 'blocked') as blocked,
        pg_catalog.count(*) filter (
            where l.state not in ('ready', 'delayed', 'running', 'suspended', 'blocked')
        ) as other,
        pg_catalog.min(l.available_at) filter (where l.state = 'ready') as oldest_ready_at
    from live as l
    group by l.queue
),

ended as (
    select
        s.queue,
        pg_catalog.count(*) as dead
    from jobs.settled as s
    where s.state = 'dead'
    group by s.queue
)

select
    coalesce(c.queue, e.queue)::text as queue,
    coalesce(c.ready, 0)::bigint as ready,
    coalesce(c.delayed, 0)::bigint as delayed,
    coalesce(c.running, 0)::bigint as running,
    coalesce(c.suspended, 0)::bigint as suspended,
    coalesce(c.blocked, 0)::bigint as blocked,
    coalesce(c.other, 0)::bigint as other,
    coalesce(e.dead, 0)::bigint as dead,
    extract(
        epoch from pg_catalog.statement_timestamp() - c.oldest_ready_at
    )::float8 as oldest_ready_seconds
from counted as c
full outer join ended as e on c.queue = e.queue
order by coalesce(c.queue, e.queue);

-- name: CountOutcomes :many
-- purpose: how many jobs of each name ended how, in the last minutes.
-- callers: jobs.inspect (outcome_counts)
-- tx: any
-- locks: none
-- index: counter_bucket_idx
-- fence: none, it reads
-- clock: statement_timestamp()
-- rows: one a job name and outcome that occurred, in order of both. What is older than two days is
--     kept by the hour, what is older than sixty by the day: such a sum counts if it began since.
-- cost: one index range a tier, some rows a minute and job name
select /* jobs:count_outcomes */
    c.name,
    c.outcome,
    pg_catalog.sum(c.amount)::bigint as amount
from jobs.counter as c
where
    c.tier in (0, 1, 2, 3)
    and c.bucket >= pg_catalog.date_trunc(
        'minute', pg_catalog.statement_timestamp() - @since::interval
    )
group by c.name, c.outcome
order by c.name, c.outcome;
