-- name: ClaimJobs :many
-- purpose: take due jobs of several queues under a lease, each with a fresh fencing token, and bury
--     those whose lease lapsed on their last attempt, or after a cancel was requested.
-- callers: jobs.worker (every pass of a worker that has a free slot)
-- tx: own autocommitted statement
-- locks: jobs.job rows, skip locked; lapsed ones for update in order of rescue_at, then ready ones
--     no key update in index order. Waits for nobody. Locks exactly the rows it changes, and for
--     the length of the statement also a row that left its state after the snapshot. Deletes the
--     buried.
-- index: job_ready_idx, job_running_idx, job_pkey
-- fence: raises claims on each row; a rescue also sets revoked to the token it took away
-- clock: now() for what is due and for the lease, so a slow statement shortens the lease, never
--     lengthens it
-- rows: verdict claimed (run it), buried (already ended here, tell the settle hook). In no order.
--     Never more claimed of a queue than its free slots; the queues asked are distinct.
-- cost: one ordered probe a queue and priority that stops at the free slots, one update a job,
--     never heap-only because state is indexed. The running rows are looked at only when @rescue is
--     set, and then only those older than one lease. No sort, no sequential scan.
-- nullable: traceparent, enqueued_by
with /* jobs:claim_jobs */ request as (
    select
        asked.queue,
        asked.free,
        asked.place
    from (
        select
            unnest(@queues::text[]) as queue,
            unnest(@free::integer[]) as free,
            4 * generate_subscripts(@queues::text[], 1) as place
    ) as asked
    where not exists (
        select 1 from jobs.pause as p where p.kind = 'queue' and p.name = asked.queue
    )
),

lapsed as materialized (
    select
        found.id,
        found.run_id,
        found.queue,
        found.name,
        found.tenant,
        found.priority,
        found.attempt,
        found.max_attempts,
        found.claims,
        found.dead_letter,
        found.idempotency_scope,
        found.idempotency_key,
        found.traceparent,
        found.enqueued_by,
        found.worker,
        found.claimed_at,
        found.cancel_requested_at,
        found.cancel_reason,
        found.available_at,
        found.created_at,
        found.input,
        found.fate,
        'the lease ended at ' || found.lease_expires_at::text || ' without a settle' as message
    from request as r
    cross join lateral (
        select
            j.id,
            j.run_id,
            j.queue,
            j.name,
            j.tenant,
            j.priority,
            j.attempt,
            j.max_attempts,
            j.claims,
            j.dead_letter,
            j.idempotency_scope,
            j.idempotency_key,
            j.traceparent,
            j.enqueued_by,
            j.worker,
            j.claimed_at,
            j.lease_expires_at,
            j.cancel_requested_at,
            j.cancel_reason,
            j.available_at,
            j.created_at,
            j.input,
            case
                when j.cancel_requested_at is not null then 'cancelled'
                when j.attempt >= j.max_attempts and j.dead_letter then 'dead'
                when j.attempt >= j.max_attempts then 'failed'
                when
                    j.idempotency_scope = 'waiting'
                    and exists (
                        select 1
                        from jobs.job as sibling
                        where
                            sibling.name = j.name
                            and sibling.tenant = j.tenant
                            and sibling.unique_key = sha256(convert_to(j.idempotency_key, 'UTF8'))
                            and sibling.id <> j.id
                    )
                    then 'cancelled'
                else 'rescued'
            end as fate
        from jobs.job as j
        where
            @rescue::boolean
            and j.queue = r.queue
            and j.state = 'running'
            and j.rescue_at <= now()
            and j.lease_expires_at <= now()
        order by j.rescue_at
        limit least(r.free, @rescue_limit::integer)
        for update of j skip locked /* a burial deletes: a weaker lock would let it wait */
    ) as found
),

