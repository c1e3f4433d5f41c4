-- name: TickScheduler :one
-- purpose: keep or take the lease of the scheduler, and learn the time of the database and whether
--     any schedule or pause of a task was changed.
-- callers: jobs.scheduler.dispatcher, every 10 s: all that an idle scheduler sends
-- tx: own autocommitted statement
-- locks: the row of jobs.leader, for the moment. Waits for another tick only.
-- index: leader_pkey
-- fence: none, the lease only saves work: a fire is fenced by the watermark
-- clock: statement_timestamp(). A lease that ends later than if it were given now was given before
--     the clock was set back, and counts as ended.
-- rows: one. fingerprint differs from that of another tick where a schedule or the pause of a task
--     came, went or was changed between the two; a fire changes nothing of it.
-- cost: one heap-only update by the leader, a row lock by the others; reads all of jobs.schedule,
--     a few pages for a hundred schedules
with /* jobs:tick_scheduler */ held as (
    insert into jobs.leader as l (role, holder, lease, expires_at)
    values (
        'scheduler',
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
    returning l.role
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
    coalesce(h.role = 'scheduler', false)::boolean as leads,
    statement_timestamp()::timestamptz as read_at,
    (k.amount || ':' || k.digest || '/' || p.amount || ':' || p.digest)::text as fingerprint
from known as k
cross join paused as p
left join held as h on true;

-- name: ResignScheduler :execrows
-- purpose: let another scheduler take over at once.
-- callers: jobs.scheduler.dispatcher, when it has stopped in order
-- tx: own autocommitted statement
-- locks: the row it deletes
-- index: leader_pkey
-- fence: holder, so that a lease which another has taken stays
-- rows: 1, or 0 where another leads
-- cost: one delete
delete /* jobs:resign_scheduler */ from jobs.leader as l
where l.role = 'scheduler' and l.holder = @holder::text;

-- name: ListSchedules :many
-- purpose: all schedules, or one, with whether they are paused.
-- callers: jobs.scheduler.dispatcher, once it leads and when the fingerprint has changed;
--     jobs.control.scheduling
-- tx: any
-- locks: none
-- index: schedule_pkey, pause_pkey
-- fence: none, it reads
-- rows: one a schedule, in order of name by its bytes
-- cost: reads all of jobs.schedule with the inputs, or one row
-- nullable: @name, input
select /* jobs:list_schedules */
    s.name,
    s.source,
    s.cron,
    s.every,
    s.anchor,
    s.tz,
    s.catch_up,
    s.max_catch_up,
    s.job,
    s.input::text as input,
    s.revision,
    s.watermark,
    s.catch_up_left,
    s.catch_up_until,
    s.last_occurrence,
    s.last_fired_at,
    s.error,
    s.error_at,
    s.created_at,
    s.changed_at,
    coalesce(p.kind = 'task', false)::boolean as paused,
    statement_timestamp()::timestamptz as read_at
from jobs.schedule as s
left join jobs.pause as p on s.name = p.name and p.kind = 'task'
where sqlc.narg('name')::text is null or s.name = sqlc.narg('name')::text
order by convert_to(s.name, 'UTF8');

-- name: ArmSchedules :execrows
-- purpose: note the tasks that a process declares. One that is seen for the first time is armed:
--     dealt with up to now, so that it never fires in the past; so is one whose timing was changed.
-- callers: jobs.scheduler.dispatcher, when it starts and when it begins to lead
-- tx: own autocommitted statement
-- locks: the rows it inserts or changes, in order of name
-- index: schedule_pkey
-- fence: stored schedules of the same name are left alone
-- clock: statement_timestamp(). The watermark only moves forward.
-- rows: how many were new or changed
-- cost: one probe a task; one insert or update for each that is new or changed
with /* jobs:arm_schedules */ declared as materialized (
    select
        unnest(@names::text[]) as name,
        unnest(@crons::text[]) as cron,
        unnest(@everys::interval[]) as every,
        unnest(@anchors::timestamptz[]) as anchor,
        unnest(@tzs::text[]) as tz,
        unnest(@catch_ups::text[]) as catch_up,
        unnest(@max_catch_ups::bigint[]) as max_catch_up
)

insert into jobs.schedule as s (
    name, source, cron, every, anchor, tz, catch_up, max_catch_up, watermark
)
select
    d.name,
    'declared',
    d.cron,
    d.every,
    d.anchor,
    d.tz,
    d.catch_up,
    d.max_catch_up,
    statement_timestamp()
from declared as d
order by d.name
on conflict (name) do update
    set
        cron = excluded.cron,
        every = excluded.every,
        anchor = excluded.anchor,
        tz = excluded.tz,
        catch_up = excluded.catch_up,
        max_catch_up = excluded.max_catch_up,
        watermark = case
            when
                (s.cron, s.every, s.anchor, s.tz)
                is distinct from (excluded.cron, excluded.every, excluded.anchor, excluded.tz)
                then greatest(s.watermark, statement_timestamp())
            else s.watermark
        end,
        catch_up_left = null,
        catch_up_until = null,
        error = null,
        error_at = null,
        revision = s.revision + 1,
        changed_at = statement_timestamp()
    where
    @replace::boolean /* a leader's declarations count */
    and s.source = 'declared'
    and (s.cron, s.every, s.anchor, s.tz, s.catch_up, s.max_catch_up)
    is distinct from (
        excluded.cron, excluded.every, excluded.anchor, excluded.tz, excluded.catch_up,
        excluded.max_catch_up
    );

-- name: FireSchedule :one
-- purpose: fire one occurrence: move the watermark from the value that was read, and insert its
--     jobs only where it moved.
-- callers: jobs.scheduler.dispatcher
-- tx: own autocommitted statement
-- locks: the row of the schedule for update, then the new jobs in order of (name, tenant, key
--     digest, id) by their bytes, as a bulk enqueue. Waits for another fire of the same schedule,
--     which then has moved the watermark. Waits otherwise as EnqueueJobs does.
-- index: schedule_pkey, pause_pkey, job_pkey, job_unique_idx, wake_queue_idx
-- fence: watermark and revision of the schedule. Nothing is inserted for one that is paused, nor
--     before its time has come.
-- clock: statement_timestamp() decides whether it is due; clock_timestamp() for the jobs
-- rows: one. verdict: fired; moved (another has fired it); changed; paused; early; gone (there is
--     no such schedule). job_count: how many jobs were inserted, less where a key was taken.
-- cost: one heap-only update, and as EnqueueJobs for the jobs; one probe where nothing is fired
-- errors: lock timeout, deadlock or serialization failure
-- notify: as EnqueueJob, once a queue
with /* jobs:fire_schedule */ held as materialized (
    select s.name
    from jobs.schedule as s
    where
        s.name = @name::text
        and s.watermark = @watermark::timestamptz
        and s.revision = @revision::bigint
        and s.watermark < @next_watermark::timestamptz
        and @occurrence::timestamptz <= statement_timestamp()
        and not exists (select 1 from jobs.pause as p where p.kind = 'task' and p.name = s.name)
    for update of s
),

moved as (
    update jobs.schedule as s
    set
        watermark = @next_watermark::timestamptz,
        last_occurrence = @occurrence::timestamptz,
        last_fired_at = statement_timestamp(),
        catch_up_left = sqlc.narg('catch_up_left')::bigint,
        catch_up_until = sqlc.narg('catch_up_until')::timestamptz,
        error = null,
        error_at = null
    where s.name = any(array(select h.name from held as h))
    returning s.name
),

asked as materialized (
    select
        listed.id,
        listed.run_id,
        listed.queue,
        listed.name,
        listed.tenant,
        listed.priority,
        coalesce(listed.run_at, clock_timestamp() + listed.delay) as available_at,
        listed.max_attempts,
        listed.dead_letter,
        listed.idempotency_scope,
        listed.idempotency_key,
        sha256(convert_to(listed.idempotency_key, 'UTF8')) as unique_key,
        listed.concurrency_key,
        listed.concurrency_limit,
        listed.when_busy,
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
            unnest(@concurrency_keys::text[]) as concurrency_key,
            unnest(@concurrency_limits::bigint[]) as concurrency_limit,
            unnest(@when_busys::text[]) as when_busy,
            unnest(@inputs::text[]) as input
    ) as listed
),

added as (
    insert into jobs.job (
        id, run_id, queue, name, tenant, priority, available_at, max_attempts, dead_letter,
        idempotency_scope, idempotency_key, unique_key, concurrency_key, concurrency_limit,
        when_busy, enqueued_by, input
    )
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
        a.concurrency_key,
        a.concurrency_limit,
        a.when_busy,
        @enqueued_by::text,
        a.input::json
    from asked as a
    where exists (select m.name from moved as m)
    order by convert_to(a.name, 'UTF8'), convert_to(a.tenant, 'UTF8'), a.unique_key, a.id
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
        case
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
    (case
        when exists (select m.name from moved as m) then 'fired'
        when s.name is null then 'gone'
        when s.revision <> @revision::bigint then 'changed'
        when
            exists (select 1 from jobs.pause as p where p.kind = 'task' and p.name = s.name)
            then 'paused'
        when @occurrence::timestamptz > statement_timestamp() then 'early'
        else 'moved'
    end)::text as verdict,
    statement_timestamp()::timestamptz as read_at,
    (select count(a.id) from added as a)::bigint as job_count
from (select @name::text as name) as wanted
left join jobs.schedule as s on wanted.name = s.name;

-- name: MarkSchedule :execrows
-- purpose: say on the row why a schedule does not fire, or that it would again.
-- callers: jobs.scheduler.dispatcher, when that begins, ends, or has another reason
-- tx: own autocommitted statement
-- locks: the row of the schedule
-- index: schedule_pkey
-- fence: revision, so that a change is not blamed for what was there before it
-- clock: statement_timestamp()
-- rows: 1, or 0 where it was said before, or the schedule was changed
-- cost: one heap-only update, or one probe
update /* jobs:mark_schedule */ jobs.schedule as s
set
    error = sqlc.narg('error')::text,
    error_at = case when sqlc.narg('error')::text is not null then statement_timestamp() end
where
    s.name = @name::text
    and s.revision = @revision::bigint
    and s.error is distinct from sqlc.narg('error')::text;

-- name: CreateSchedule :execrows
-- purpose: make a schedule at run time, armed now.
-- callers: jobs.control.scheduling (create_schedule)
-- tx: own autocommitted statement, or the transaction of the caller
-- locks: the new row. Waits for an open transaction that makes one of the same name.
-- index: schedule_pkey
-- fence: none, nothing has read it yet
-- clock: statement_timestamp()
-- rows: 1, or 0 where there is one of that name
-- cost: one insert
-- nullable: @cron, @every, @anchor
insert /* jobs:create_schedule */ into jobs.schedule (
    name, source, cron, every, anchor, tz, catch_up, max_catch_up, job, input, watermark
)
values (
    @name::text, 'stored', sqlc.narg('cron')::text, sqlc.narg('every')::interval,
    sqlc.narg('anchor')::timestamptz, @tz::text, @catch_up::text, @max_catch_up::bigint,
    @job::text, @input::json, statement_timestamp()
)
on conflict (name) do nothing;

-- name: ChangeSchedule :execrows
-- purpose: change a schedule that was made at run time. It is armed anew where its timing is
--     changed, or where that is asked.
-- callers: jobs.control.scheduling (change_schedule, rearm_schedule)
-- tx: own autocommitted statement, or the transaction of the caller
-- locks: the row of the schedule
-- index: schedule_pkey
-- fence: revision, so that of two changes at once neither undoes the other unseen
-- clock: statement_timestamp(). Only where it is asked does the watermark move back.
-- rows: 1, or 0 where it is gone or was changed meanwhile
-- cost: one update
-- nullable: @cron, @every, @anchor, @job, @input
update /* jobs:change_schedule */ jobs.schedule as s
set
    cron = sqlc.narg('cron')::text,
    every = sqlc.narg('every')::interval,
    anchor = sqlc.narg('anchor')::timestamptz,
    tz = @tz::text,
    catch_up = @catch_up::text,
    max_catch_up = @max_catch_up::bigint,
    job = sqlc.narg('job')::text,
    input = sqlc.narg('input')::json,
    watermark = case
        when @rearm::boolean then statement_timestamp()
        when
            (s.cron, s.every, s.anchor, s.tz)
            is distinct from (
                sqlc.narg('cron')::text, sqlc.narg('every')::interval,
                sqlc.narg('anchor')::timestamptz, @tz::text
            )
            then greatest(s.watermark, statement_timestamp())
        else s.watermark
    end,
    catch_up_left = null,
    catch_up_until = null,
    error = null,
    error_at = null,
    revision = s.revision + 1,
    changed_at = statement_timestamp()
where s.name = @name::text and s.revision = @revision::bigint;

-- name: RemoveSchedule :execrows
-- purpose: remove a schedule, and its pause with it. Jobs that it has enqueued stay.
-- callers: jobs.control.scheduling (remove_schedule)
-- tx: own autocommitted statement, or the transaction of the caller
-- locks: the rows it deletes
-- index: schedule_pkey, pause_pkey
-- fence: none, whoever fires meanwhile finds it gone or still there
-- rows: 1, or 0 where there is none of that name
-- cost: two deletes
with /* jobs:remove_schedule */ gone as (
    delete from jobs.pause as p
    where p.kind = 'task' and p.name = @name::text
)

delete from jobs.schedule as s
where s.name = @name::text;

-- name: PauseTask :execrows
-- purpose: keep a schedule from firing. Its watermark stays where it is, so that what it misses is
--     for its catch-up when it is resumed.
-- callers: jobs.control.scheduling (pause_task)
-- tx: own autocommitted statement, or the transaction of the caller
-- locks: the new row
-- index: pause_pkey
-- fence: none, a fire looks at the pause in its own statement
-- rows: 1, or 0 where it was paused already
-- cost: one insert
insert /* jobs:pause_task */ into jobs.pause (kind, name, paused_by)
values ('task', @name::text, sqlc.narg('paused_by')::text)
on conflict (kind, name) do nothing;

-- name: ResumeTask :execrows
-- purpose: let a paused schedule fire again.
-- callers: jobs.control.scheduling (resume_task)
-- tx: own autocommitted statement, or the transaction of the caller
-- locks: the row it deletes
-- index: pause_pkey
-- fence: none, as its pause
-- rows: 1, or 0 where it was not paused
-- cost: one delete
delete /* jobs:resume_task */ from jobs.pause as p
where p.kind = 'task' and p.name = @name::text;
