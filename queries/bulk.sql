-- name: InsertJobs :exec
-- purpose: insert many jobs of one name that nothing can be in the way of (no idempotency key, no
--     id of the caller, no concurrency key), all due after the same delay, and wake a worker if
--     none was told of this queue lately.
-- callers: jobs.enqueue (JobHandle.enqueue_many), where EnqueueJobs would have nothing to look up
-- tx: the transaction of the caller
-- locks: the new rows, nobody else can meet them; one of jobs.wake meets nobody. Waits for nobody.
-- index: job_pkey, wake_queue_idx
-- fence: none, nobody holds the jobs yet
-- clock: clock_timestamp() for each row, in the order given, which is so the order of equal
--     priorities
-- rows: none
-- cost: one heap insert and two index inserts a row, and one index probe in all; now and then
--     another heap insert with two index inserts. No sort.
-- notify: as EnqueueJob, once for all rows
with /* jobs:insert_jobs */ noted as (
    insert into jobs.wake as n (queue)
    select @queue::text
    where
        @delay::interval <= interval '5 seconds'
        and case
            when current_setting('jobs.wake', true) = 'off' then false
            when
                current_setting('transaction_isolation') <> 'serializable'
                and exists (
                    select 1
                    from jobs.wake as w
                    where
                        w.queue = @queue::text
                        and w.at > (
                            select
                                clock_timestamp() - interval '50 milliseconds'
                                - interval '200 milliseconds' * sqrt(sqrt(random()))
                        )
                        and w.at <= (select clock_timestamp()) /* clocks are set back */
                )
                then false
            else pg_notification_queue_usage() < 0.5 /* a full one would fail the commit */
        end
    returning pg_notify('jobs_wake', n.queue) /* computed for each row, read or not */
)

insert into jobs.job (
    id, run_id, queue, name, tenant, priority, available_at, max_attempts, dead_letter,
    idempotency_scope, traceparent, enqueued_by, input
)
select
    listed.id,
    listed.run_id,
    @queue::text,
    @name::text,
    listed.tenant,
    listed.priority,
    clock_timestamp() + @delay::interval, /* in input order */
    @max_attempts::bigint,
    @dead_letter::boolean,
    @idempotency_scope::text,
    sqlc.narg('traceparent')::text,
    sqlc.narg('enqueued_by')::text,
    listed.input::json
from (
    select
        unnest(@ids::uuid[]) as id,
        unnest(@run_ids::uuid[]) as run_id,
        unnest(@tenants::text[]) as tenant,
        unnest(@priorities::smallint[]) as priority,
        unnest(@inputs::text[]) as input
) as listed;

-- name: CopyJobs :copyfrom
-- purpose: insert a large number of jobs that have no idempotency key, as fast as the server can.
-- callers: jobs.enqueue (JobHandle.copy_many)
-- tx: the transaction of the caller
-- locks: the new rows, nobody else can meet them
-- index: job_pkey
-- fence: none, nobody holds the jobs yet
-- clock: clock_timestamp() by the column defaults
-- rows: the number inserted
-- cost: one COPY
insert into jobs.job (
    id, run_id, queue, name, tenant, priority, max_attempts, dead_letter, concurrency_key,
    concurrency_limit, when_busy, traceparent, enqueued_by, input
) values (
    @id, @run_id, @queue, @name, @tenant, @priority, @max_attempts, @dead_letter, @concurrency_key,
    @concurrency_limit, @when_busy, @traceparent, @enqueued_by, @input
);
