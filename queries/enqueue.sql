-- name: EnqueueJob :one
-- purpose: insert one job, unless its id or its idempotency key is taken, and wake a worker if none
--     was told of this queue lately.
-- callers: jobs.enqueue (JobHandle.enqueue), at most twice a call
-- tx: the transaction of the caller
-- locks: the new rows; one of jobs.wake meets nobody. Waits only for an open transaction that
--     inserts, or is ending, a job of the same id or the same (name, tenant, idempotency key), and
--     for the moment in which one is claimed, renewed or settled.
-- index: job_pkey, job_unique_idx, wake_queue_idx; settled_pkey for a supplied id
-- fence: none, nobody holds the job yet
-- clock: clock_timestamp(), so that a long transaction does not backdate its jobs
-- rows: the id, or nothing where the id or the key is taken: FindEnqueued then says by whom
-- cost: one heap insert and two or three index inserts, and one index probe; now and then another
--     heap insert with two index inserts
-- errors: lock timeout, deadlock or serialization failure while waiting for the same key
-- notify: jobs_wake with the queue as payload, for a new job that is due within 5 s, unless a
--     committed row of jobs.wake says that the queue was woken in the last 50 to 250 ms (random, so
--     that sessions do not fire together). About a dozen a second and queue, however many enqueue;
--     workers look again for a while after each. A serializable transaction always notifies: the
--     look would make it fail with others that look. Never while half of the notification queue of
--     the server is taken, nor where the setting jobs.wake is off.
with /* jobs:enqueue_job */ added as (
    insert into jobs.job (
        id, run_id, queue, name, tenant, priority, available_at, max_attempts, dead_letter,
        idempotency_scope, idempotency_key, unique_key, concurrency_key, concurrency_limit,
        when_busy, traceparent, enqueued_by, input
    )
    select
        @id::uuid,
        @run_id::uuid,
        @queue::text,
        @name::text,
        @tenant::text,
        @priority::smallint,
        coalesce(sqlc.narg('run_at')::timestamptz, clock_timestamp() + @delay::interval),
        @max_attempts::bigint,
        @dead_letter::boolean,
        @idempotency_scope::text,
        sqlc.narg('idempotency_key')::text,
        sha256(convert_to(sqlc.narg('idempotency_key')::text, 'UTF8')),
        sqlc.narg('concurrency_key')::text,
        sqlc.narg('concurrency_limit')::bigint,
        sqlc.narg('when_busy')::text,
        sqlc.narg('traceparent')::text,
        sqlc.narg('enqueued_by')::text,
        @input::json
    where
        not @id_supplied::boolean
        or not exists (select 1 from jobs.settled as s where s.id = @id::uuid)
    on conflict do nothing
    returning id, available_at
),

