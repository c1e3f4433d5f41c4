-- name: ListJobsNewest :many
-- purpose: a page of live and finished jobs, newest first, without their payloads.
-- callers: jobs.inspect (list_jobs)
-- tx: any
-- locks: none
-- index: job_pkey, settled_pkey
-- fence: none, it reads
-- clock: statement_timestamp() to tell ready from delayed, so that a job enqueued earlier in the
--     same transaction reads as ready
-- rows: at most @page_size, in order of id desc, those after @cursor when it is given. An id is
--     unique and never changes, also while its job moves from one table to the other, so a walk
--     sees each job that existed throughout exactly once, and ends. The job of the cursor itself
--     may be gone. Ids made by the library are in order of creation. An empty @tenant finds jobs
--     without a tenant.
-- cost: two index walks that start at the cursor and stop at the page. A filter by state leaves
--     out the table that cannot hold it. Another rare filter walks further; for unsuccessful
--     states there is ListUnsuccessfulNewest.
-- nullable: worker, available_at, claimed_at, lease_expires_at, cancel_requested_at,
--     cancel_reason, progress, progress_message, settled_at, stop_reason, last_error,
--     idempotency_key, concurrency_key, traceparent, enqueued_by
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
    both_tables.enqueued_by
from (
    (
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
            j.enqueued_by
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
        where
            j.id <= coalesce(
                sqlc.narg('cursor')::uuid, 'ffffffff-ffff-ffff-ffff-ffffffffffff'::uuid
            )
            and j.id is distinct from sqlc.narg('cursor')::uuid
            and coalesce(sqlc.narg('state')::text, 'ready') in (
                'ready', 'delayed', 'running', 'suspended', 'blocked'
            )
            and (sqlc.narg('state')::text is null or shown.state = sqlc.narg('state')::text)
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
            s.enqueued_by
        from jobs.settled as s
        where
            s.id <= coalesce(
                sqlc.narg('cursor')::uuid, 'ffffffff-ffff-ffff-ffff-ffffffffffff'::uuid
            )
            and s.id is distinct from sqlc.narg('cursor')::uuid
            and coalesce(sqlc.narg('state')::text, 'completed') in (
                'completed', 'failed', 'dead', 'cancelled'
            )
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
-- index: job_pkey, settled_pkey
-- fence: none, it reads
-- clock: statement_timestamp() to tell ready from delayed, so that a job enqueued earlier in the
--     same transaction reads as ready
-- rows: at most @page_size, in order of id, those after @cursor when it is given. An id is
--     unique and never changes, also while its job moves from one table to the other, so a walk
--     sees each job that existed throughout exactly once, and ends. The job of the cursor itself
--     may be gone. Ids made by the library are in order of creation. An empty @tenant finds jobs
--     without a tenant.
-- cost: two index walks that start at the cursor and stop at the page. A filter by state leaves
--     out the table that cannot hold it. Another rare filter walks further; for unsuccessful
--     states there is ListUnsuccessfulOldest.
-- nullable: worker, available_at, claimed_at, lease_expires_at, cancel_requested_at,
--     cancel_reason, progress, progress_message, settled_at, stop_reason, last_error,
--     idempotency_key, concurrency_key, traceparent, enqueued_by
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
    both_tables.enqueued_by
from (
    (
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
            j.enqueued_by
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
        where
            j.id >= coalesce(
                sqlc.narg('cursor')::uuid, '00000000-0000-0000-0000-000000000000'::uuid
            )
            and j.id is distinct from sqlc.narg('cursor')::uuid
            and coalesce(sqlc.narg('state')::text, 'ready') in (
                'ready', 'delayed', 'running', 'suspended', 'blocked'
            )
            and (sqlc.narg('state')::text is null or shown.state = sqlc.narg('state')::text)
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
            s.enqueued_by
        from jobs.settled as s
        where
            s.id >= coalesce(
                sqlc.narg('cursor')::uuid, '00000000-0000-0000-0000-000000000000'::uuid
            )
            and s.id is distinct from sqlc.narg('cursor')::uuid
            and coalesce(sqlc.narg('state')::text, 'completed') in (
                'completed', 'failed', 'dead', 'cancelled'
            )
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

-- name: ListUnsuccessfulNewest :many
-- purpose: a page of the jobs that ended in one of the states failed, dead and cancelled, newest
--     first, without their payloads.
-- callers: jobs.inspect (list_jobs)
-- tx: any
-- locks: none
-- index: settled_unsuccessful_idx, whatever the plan: its predicate stands in the statement
-- fence: none, it reads
-- rows: as ListJobsNewest. None for another state.
-- cost: at most the unsuccessful rows, of which there are few; never reads a completed one
-- nullable: worker, available_at, claimed_at, lease_expires_at, cancel_requested_at,
--     cancel_reason, progress, progress_message, stop_reason, last_error, idempotency_key,
--     concurrency_key, traceparent, enqueued_by
select /* jobs:list_unsuccessful_newest */
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
    null::timestamptz as available_at,
    s.claimed_at,
    null::timestamptz as lease_expires_at,
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
    s.enqueued_by
from jobs.settled as s
where
    s.state <> 'completed'
    and s.state = @state::text
    and s.id <= coalesce(
        sqlc.narg('cursor')::uuid, 'ffffffff-ffff-ffff-ffff-ffffffffffff'::uuid
    )
    and s.id is distinct from sqlc.narg('cursor')::uuid
    and (sqlc.narg('queue')::text is null or s.queue = sqlc.narg('queue')::text)
    and (sqlc.narg('name')::text is null or s.name = sqlc.narg('name')::text)
    and (sqlc.narg('tenant')::text is null or s.tenant = sqlc.narg('tenant')::text)
order by s.id desc
limit @page_size::integer;

-- name: ListUnsuccessfulOldest :many
-- purpose: a page of the jobs that ended in one of the states failed, dead and cancelled, oldest
--     first, without their payloads.
-- callers: jobs.inspect (list_jobs)
-- tx: any
-- locks: none
-- index: settled_unsuccessful_idx, whatever the plan: its predicate stands in the statement
-- fence: none, it reads
-- rows: as ListJobsOldest. None for another state.
-- cost: at most the unsuccessful rows, of which there are few; never reads a completed one
-- nullable: worker, available_at, claimed_at, lease_expires_at, cancel_requested_at,
--     cancel_reason, progress, progress_message, stop_reason, last_error, idempotency_key,
--     concurrency_key, traceparent, enqueued_by
select /* jobs:list_unsuccessful_oldest */
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
    null::timestamptz as available_at,
    s.claimed_at,
    null::timestamptz as lease_expires_at,
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
    s.enqueued_by
from jobs.settled as s
where
    s.state <> 'completed'
    and s.state = @state::text
    and s.id >= coalesce(
        sqlc.narg('cursor')::uuid, '00000000-0000-0000-0000-000000000000'::uuid
    )
    and s.id is distinct from sqlc.narg('cursor')::uuid
    and (sqlc.narg('queue')::text is null or s.queue = sqlc.narg('queue')::text)
    and (sqlc.narg('name')::text is null or s.name = sqlc.narg('name')::text)
    and (sqlc.narg('tenant')::text is null or s.tenant = sqlc.narg('tenant')::text)
order by s.id
limit @page_size::integer;
