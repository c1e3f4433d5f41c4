-- name: PromoteKeys :many
-- purpose: let the jobs at the head of the lines of some concurrency keys out, as many as there are
--     free slots that no ready job is going to take. A sweep adds the next @most keys behind @after
--     that have a line at all. @tidy gives up slots of these keys that were left behind.
-- callers: jobs.worker.slots (after the commit of a claim that parked or ended jobs of a key, and
--     of a settle that let go of its slots; as a sweep every few seconds), jobs.control.cancelling
-- tx: own autocommitted statement; a fresh snapshot is the point
-- locks: jobs.job rows, no key update, skip locked; with @tidy jobs.slot rows, for update, skip
--     locked. Waits for nobody.
-- index: job_blocked_idx, job_keyed_idx, slot_pkey; with @tidy job_pkey and slot_job_key
-- fence: none, a blocked job is held by nobody, and so is a slot whose job does not run: a claim
--     takes a slot and makes its job run in one statement, and no slot is used twice.
-- clock: clock_timestamp() for the new due time, so that it lies behind what was claimed before
-- rows: promoted, one a key and queue; again (some at the head were locked by others: promote this
--     key once more); cursor (of a sweep, where it has looked at @most keys: the last of them).
-- cost: five probes a key and queue, two more for each slot held, one update for each job let out.
--     A sweep is one probe for each key with a line, @tidy one for each slot held.
-- nullable: -concurrency_key, queue
with /* jobs:promote_keys */ recursive swept as (
    select
        (
            select j.concurrency_key
            from jobs.job as j
            where j.state = 'blocked' and j.concurrency_key > @after::text
            order by j.concurrency_key
            limit 1
        ) as concurrency_key,
        1 as place
    where @most::integer > 0
    union all
    select
        (
            select j.concurrency_key
            from jobs.job as j
            where j.state = 'blocked' and j.concurrency_key > k.concurrency_key
            order by j.concurrency_key
            limit 1
        ),
        k.place + 1
    from swept as k
    where k.concurrency_key is not null and k.place < @most::integer
),

asked as materialized (
    select unnest(@keys::text[]) as concurrency_key
    union
    select k.concurrency_key
    from swept as k
    where k.concurrency_key is not null
),

orphan as materialized (
    select left_behind.job_id
    from asked as a
    cross join lateral (
        select s.job_id
        from jobs.slot as s
        where
            @tidy::boolean
            and s.concurrency_key = a.concurrency_key
            /* no join: it would read all running jobs */
            and (select j.state from jobs.job as j where j.id = s.job_id)
            is distinct from 'running'
        for update of s skip locked
    ) as left_behind
),

vacated as (
    delete from jobs.slot as s
    where s.job_id = any(array(select o.job_id from orphan as o))
),

lane as (
    select
        a.concurrency_key,
        (
            select j.queue
            from jobs.job as j
            where j.state = 'blocked' and j.concurrency_key = a.concurrency_key
            order by j.queue
            limit 1
        ) as queue
    from asked as a
    union all
    select
        l.concurrency_key,
        (
            select j.queue
            from jobs.job as j
            where
                j.state = 'blocked'
                and j.concurrency_key = l.concurrency_key
                and j.queue > l.queue
            order by j.queue
            limit 1
        )
    from lane as l
    where l.queue is not null
),

head as materialized (
    select
        l.concurrency_key,
        l.queue,
        first.amount,
        (
            select count(*)
            from jobs.slot as s
            where
                s.concurrency_key = l.concurrency_key
                and s.job_id <> all(array(select o.job_id from orphan as o))
        ) + (
            select count(*)
            from (
                select 1
                from jobs.job as j
                where
                    j.state = 'ready'
                    and j.concurrency_key = l.concurrency_key
                    and j.queue = l.queue
                    and j.available_at <= now()
                limit first.amount
            ) as promised
        ) as spoken_for
    from lane as l
    cross join
        lateral (
            select
                coalesce(
                    (
                        select declared.amount
                        from (
                            select
                                unnest(@limited::text[]) as name,
                                unnest(@limits::bigint[]) as amount
                        ) as declared
                        where declared.name = j.name
                        limit 1
                    ),
                    j.concurrency_limit
                ) as amount
            from jobs.job as j
            where
                j.state = 'blocked' and j.concurrency_key = l.concurrency_key and j.queue = l.queue
            order by j.priority, j.waiting_since, j.id
            limit 1
        ) as first
    where l.queue is not null
),

