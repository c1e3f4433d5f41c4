-- name: PublishJobs :many
-- purpose: insert staged jobs into the queue, in bulk and whatever their names, unless their ids or
--     idempotency keys are taken, and wake workers if none was told of a queue lately.
-- callers: jobs.relay.queue, in the database of the queue, at most twice a batch; one by one where
--     a row of the batch is refused
-- tx: a transaction of the relay, READ COMMITTED, with UndoRepublished after it; where the outbox
--     is in the same database also with MarkOutbox
-- locks: the new rows, inserted in order of (name, tenant, key digest, id) by their bytes, as
--     EnqueueJobs does. Waits as EnqueueJob does.
-- index: job_pkey, settled_pkey, job_unique_idx, wake_queue_idx
-- fence: none, nobody holds the jobs yet. A repeat finds the id, live or finished.
-- clock: clock_timestamp() for each row, in the order given, which is so the order of equal
--     priorities. Delays are what is left of them by the clock of the outbox.
-- rows: one for each input row, in no order, told apart by its id: created; existing with the id
--     of the job that has the id or the key; unknown (the job in the way was not visible to this
--     statement)
-- cost: as EnqueueJobs
-- errors: lock timeout, deadlock or serialization failure while waiting for the same key; whatever
--     else a constraint of the target says of a row
-- notify: as EnqueueJob, once for each queue
-- nullable: id
with /* jobs:publish_jobs */ asked as materialized (
    select
        listed.id,
        listed.run_id,
        listed.queue,
        listed.name,
        listed.tenant,
        listed.priority,
        /* in input order */
        coalesce(listed.run_at, clock_timestamp() + listed.delay) as available_at,
        listed.max_attempts,
        listed.dead_letter,
        listed.idempotency_scope,
        listed.idempotency_key,
        sha256(convert_to(listed.idempotency_key, 'UTF8')) as unique_key,
        listed.concurrency_limit,
        listed.when_busy,
        listed.concurrency_key,
        listed.traceparent,
        listed.enqueued_by,
        listed.input
    from (
        select
            unnest(@ids::uuid[]) as id,
            unnest(@run_ids::uuid[]) as run_id,
            unnest(@queues::text[]) as queue,
            unnest(@names::text[]) as name,
            unnest(@tenants::text[]) as tenant,
            unnest(@priorities::smallint[]) as priority,
            unnest(@run_ats::timestamptz[]) as run_at,
            unnest(@delays::interval[]) as delay,
            unnest(@max_attempts::bigint[]) as max_attempts,
            unnest(@dead_letters::boolean[]) as dead_letter,
            unnest(@idempotency_scopes::text[]) as idempotency_scope,
            unnest(@idempotency_keys::text[]) as idempotency_key,
            unnest(@concurrency_limits::bigint[]) as concurrency_limit,
            unnest(@when_busys::text[]) as when_busy,
            unnest(@concurrency_keys::text[]) as concurrency_key,
            unnest(@traceparents::text[]) as traceparent,
            unnest(@enqueued_bys::text[]) as enqueued_by,
            unnest(@inputs::text[]) as input
    ) as listed
),

keyed as materialized (
    select
        a.id,
        a.run_id,
        a.queue,
        a.name,
        a.tenant,
        a.priority,
        a.available_at,
        a.max_attempts,
        a.dead_letter,
        a.idempotency_scope,
        a.idempotency_key,
        a.unique_key,
        a.concurrency_limit,
        a.when_busy,
        a.concurrency_key,
        a.traceparent,
        a.enqueued_by,
        a.input,
        first_value(a.id) over twins as first_id
    from asked as a
    window twins as (partition by a.name, a.tenant, a.unique_key order by a.id)
),

added as (
    insert into jobs.job (
        id, run_id, queue, name, tenant, priority, available_at, max_attempts, dead_letter,
        idempotency_scope, idempotency_key, unique_key, concurrency_limit, when_busy,
        concurrency_key, traceparent, enqueued_by, input
    )
    select
        k.id,
        k.run_id,
        k.queue,
        k.name,
        k.tenant,
        k.priority,
        k.available_at,
        k.max_attempts,
        k.dead_letter,
        k.idempotency_scope,
        k.idempotency_key,
        k.unique_key,
        k.concurrency_limit,
        k.when_busy,
        k.concurrency_key,
        k.traceparent,
        k.enqueued_by,
        k.input::json
    from keyed as k
    where not exists (select 1 from jobs.settled as s where s.id = k.id)
    order by convert_to(k.name, 'UTF8'), convert_to(k.tenant, 'UTF8'), k.unique_key, k.id
    on conflict do nothing
    returning id, queue, available_at
),

noted as (
    insert into jobs.wake as n (queue)
    select due.queue
    from (
        select distinct a.queue
        from added as a
        where a.available_at <= clock_timestamp() + interval '5 seconds'
    ) as due
    where
        true
        and case
            when current_setting('jobs.wake', true) = 'off' then false
            when
                current_setting('transaction_isolation') <> 'serializable'
                and exists (
                    select 1
                    from jobs.wake as w
                    where
                        w.queue = due.queue
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
    a.id as asked_id,
    'created'::text as verdict,
    a.id
from added as a
union all
select
    k.id,
    (case when found.id is null then 'unknown' else 'existing' end)::text,
    found.id
from keyed as k
left join lateral (
    select k.first_id as id
    where
        k.unique_key is not null /* repeated inside this very batch, and the first one is new */
        and k.first_id in (select a.id from added as a)
    union all
    select j.id
    from jobs.job as j
    where j.id = k.id
    union all
    select s.id
    from jobs.settled as s
    where s.id = k.id
    union all
    select j.id
    from jobs.job as j
    where j.name = k.name and j.tenant = k.tenant and j.unique_key = k.unique_key
    limit 1
) as found on true
where k.id not in (select a.id from added as a);
