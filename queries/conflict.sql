-- name: FindEnqueued :many
-- purpose: which job has the id or the idempotency key, as seen by a fresh snapshot after an insert
--     met a conflict.
-- callers: jobs.enqueue, after EnqueueJob or EnqueueJobs left a row unanswered
-- tx: the transaction of the caller
-- locks: none
-- index: job_pkey, settled_pkey, job_unique_idx; job_running_idx and settled_settled_at_idx only
--     when @since is given
-- fence: none, it changes nothing
-- clock: statement_timestamp(), so that a long transaction does not widen @since
-- rows: one for each row asked that is found, told apart by its run id as asked. With @since also
--     the last job that held the key, where it has let go of it and runs, or has ended, since then
--     (one that is ready again, after a failed attempt, is not found).
-- cost: up to three unique probes a row; with @since also the running rows of the queue and what
--     settled since, which only a row that lost two races in a row pays
with /* jobs:find_enqueued */ asked as (
    select
        unnest(@ids::uuid[]) as id,
        unnest(@run_ids::uuid[]) as run_id,
        unnest(@tenants::text[]) as tenant,
        unnest(@idempotency_keys::text[]) as idempotency_key
)

select
    a.run_id::uuid as asked_run_id,
    found.id,
    found.run_id
from asked as a
cross join lateral (
    select
        j.id,
        j.run_id
    from jobs.job as j
    where j.id = a.id
    union all
    select
        s.id,
        s.run_id
    from jobs.settled as s
    where s.id = a.id
    union all
    select
        j.id,
        j.run_id
    from jobs.job as j
    where
        j.name = @name::text
        and j.tenant = a.tenant
        and j.unique_key = sha256(convert_to(a.idempotency_key, 'UTF8'))
    union all
    select
        latest.id,
        latest.run_id
    from (
        (
            select
                j.id,
                j.run_id,
                j.created_at
            from jobs.job as j
            where
                sqlc.narg('since')::interval is not null
                and j.queue = @queue::text
                and j.state = 'running'
                and j.claimed_at >= statement_timestamp() - sqlc.narg('since')::interval
                and j.name = @name::text
                and j.tenant = a.tenant
                and j.idempotency_key = a.idempotency_key
            order by j.created_at desc
            limit 1
        )
        union all
        (
            select
                s.id,
                s.run_id,
                s.created_at
            from jobs.settled as s
            where
                sqlc.narg('since')::interval is not null
                and s.settled_at >= statement_timestamp() - sqlc.narg('since')::interval
                and s.settled_at < 'infinity' /* two bounds are planned as few rows */
                and s.name = @name::text
                and s.tenant = a.tenant
                and s.idempotency_key = a.idempotency_key
            order by s.created_at desc
            limit 1
        )
        order by created_at desc
        limit 1 /* the last holder of the key: those before it had let go of it by then */
    ) as latest
    limit 1
) as found;

-- name: ReadIsolation :one
-- purpose: the isolation level of the current transaction, since a fresh snapshot needs READ
--     COMMITTED.
-- callers: jobs.enqueue, before an insert with supplied ids; jobs.sending, to begin the transaction
--     of a connection that is not in autocommit mode before a savepoint is set in it
-- tx: the transaction of the caller
-- locks: none
-- index: none
-- fence: none, it reads no table
-- rows: one
-- cost: no table is read
select /* jobs:read_isolation */ current_setting('transaction_isolation')::text as isolation;

-- name: UndoRepublished :many
-- purpose: take back jobs just inserted under an id supplied by the caller, where a job of that id
--     has finished meanwhile. The insert waited for the settle that moved the old row, and its own
--     snapshot could not see where to.
-- callers: jobs.enqueue and jobs.relay.queue, in the transaction of the insert, after every insert
--     with supplied ids
-- tx: the same transaction as the insert, READ COMMITTED (a fresh snapshot is the point)
-- locks: the rows that this very transaction inserted
-- index: job_pkey, settled_pkey
-- fence: run_id, so that only the row of this call is taken back
-- rows: the ids taken back; they are answered as existing
-- cost: two unique probes a row, and a delete for each one found
delete /* jobs:undo_republished */ from jobs.job as j
where
    j.id = any(@ids::uuid[])
    and j.run_id = any(@run_ids::uuid[])
    and exists (select 1 from jobs.settled as s where s.id = j.id)
returning j.id;
