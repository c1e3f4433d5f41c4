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
with /* jobs:claim_jobs */ recursive request as (
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

lane as (
    select
        r.queue,
        r.place,
        t.turn,
        coalesce((@turns::integer[])[r.place + t.turn - 3], t.turn) as priority,
        0 as hop,
        origin.tenant as start,
        origin.tenant as tenant,
        false as wrapped
    from request as r
    cross join generate_series(0, 3) as t (turn)
    cross join
        lateral (
            select coalesce((@lane_starts::text[])[r.place + t.turn - 3], '') as tenant
        ) as origin
    where @by_tenant::boolean
    union all
    select
        l.queue,
        l.place,
        l.turn,
        l.priority,
        l.hop + 1,
        l.start,
        coalesce(ahead.tenant, ''),
        l.wrapped or ahead.tenant is null
    from lane as l
    cross join
        lateral (
            select (
                select j.tenant
                from jobs.job as j
                where
                    j.queue = l.queue
                    and j.priority = l.priority
                    and j.state = 'ready'
                    and j.tenant <> ''
                    and j.tenant > l.tenant
                order by j.tenant
                limit 1
            ) as tenant
        ) as ahead
    where
        l.hop < @lane_limit::integer
        and case
            when ahead.tenant is null then l.start <> '' and not l.wrapped /* from the beginning */
            else not l.wrapped or ahead.tenant <= l.start
        end
),

stretch as materialized (
    select
        r.queue,
        t.turn,
        seen.priority,
        seen.id,
        seen.tenant,
        seen.available_at,
        seen.run_id,
        seen.created_at,
        row_number() over (
            partition by r.queue, t.turn order by seen.available_at, seen.id
        ) as place
    from request as r
    cross join generate_series(0, 3) as t (turn)
    cross join
        lateral (
            select
                j.id,
                j.tenant,
                j.priority,
                j.available_at,
                j.run_id,
                j.created_at
            from jobs.job as j
            where
                @by_tenant::boolean
                and j.queue = r.queue
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
            limit @stretch::integer
        ) as seen
),

way as materialized (
    select
        l.queue,
        l.turn,
        l.priority,
        l.hop,
        l.tenant,
        coalesce(listed.room, @tenant_room::integer) as room
    from lane as l
    left join (
        select
            unnest(@tenants::text[]) as tenant,
            unnest(@tenant_rooms::integer[]) as room
    ) as listed on l.tenant = listed.tenant
    where l.hop > 0 and l.tenant <> ''
    union all
    select
        r.queue,
        t.turn,
        0,
        @blanks_hop::integer,
        '',
        null::integer
    from request as r
    cross join generate_series(0, 3) as t (turn)
    where @by_tenant::boolean
),

fair as materialized (
    select
        found.id,
        r.queue,
        found.turn,
        found.hop,
        row_number() over (
            partition by found.tenant order by r.place, found.turn, found.hop, found.nth
        ) as nth,
        case when found.tenant <> '' then found.room end as room
    from request as r
    cross join lateral (
        select
            way.turn,
            way.hop,
            way.tenant,
            way.room,
            taken.id,
            row_number() over () as nth
        from (
            select
                w.turn,
                w.hop,
                w.tenant,
                w.priority,
                w.room
            from way as w
            where w.queue = r.queue
            order by w.turn, w.hop
        ) as way
        cross join lateral (
            select inlane.id
            from (
                select j.id
                from jobs.job as j
                where
                    way.tenant <> ''
                    and j.queue = r.queue
                    and j.priority = way.priority
                    and j.tenant = way.tenant
                    and j.state = 'ready'
                    and j.tenant <> ''
                    and j.available_at <= now()
                order by j.available_at, j.id
                limit least(r.free, way.room, (@mosts::integer[])[r.place + way.turn - 3])
                for no key update of j skip locked
            ) as inlane
            union all
            select blank.id
            from (
                select j.id
                from jobs.job as j
                where
                    way.tenant = ''
                    and j.id = any(array(
                        select s.id
                        from stretch as s
                        where s.queue = r.queue and s.turn = way.turn and s.tenant = ''
                        order by s.place
                        limit least(r.free, (@mosts::integer[])[r.place + way.turn - 3])
                    ))
                    and j.state = 'ready'
                for no key update of j skip locked
            ) as blank
        ) as taken
        limit greatest(
            0,
            r.free - (
                select count(*) from lapsed as l where l.queue = r.queue and l.fate = 'rescued'
            )
        )
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
                    not @by_tenant::boolean
                    and j.queue = r.queue
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
    select f.id
    from fair as f
    where f.nth <= coalesce(f.room, f.nth)
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
where l.fate <> 'rescued'
union all
select
    'passed'::text,
    '00000000-0000-0000-0000-000000000000'::uuid,
    '00000000-0000-0000-0000-000000000000'::uuid,
    p.queue,
    '',
    p.tenant,
    p.priority::smallint,
    0::bigint,
    0::bigint,
    0::bigint,
    now(),
    now(),
    null::text,
    null::text,
    ''
from (
    select distinct on (l.queue, l.turn)
        l.queue,
        l.priority,
        l.tenant
    from lane as l
    where
        l.hop > 0
        and (
            exists (
                select 1 from fair as f
                where f.queue = l.queue and f.turn = l.turn and f.hop = l.hop
            )
            or (select count(*) from fair as f where f.queue = l.queue) < (
                select r.free from request as r where r.queue = l.queue limit 1
            )
        )
    order by l.queue, l.turn, l.hop desc
) as p
union all
select
    'passed'::text,
    s.id,
    s.run_id,
    s.queue,
    '',
    '',
    s.priority,
    s.blanks,
    0::bigint,
    s.place,
    s.available_at,
    s.created_at,
    null::text,
    null::text,
    ''
from (
    select distinct on (e.queue, e.turn)
        e.id,
        e.run_id,
        e.queue,
        e.priority,
        e.place,
        e.available_at,
        e.created_at,
        count(*) filter (where e.tenant = '') over (partition by e.queue, e.turn) as blanks
    from stretch as e
    order by e.queue, e.turn, e.place desc
) as s;
