-- name: TickScheduler :one
-- purpose: keep or take the lease of those that can fire the same, which is their role, and learn
--     the time of the database and whether any schedule or pause of a task was changed.
-- callers: jobs.scheduler.dispatcher, every 10 s: all that an idle scheduler sends; besides, when
--     the lease of another lapses, while a function keeps a leader waiting, and after a fire that
--     came to nothing
-- tx: own autocommitted statement
-- locks: the row of jobs.leader, for the moment. Waits for another tick, for one that resigns, and
--     for the end of a fire, which takes it last, only.
-- index: leader_pkey
-- fence: none, the lease only saves work: a fire is fenced by the watermark
-- clock: statement_timestamp(). A lease that ends later than if it were given now was given before
--     the clock was set back, and counts as ended.
-- rows: one. expires_at: of this lease, or of the one that another holds. alone: no lease of
--     another role is held. fingerprint differs from that of another tick where a schedule or the
--     pause of a task came, went or was changed between the two; a fire changes nothing of it.
-- cost: one heap-only update by the leader, a row lock by the others; reads all of jobs.leader, a
--     row a role, and of jobs.schedule, a few pages for a hundred schedules
with /* jobs:tick_scheduler */ held as (
    insert into jobs.leader as l (role, holder, lease, expires_at)
    values (
        @role::text,
        @holder::text,
        @lease::interval,
        statement_timestamp() + @lease::interval
    )
    on conflict (role) do update
        set
            holder = excluded.holder,
            lease = excluded.lease,
            expires_at = excluded.expires_at
        where
        l.holder = excluded.holder
        or l.expires_at <= statement_timestamp()
        or l.expires_at > statement_timestamp() + l.lease
    returning l.role, l.expires_at
),

known as (
    select
        count(*) as amount,
        coalesce(
            sum(hashtext(s.name || '/' || s.revision || '/' || extract(epoch from s.created_at))),
            0
        ) as digest
    from jobs.schedule as s
),

paused as (
    select
        count(*) as amount,
        coalesce(sum(hashtext(p.name)), 0) as digest
    from jobs.pause as p
    where p.kind = 'task'
)

select
    coalesce(h.role = @role::text, false)::boolean as leads,
    (not exists (
        select 1
        from jobs.leader as o
        where
            o.role <> @role::text
            and o.expires_at > statement_timestamp()
            and o.expires_at <= statement_timestamp() + o.lease
    ))::boolean as alone,
    statement_timestamp()::timestamptz as read_at,
    coalesce(
        h.expires_at,
        (select l.expires_at from jobs.leader as l where l.role = @role::text),
        statement_timestamp() /* given since this statement began */
    )::timestamptz as expires_at,
    (k.amount || ':' || k.digest || '/' || p.amount || ':' || p.digest)::text as fingerprint
from known as k
cross join paused as p
left join held as h on true;

-- name: ResignScheduler :execrows
-- purpose: let another scheduler take over at once. What leases of other roles have left behind, of
--     versions that run no more, is removed with it after a day.
-- callers: jobs.scheduler.dispatcher, when it has stopped in order
-- tx: own autocommitted statement
-- locks: the row it deletes; of those left behind, skip locked
-- index: none
-- fence: holder, so that a lease which another has taken stays
-- clock: statement_timestamp()
-- rows: one each that was removed
-- cost: reads all of jobs.leader, a row a role; one delete each
delete /* jobs:resign_scheduler */ from jobs.leader as l
where
    (l.role = @role::text and l.holder = @holder::text)
    or l.role = any(array(
        select o.role
        from jobs.leader as o
        where o.expires_at < statement_timestamp() - interval '1 day'
        for update of o skip locked
    ));
