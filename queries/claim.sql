-- name: ClaimJobs :many
-- purpose: take due jobs of several queues under a lease, each with a fresh fencing token, and bury
--     those whose lease lapsed on their last attempt, or after a cancel was requested. Of jobs with
--     a concurrency key only as many as the key has room for: the others are parked in the line of
--     their key (blocked), or refused where they were declared not to wait.
--     It looks from the oldest due job of each priority, in strict order. @turns is another order
--     of the priorities, @mosts how many of each, @floor_ats and @floor_ids the place behind which
--     to begin: four entries a queue in that order, or none. @chosen are jobs to claim beside.
-- callers: jobs.worker (every pass of a worker that has a free slot)
-- tx: own autocommitted statement; in one transaction behind ChooseJobs where tenants are limited
-- locks: jobs.job rows, skip locked; lapsed ones for update in order of rescue_at, then ready ones
--     no key update in index order. Waits for nobody. Locks exactly the rows it changes, and for
--     the length of the statement also a row that left its state after the snapshot. Deletes the
--     buried and the refused. Then jobs.slot in order of (key, slot): an insert there waits for the
--     moment in which another claim or settle writes the same slot. Waits for nobody else.
-- index: job_ready_idx, job_running_idx, job_pkey; for jobs with a key also slot_pkey,
--     slot_job_key, job_blocked_idx, job_keyed_idx
-- fence: raises claims on each row; a rescue also sets revoked to the token it took away. The
--     primary key of jobs.slot keeps the limit of a key: what is counted decides what is tried.
--     A job claimed with @ahead may not have begun when its lease lapses: that attempt does not
--     count, once, since no rescue is @ahead.
-- clock: now() for what is due and for the lease, so a slow statement shortens the lease, never
--     lengthens it
-- rows: verdict claimed (run it). Already ended here: buried (as dead) or failed (the same without
--     a dead letter), because the lease lapsed on the last attempt; refused; cancelled (the lease
--     lapsed, and a cancel had been asked for or a waiting sibling does the work). In no order.
--     Never more claimed of a queue than its free slots; the queues asked are distinct.
--     Other verdicts are no jobs, and only the key and the queue of their rows mean something:
--     parked (jobs of this key were parked: promote it once this has committed), again (a slot of
--     this key went to another claim, and the job was left ready: claim again), blocked (with
--     @sweep: some job is blocked), held (with @sweep: some slot is held). Epochs are seconds since
--     1970, in UTC.
-- cost: one ordered probe a queue and priority that stops at the free slots, one update a job,
--     never heap-only because state is indexed. The running rows are looked at only when @rescue is
--     set, and then only those older than one lease. No sort, no sequential scan. A job with a key
--     costs three more probes and one insert; a key that is full costs one update for each job that
--     is parked, at most @park_limit a key and queue beyond those found.
-- nullable: traceparent, enqueued_by, concurrency_key
with /* jobs:claim_jobs */ request as (
    select
        asked.queue,
        asked.free,
        asked.place
    from (
        select
            unnest(@queues::text[]) as queue,
            unnest(@free::integer[]) as free,
            4 * generate_subscripts(@queues::text[], 1) as place /* the end of its four entries */
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
        found.concurrency_key,
        found.concurrency_limit,
        found.when_busy,
        found.traceparent,
        found.enqueued_by,
        found.worker,
        found.claimed_at,
        found.progress,
        found.progress_message,
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
            j.concurrency_key,
            j.concurrency_limit,
            j.when_busy,
            j.traceparent,
            j.enqueued_by,
            j.worker,
            j.claimed_at,
            j.lease_expires_at,
            j.progress,
            j.progress_message,
            j.cancel_requested_at,
            j.cancel_reason,
            j.available_at,
            j.created_at,
            j.input,
            case
                when j.cancel_requested_at is not null then 'cancelled'
                when
                    j.attempt - case when j.ahead then 1 else 0 end >= j.max_attempts
                    then case when j.dead_letter then 'dead' else 'failed' end
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
    select
        found.id,
        found.queue,
        found.name,
        found.tenant,
        found.priority,
        found.available_at,
        found.waiting_since,
        found.concurrency_key,
        found.concurrency_limit,
        found.when_busy
    from request as r
    cross join
        lateral (
            select
                probe.id,
                probe.queue,
                probe.name,
                probe.tenant,
                probe.priority,
                probe.available_at,
                probe.waiting_since,
                probe.concurrency_key,
                probe.concurrency_limit,
                probe.when_busy
            from generate_series(0, 3) as t (turn)
            cross join
                lateral (
                    select
                        j.id,
                        j.queue,
                        j.name,
                        j.tenant,
                        j.priority,
                        j.available_at,
                        j.waiting_since,
                        j.concurrency_key,
                        j.concurrency_limit,
                        j.when_busy
                    from jobs.job as j
                    where
                        j.queue = r.queue
                        and j.priority = coalesce((@turns::integer[])[r.place + t.turn - 3], t.turn)
                        and j.state = 'ready'
                        and j.available_at <= now()
                        and (j.available_at, j.id) > (
                            coalesce(
                                (@floor_ats::timestamptz[])[r.place + t.turn - 3],
                                '-infinity'::timestamptz
                            ),
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
    select
        named.id,
        named.queue,
        named.name,
        named.tenant,
        named.priority,
        named.available_at,
        named.waiting_since,
        named.concurrency_key,
        named.concurrency_limit,
        named.when_busy
    from request as r
    cross join lateral (
        select
            one.id,
            one.queue,
            one.name,
            one.tenant,
            one.priority,
            one.available_at,
            one.waiting_since,
            one.concurrency_key,
            one.concurrency_limit,
            one.when_busy
        from (
            select unnest(@chosen::uuid[]) as id
        ) as wanted /* one by one: with any() a planner may walk the ready index, even for none */
        cross join
            lateral (
                select
                    j.id,
                    j.queue,
                    j.name,
                    j.tenant,
                    j.priority,
                    j.available_at,
                    j.waiting_since,
                    j.concurrency_key,
                    j.concurrency_limit,
                    j.when_busy
                from jobs.job as j
                where
                    j.id = wanted.id /* locked by ChooseJobs in this transaction */
                    and j.queue = r.queue
                    and j.state = 'ready'
                    and j.available_at <= now()
                for no key update of j skip locked
            ) as one
        limit greatest(
            0,
            r.free - (
                select count(*) from lapsed as l where l.queue = r.queue and l.fate = 'rescued'
            )
        )
    ) as named
),

/* From here to "taken": the jobs with a key, if there are any. */
keyed as materialized (
    select
        d.id,
        d.queue,
        d.name,
        d.priority,
        d.available_at,
        d.concurrency_key,
        d.when_busy,
        coalesce(
            (
                select declared.amount
                from (
                    select
                        unnest(@limited::text[]) as name,
                        unnest(@limits::bigint[]) as amount
                ) as declared
                where declared.name = d.name
                limit 1
            ),
            d.concurrency_limit
        ) as amount,
        d.when_busy = 'wait'
        and d.waiting_since is null
        and exists (
            select 1
            from jobs.job as ahead
            where
                ahead.state = 'blocked'
                and ahead.concurrency_key = d.concurrency_key
                and ahead.queue = d.queue
                and ahead.priority <= d.priority
        ) as behind /* a newcomer goes to the end of the line, even when there is room */
    from due as d
    where d.concurrency_key is not null
),

busy as materialized (
    select
        k.concurrency_key,
        k.amount,
        coalesce(held.slots, '{}') as slots,
        coalesce(held.job_ids, '{}') as job_ids
    from (
        select
            w.concurrency_key,
            min(w.amount)::bigint as amount
        from keyed as w
        group by w.concurrency_key
    ) as k
    cross join lateral (
        select
            array_agg(s.slot) as slots,
            array_agg(s.job_id) as job_ids
        from jobs.slot as s
        where s.concurrency_key = k.concurrency_key
    ) as held
),

placed as materialized (
    select
        w.id,
        w.queue,
        w.concurrency_key,
        w.when_busy,
        w.amount,
        w.place,
        not w.waits and cardinality(w.slots) + w.place <= w.amount as fits
    from (
        select
            k.id,
            k.queue,
            k.concurrency_key,
            k.when_busy,
            b.amount,
            b.slots,
            /* its own slot of an earlier claim is about to be let go */
            k.behind or k.id = any(b.job_ids) as waits,
            row_number() over (
                partition by k.concurrency_key, k.behind or k.id = any(b.job_ids)
                order by k.priority, k.available_at, k.id
            ) as place
        from keyed as k
        inner join busy as b on k.concurrency_key = b.concurrency_key
    ) as w
),

vacant as materialized (
    select
        b.concurrency_key,
        free.slot,
        row_number() over (partition by b.concurrency_key order by random()) as place
    from busy as b
    cross join
        lateral (
            select generate_series(1, b.amount) as slot
            except
            select unnest(b.slots)
        ) as free
    where cardinality(b.slots) < b.amount
),

taken as (
    insert into jobs.slot (concurrency_key, slot, job_id)
    select
        p.concurrency_key,
        v.slot,
        p.id
    from placed as p
    inner join vacant as v on p.concurrency_key = v.concurrency_key and p.place = v.place
    where p.fits
    order by p.concurrency_key, v.slot
    on conflict do nothing
    returning job_id, concurrency_key
),

refused as (
    delete from jobs.job as j
    where
        j.id = any(array(
            select p.id
            from placed as p
            where
                not p.fits
                and p.when_busy = 'fail'
                and p.amount <= (
                    select count(*)
                    from jobs.slot as s
                    inner join jobs.job as holder on s.job_id = holder.id
                    where
                        s.concurrency_key = p.concurrency_key
                        and s.job_id <> p.id
                        and holder.state = 'running'
                        and holder.lease_expires_at > now()
                ) + (
                    select count(*) from taken as t where t.concurrency_key = p.concurrency_key
                ) /* proof that others run: a slot that was left behind is none */
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
        j.revoked,
        j.dead_letter,
        j.idempotency_scope,
        j.idempotency_key,
        j.concurrency_key,
        j.concurrency_limit,
        j.when_busy,
        j.traceparent,
        j.enqueued_by,
        j.worker,
        j.last_error,
        j.claimed_at,
        j.progress,
        j.progress_message,
        j.cancel_requested_at,
        j.cancel_reason,
        j.available_at,
        j.created_at,
        j.input
),

crowd as materialized (
    select beyond.id
    from (
        select distinct
            p.concurrency_key,
            p.queue
        from placed as p
        where not p.fits and p.when_busy = 'wait'
    ) as full_key
    cross join lateral (
        select probe.id
        from generate_series(0, 3) as q (priority)
        cross join
            lateral (
                select j.id
                from jobs.job as j
                where
                    j.concurrency_key = full_key.concurrency_key
                    and j.queue = full_key.queue
                    and j.priority = q.priority
                    and j.state = 'ready'
                    and j.available_at <= now()
                    and j.when_busy = 'wait'
                    and j.waiting_since is null /* those let out of the line are not put back */
                    and j.id <> all(array(select p.id from placed as p))
                order by j.available_at, j.id
                limit @park_limit::integer
                for no key update of j skip locked
            ) as probe
        limit @park_limit::integer
    ) as beyond
),

parked as (
    update jobs.job as j
    set
        state = 'blocked',
        waiting_since = coalesce(j.waiting_since, j.available_at)
    where
        j.id = any(array(
            select p.id
            from placed as p
            where not p.fits and p.id not in (select r.id from refused as r)
            union all
            select c.id from crowd as c
        ))
    returning j.id, j.queue, j.concurrency_key
),

buried as (
    insert into jobs.settled (
        id, run_id, queue, name, tenant, priority, attempt, max_attempts, claims, revoked, state,
        stop_reason, worker, last_error, dead_letter, idempotency_scope, idempotency_key,
        concurrency_key, concurrency_limit, when_busy, traceparent, enqueued_by, claimed_at,
        progress, progress_message, cancel_requested_at, cancel_reason, created_at, input
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
        l.concurrency_key,
        l.concurrency_limit,
        l.when_busy,
        l.traceparent,
        l.enqueued_by,
        l.claimed_at,
        l.progress,
        l.progress_message,
        l.cancel_requested_at,
        l.cancel_reason,
        l.created_at,
        l.input
    from lapsed as l
    where l.fate <> 'rescued'
    union all
    select
        r.id,
        r.run_id,
        r.queue,
        r.name,
        r.tenant,
        r.priority,
        r.attempt,
        r.max_attempts,
        r.claims,
        r.revoked,
        'failed',
        'refused',
        r.worker,
        r.last_error,
        r.dead_letter,
        r.idempotency_scope,
        r.idempotency_key,
        r.concurrency_key,
        r.concurrency_limit,
        r.when_busy,
        r.traceparent,
        r.enqueued_by,
        r.claimed_at,
        r.progress,
        r.progress_message,
        r.cancel_requested_at,
        r.cancel_reason,
        r.created_at,
        r.input
    from refused as r
    on conflict (id) do nothing /* one odd row must not fail its neighbours */
),

vacated as (
    delete from jobs.slot as s
    where
        s.job_id = any(array(
            select l.id
            from lapsed as l
            where l.fate <> 'rescued' and l.concurrency_key is not null
        ))
        and (select count(*) from taken) >= 0 /* after the inserts: no ring of waits */
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
        attempt = case when j.state = 'running' and j.ahead then j.attempt else j.attempt + 1 end,
        ahead = @ahead::boolean,
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
            select d.id
            from due as d
            where d.concurrency_key is null or d.id in (select t.job_id from taken as t)
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
        j.input::text as input,
        j.concurrency_key
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
    union all
    select
        date_trunc('minute', now()),
        r.name,
        'refused',
        count(*)
    from refused as r
    group by r.name
),

noticed as (
    select distinct
        'parked'::text as verdict,
        p.concurrency_key,
        p.queue
    from parked as p
    union all
    select distinct
        'again'::text,
        p.concurrency_key,
        p.queue
    from placed as p
    where p.fits and p.id not in (select t.job_id from taken as t)
    union all
    (
        select
            'blocked'::text,
            j.concurrency_key,
            j.queue
        from jobs.job as j
        where @sweep::boolean and j.state = 'blocked'
        limit 1
    )
    union all
    (
        select
            'held'::text,
            s.concurrency_key,
            ''::text
        from jobs.slot as s
        where @sweep::boolean
        limit 1
    )
)

select
    'claimed'::text as verdict,
    c.id,
    c.run_id::text as run_id, /* text, and epochs: cheaper to write and to read */
    c.queue,
    c.name,
    c.tenant,
    c.priority,
    c.attempt,
    c.max_attempts,
    c.claims,
    date_part('epoch', c.available_at) as available_epoch,
    date_part('epoch', c.created_at) as created_epoch,
    c.traceparent,
    c.enqueued_by,
    c.input,
    c.concurrency_key
from claimed as c
union all
select
    (case l.fate when 'dead' then 'buried' else l.fate end)::text,
    l.id,
    l.run_id::text,
    l.queue,
    l.name,
    l.tenant,
    l.priority,
    l.attempt,
    l.max_attempts,
    l.claims,
    date_part('epoch', l.available_at),
    date_part('epoch', l.created_at),
    l.traceparent,
    l.enqueued_by,
    l.input::text,
    l.concurrency_key
from lapsed as l
where l.fate <> 'rescued'
union all
select
    'refused'::text,
    r.id,
    r.run_id::text,
    r.queue,
    r.name,
    r.tenant,
    r.priority,
    r.attempt,
    r.max_attempts,
    r.claims,
    date_part('epoch', r.available_at),
    date_part('epoch', r.created_at),
    r.traceparent,
    r.enqueued_by,
    r.input::text,
    r.concurrency_key
from refused as r
union all
select
    n.verdict,
    '00000000-0000-0000-0000-000000000000'::uuid,
    ''::text,
    n.queue,
    ''::text,
    ''::text,
    0::smallint,
    0::bigint,
    0::bigint,
    0::bigint,
    0::double precision,
    0::double precision,
    null,
    null,
    ''::text,
    n.concurrency_key
from noticed as n;