heir as materialized (
    select
        h.concurrency_key,
        h.queue,
        h.spoken_for,
        found.id,
        coalesce(
            (
                select declared.amount
                from (
                    select
                        unnest(@limited::text[]) as name,
                        unnest(@limits::bigint[]) as amount
                ) as declared
                where declared.name = found.name
                limit 1
            ),
            found.concurrency_limit
        ) as amount,
        row_number() over (
            partition by h.concurrency_key, h.queue
            order by found.priority, found.waiting_since, found.id
        ) as place
    from head as h
    cross join lateral (
        select
            j.id,
            j.name,
            j.priority,
            j.waiting_since,
            j.concurrency_limit
        from jobs.job as j
        where
            j.state = 'blocked' and j.concurrency_key = h.concurrency_key and j.queue = h.queue
        order by j.priority, j.waiting_since, j.id
        limit greatest(0, h.amount - h.spoken_for)
        for no key update of j skip locked
    ) as found
),

promoted as (
    update jobs.job as j
    set
        state = 'ready',
        available_at = clock_timestamp()
    where
        j.id = any(array(
            /* jobs that share a key may declare different limits: each keeps to its own */
            select h.id from heir as h where h.spoken_for + h.place <= h.amount
        ))
    returning j.concurrency_key, j.queue
)

select distinct
    'promoted'::text as verdict,
    p.concurrency_key,
    p.queue
from promoted as p
union all
select
    'again'::text,
    h.concurrency_key,
    h.queue
from head as h
where
    (
        select count(*)
        from heir as f
        where f.concurrency_key = h.concurrency_key and f.queue = h.queue
    ) < (
        select count(*)
        from (
            select 1
            from jobs.job as j
            where
                j.state = 'blocked' and j.concurrency_key = h.concurrency_key and j.queue = h.queue
            limit greatest(0, h.amount - h.spoken_for)
        ) as blocked
    )
union all
select
    'cursor'::text,
    k.concurrency_key,
    null
from swept as k
where k.place = @most::integer and k.concurrency_key is not null;

-- name: SweepSlots :many
-- purpose: give up slots that were left behind: their jobs do not run any more. A worker that dies
--     between the commit of run.complete() and the settle after it leaves one, and an operator who
--     cancels a job with a lapsed lease in a transaction.
-- callers: jobs.worker.slots (now and then while slots are held)
-- tx: own autocommitted statement
-- locks: jobs.slot rows, for update, skip locked. Waits for nobody.
-- index: slot_job_key, job_pkey
-- fence: none, a claim takes a slot and makes its job run in one statement, and no slot is used
--     twice, so that one without a running job is nobody's.
-- rows: the key of each slot that was given up; and the job of the last slot looked at, where
--     there may be more behind it
-- cost: two probes for each slot looked at, which are @most in order of their jobs behind @after
-- nullable: concurrency_key, cursor
with /* jobs:sweep_slots */ looked_at as materialized (
    select
        s.job_id,
        (select j.state from jobs.job as j where j.id = s.job_id) as state
    from jobs.slot as s
    where s.job_id > @after::uuid
    order by s.job_id
    limit @most::integer
),

orphan as materialized (
    select s.job_id
    from jobs.slot as s
    where
        s.job_id = any(array(
            select l.job_id from looked_at as l where l.state is distinct from 'running'
        ))
    for update of s skip locked
),

vacated as (
    delete from jobs.slot as s
    where s.job_id = any(array(select o.job_id from orphan as o))
    returning s.concurrency_key
)

select
    v.concurrency_key,
    null::uuid as cursor
from vacated as v
union all
select
    null,
    last_one.job_id
from (
    select l.job_id
    from looked_at as l
    order by l.job_id desc
    limit 1
) as last_one
where (select count(*) from looked_at) = @most::integer;
