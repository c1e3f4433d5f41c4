-- name: ChooseJobs :many
-- purpose: find due jobs of several queues tenant by tenant, each tenant within its room, for the
--     claim that follows in the same transaction.
-- callers: jobs.worker.claimer, of a worker that limits tenants, before each ClaimJobs
-- tx: first statement of a transaction whose second is ClaimJobs with the ids of the answer
-- locks: the chosen jobs, no key update, skip locked, until the claim commits. Waits for nobody.
--     Where a tenant has jobs in several queues or priorities a few more than are chosen.
-- index: job_ready_tenant_idx, job_ready_idx, job_pkey; job_running_idx, job_blocked_idx, slot_pkey
-- fence: none, it changes nothing
-- clock: now() for what is due
-- rows: kind job: one to claim. Kind round, one a queue and priority: the tenant that the next
--     round begins behind, and how many were visited (seen). Kind stretch, likewise: the last job
--     looked at for those without a tenant, how many were looked at (seen), and how many of
--     them have none (blanks). Never more jobs of a queue than its free slots. In no order.
--     Kind more: also a claim of none has something to do. With @rescue some lease has lapsed,
--     with @sweep some job is blocked, with @tidy some slot is held. Without it, and without jobs,
--     none need be sent.
-- cost: for each queue and priority one step and one probe a tenant visited, @lane_limit of them at
--     most, and a walk over @stretch due jobs; whatever the number of jobs and tenants. Sorts what
--     it has found. With @rescue the running jobs of the queues that are older than one lease.
-- nullable: -id, -queue, -priority, -tenant, -available_at
with /* jobs:choose_jobs */ recursive request as (
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

lane as (
    select
        r.queue,
        r.place,
        t.turn,
        coalesce((@turns::integer[])[r.place + t.turn - 3], t.turn) as priority,
        0 as hop,
        origin.tenant as start,
        origin.tenant,
        false as wrapped
    from request as r
    cross join generate_series(0, 3) as t (turn)
    cross join
        lateral (
            select coalesce((@lane_starts::text[])[r.place + t.turn - 3], '') as tenant
        ) as origin
    union all
    select
        l.queue,
        l.place,
        l.turn,
        l.priority,
        l.hop + 1,
        l.start,
        coalesce(ahead.tenant, '')::text,
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
        l.hop - l.wrapped::integer < @lane_limit::integer /* going back is no visit */
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
                j.available_at
            from jobs.job as j
            where
                j.queue = r.queue
                and j.priority = coalesce((@turns::integer[])[r.place + t.turn - 3], t.turn)
                and j.state = 'ready'
                and j.available_at <= now()
                and (j.available_at, j.id) > (
                    coalesce(
                        (@floor_ats::timestamptz[])[r.place + t.turn - 3], '-infinity'::timestamptz
                    ),
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
),

fair as materialized (
    select
        found.id,
        r.queue,
        r.place,
        found.tenant,
        found.turn,
        found.available_at,
        found.hop,
        row_number() over (
            partition by found.tenant order by found.turn, r.place, found.hop, found.nth
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
            taken.available_at,
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
        cross join
            lateral (
                select
                    inlane.id,
                    inlane.available_at
                from (
                    select
                        j.id,
                        j.available_at
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
                select
                    blank.id,
                    blank.available_at
                from (
                    select
                        j.id,
                        j.available_at
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
        limit r.free
    ) as found
)

select
    'job'::text as kind,
    f.id,
    f.queue::text as queue,
    coalesce((@turns::integer[])[f.place + f.turn - 3], f.turn)::integer as priority,
    f.tenant::text as tenant,
    f.available_at,
    0::bigint as seen,
    0::bigint as blanks
from fair as f
where f.nth <= coalesce(f.room, f.nth)
union all
select
    'round'::text,
    '00000000-0000-0000-0000-000000000000'::uuid,
    p.queue,
    p.priority,
    p.tenant,
    now(),
    p.visited,
    0::bigint
from (
    select distinct on (l.queue, l.turn)
        l.queue,
        l.priority,
        l.tenant,
        (l.hop - l.wrapped::integer)::bigint as visited
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
    order by l.queue asc, l.turn asc, l.hop desc
) as p
union all
select
    'stretch'::text,
    s.id,
    s.queue,
    s.priority,
    ''::text,
    s.available_at,
    s.place,
    s.blanks
from (
    select distinct on (e.queue, e.turn)
        e.id,
        e.queue,
        e.priority,
        e.place,
        e.available_at,
        count(*) filter (where e.tenant = '') over (partition by e.queue, e.turn) as blanks
    from stretch as e
    order by e.queue asc, e.turn asc, e.place desc
) as s
union all
select
    'more'::text,
    '00000000-0000-0000-0000-000000000000'::uuid,
    r.queue::text,
    0,
    ''::text,
    now(),
    0::bigint,
    0::bigint
from request as r
where
    (
        @rescue::boolean
        and exists (
            select 1 from jobs.job as j
            where
                j.queue = r.queue
                and j.state = 'running'
                and j.rescue_at <= now()
                and j.lease_expires_at <= now()
        )
    )
    or (@sweep::boolean and exists (select 1 from jobs.job as j where j.state = 'blocked'))
    or (@tidy::boolean and exists (select 1 from jobs.slot));