noted as (
    insert into jobs.wake as n (queue)
    select @queue::text
    where
        exists (
            select 1
            from added as a
            where a.available_at <= clock_timestamp() + interval '5 seconds'
        )
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

select a.id from added as a;

-- name: EnqueueJobs :many
-- purpose: insert many jobs of one name in one statement, say for each whether it is new, and wake
--     a worker if none was told of this queue lately.
-- callers: jobs.enqueue (JobHandle.enqueue_many), at most twice a call
-- tx: the transaction of the caller
-- locks: the new rows, inserted in order of (tenant, key digest, id) by their bytes, so that two
--     bulk enqueues of the same keys wait for each other and never deadlock. An existing job is
--     read, not locked. Waits as EnqueueJob does.
-- index: job_pkey, job_unique_idx, wake_queue_idx; settled_pkey for supplied ids
-- fence: none, nobody holds the jobs yet
-- clock: clock_timestamp() for each row, in the order given, which is so the order of equal
--     priorities
-- rows: one for each input row, in no order, told apart by its run id as asked: created; existing
--     with the id and run id of the job that has the key or the id; unknown (the job in the way was
--     not visible to this statement, or the id repeats inside the batch: FindEnqueued tells).
-- cost: as EnqueueJob for each row, and one sort of the input; up to three probes for each row that
--     is not new. Linear in the rows.
-- errors: lock timeout, deadlock or serialization failure while waiting for the same key
-- notify: as EnqueueJob, once for all rows
-- nullable: id, run_id
with /* jobs:enqueue_jobs */ asked as materialized (
    select
        listed.id,
        listed.run_id,
        listed.tenant,
        listed.priority,
        /* in input order */
        coalesce(listed.run_at, clock_timestamp() + listed.delay) as available_at,
        listed.idempotency_key,
        listed.concurrency_key,
        sha256(convert_to(listed.idempotency_key, 'UTF8')) as unique_key,
        listed.input
    from (
        select
            unnest(@ids::uuid[]) as id,
            unnest(@run_ids::uuid[]) as run_id,
            unnest(@tenants::text[]) as tenant,
            unnest(@priorities::smallint[]) as priority,
            unnest(@run_ats::timestamptz[]) as run_at,
            unnest(@delays::interval[]) as delay,
            unnest(@idempotency_keys::text[]) as idempotency_key,
            unnest(@concurrency_keys::text[]) as concurrency_key,
            unnest(@inputs::text[]) as input
    ) as listed
),

keyed as materialized (
    select
        a.id,
        a.run_id,
        a.tenant,
        a.priority,
        a.available_at,
        a.idempotency_key,
        a.concurrency_key,
        a.unique_key,
        a.input,
        first_value(a.id) over twins as first_id,
        first_value(a.run_id) over twins as first_run_id
    from asked as a
    window twins as (partition by a.tenant, a.unique_key order by a.id)
),

added as (
    insert into jobs.job (
        id, run_id, queue, name, tenant, priority, available_at, max_attempts, dead_letter,
        idempotency_scope, idempotency_key, unique_key, concurrency_key, concurrency_limit,
        when_busy, traceparent, enqueued_by, input
    )
    select
        k.id,
        k.run_id,
        @queue::text,
        @name::text,
        k.tenant,
        k.priority,
        k.available_at,
        @max_attempts::bigint,
        @dead_letter::boolean,
        @idempotency_scope::text,
        k.idempotency_key,
        k.unique_key,
        k.concurrency_key,
        sqlc.narg('concurrency_limit')::bigint,
        sqlc.narg('when_busy')::text,
        sqlc.narg('traceparent')::text,
        sqlc.narg('enqueued_by')::text,
        k.input::json
    from keyed as k
    where
        not @ids_supplied::boolean
        or not exists (select 1 from jobs.settled as s where s.id = k.id)
    order by convert_to(k.tenant, 'UTF8'), k.unique_key, k.id /* bytes: as the caller sorts */
    on conflict do nothing
    returning id, run_id, available_at
),

noted as (
    insert into jobs.wake as n (queue)
    select @queue::text
    where
        exists (
            select 1
            from added as a
            where a.available_at <= clock_timestamp() + interval '5 seconds'
        )
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

select
    a.run_id as asked_run_id,
    'created'::text as verdict,
    a.id,
    a.run_id
from added as a
union all
select
    k.run_id,
    (case when found.id is null then 'unknown' else 'existing' end)::text,
    found.id,
    found.run_id
from keyed as k
left join lateral (
    select
        k.first_id as id,
        k.first_run_id as run_id
    where
        k.unique_key is not null /* repeated inside this very batch, and the first one is new */
        and k.first_run_id in (select a.run_id from added as a)
    union all
    select
        j.id,
        j.run_id
    from jobs.job as j
    where j.id = k.id
    union all
    select
        s.id,
        s.run_id
    from jobs.settled as s
    where @ids_supplied::boolean and s.id = k.id
    union all
    select
        j.id,
        j.run_id
    from jobs.job as j
    where j.name = @name::text and j.tenant = k.tenant and j.unique_key = k.unique_key
    limit 1
) as found on true
where k.run_id not in (select a.run_id from added as a);