due as materialized (
    select found.id
    from request as r
    cross join lateral (
        select probe.id
        from generate_series(0, 3) as t (turn)
        cross join
            lateral (
                select j.id
                from jobs.job as j
                where
                    j.queue = r.queue
                    and j.priority = coalesce((@turns::integer[])[r.place + t.turn - 3], t.turn)
                    and j.state = 'ready'
                    and j.available_at <= now()
                    and (j.available_at, j.id) > (
                        coalesce((@floor_ats::timestamptz[])[r.place + t.turn - 3], '-infinity'::timestamptz),
                        coalesce(
                            (@floor_ids::uuid[])[r.place + t.turn - 3],
                            '00000000-0000-0000-0000-000000000000'::uuid
                        )
                    )
                order by j.available_at, j.id
                limit least(r.free, (@mosts::integer[])[r.place + t.turn - 3])
                for no key update of j skip locked
            ) as probe
        limit greatest(
            0,
            r.free - (
                select count(*) from lapsed as l where l.queue = r.queue and l.fate = 'rescued'
            )
        ) /* the rescued take their slots first; the probe stops, and locks nothing more */
    ) as found
    union all
    select named.id
    from request as r
    cross join lateral (
        select j.id
        from jobs.job as j
        where
            j.id = any(@chosen::uuid[])
            and j.queue = r.queue
            and j.state = 'ready'
            and j.available_at <= now()
        order by j.id
        limit greatest(
            0,
            r.free - (
                select count(*) from lapsed as l where l.queue = r.queue and l.fate = 'rescued'
            )
        )
        for no key update of j skip locked
    ) as named
),

buried as (
    insert into jobs.settled (
        id, run_id, queue, name, tenant, priority, attempt, max_attempts, claims, revoked, state,
        stop_reason, worker, last_error, dead_letter, idempotency_scope, idempotency_key,
        traceparent, enqueued_by, claimed_at, cancel_requested_at, cancel_reason, created_at, input
    )
    select
        l.id,
        l.run_id,
        l.queue,
        l.name,
        l.tenant,
        l.priority,
        l.attempt,
        l.max_attempts,
        l.claims,
        l.claims, /* revoked: whoever held it did not settle it */
        l.fate,
        case
            when l.cancel_requested_at is not null then 'cancel requested'
            when l.fate = 'cancelled' then 'superseded'
            else 'lease lapsed'
        end,
        l.worker,
        'LeaseLapsed: ' || l.message,
        l.dead_letter,
        l.idempotency_scope,
        l.idempotency_key,
        l.traceparent,
        l.enqueued_by,
        l.claimed_at,
        l.cancel_requested_at,
        l.cancel_reason,
        l.created_at,
        l.input
    from lapsed as l
    where l.fate <> 'rescued'
    on conflict (id) do nothing /* one odd row must not fail its neighbours */
),

gone as (
    delete from jobs.job as j
    where j.id = any(array(select l.id from lapsed as l where l.fate <> 'rescued'))
),

noted as (
    insert into jobs.attempt (job_id, claims, attempt, worker, error_type, error_message)
    select
        l.id,
        l.claims,
        l.attempt,
        l.worker,
        'LeaseLapsed',
        l.message
    from lapsed as l
    on conflict do nothing
),

claimed as (
    update jobs.job as j
    set
        state = 'running',
        worker = @worker::text,
        claims = j.claims + 1,
        revoked = case when j.state = 'running' then j.claims else j.revoked end,
        attempt = j.attempt + 1,
        last_error = case
            when j.state = 'running'
                then
                    'LeaseLapsed: the lease ended at ' || j.lease_expires_at::text
                    || ' without a settle'
            else j.last_error
        end,
        claimed_at = now(),
        lease_expires_at = now() + @lease::interval,
        rescue_at = now() + @lease::interval,
        unique_key = case when j.idempotency_scope = 'live' then j.unique_key end
    where
        j.id = any(array(
            select d.id from due as d
            union all
            select l.id from lapsed as l where l.fate = 'rescued'
        ))
    returning
        j.id,
        j.run_id,
        j.queue,
        j.name,
        j.tenant,
        j.priority,
        j.attempt,
        j.max_attempts,
        j.claims,
        j.available_at,
        j.created_at,
        j.traceparent,
        j.enqueued_by,
        j.input::text as input
),

counted as (
    insert into jobs.counter (bucket, name, outcome, amount)
    select
        date_trunc('minute', now()),
        l.name,
        l.fate,
        count(*)
    from lapsed as l
    group by l.name, l.fate
)

select
    'claimed'::text as verdict,
    c.id,
    c.run_id,
    c.queue,
    c.name,
    c.tenant,
    c.priority,
    c.attempt,
    c.max_attempts,
    c.claims,
    c.available_at,
    c.created_at,
    c.traceparent,
    c.enqueued_by,
    c.input
from claimed as c
union all
select
    'buried'::text,
    l.id,
    l.run_id,
    l.queue,
    l.name,
    l.tenant,
    l.priority,
    l.attempt,
    l.max_attempts,
    l.claims,
    l.available_at,
    l.created_at,
    l.traceparent,
    l.enqueued_by,
    l.input::text
from lapsed as l
where l.fate <> 'rescued';
