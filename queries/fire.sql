-- name: FireSchedule :one
-- purpose: fire one occurrence: move the watermark from the value that was read, and insert its
--     jobs only where it moved. A fire renews the lease of the leader, which is of a role.
-- callers: jobs.scheduler.firing
-- tx: own autocommitted statement
-- locks: the row of the schedule for update, skip locked, then the new jobs in order of (name,
--     tenant, key digest, id) by their bytes, as PublishJobs. Waits as EnqueueJobs does, and for
--     nobody else: who changes a schedule in a long transaction must not hold up the others. Last
--     the row of jobs.leader, so that no tick waits for what the jobs wait for.
-- index: schedule_pkey, pause_pkey, job_pkey, job_unique_idx, wake_queue_idx, leader_pkey
-- fence: watermark and revision of the schedule. Nothing is inserted for one that is paused, nor
--     before its time has come.
-- clock: statement_timestamp() decides whether it is due; clock_timestamp() for the jobs
-- rows: one. verdict: fired; moved (another has fired it); changed; paused; early; gone (there is
--     no such schedule); busy (another session holds the row, or has just let go of it: try again,
--     and see). job_count: how many jobs were inserted, less where a key was taken. leads: whether
--     the lease was renewed.
-- cost: two heap-only updates, and as EnqueueJobs for the jobs; one probe where nothing is fired
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
    for update of s skip locked
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
),

renewed as (
    update jobs.leader as l
    set
        lease = @lease::interval,
        expires_at = statement_timestamp() + @lease::interval
    where
        l.role = @role::text
        and l.holder = @holder::text
        and exists (select m.name from moved as m)
        and (select count(a.id) from added as a) >= 0 /* behind the jobs */
    returning l.role
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
        when s.watermark = @watermark::timestamptz and s.watermark < @next_watermark::timestamptz
            then 'busy'
        else 'moved'
    end)::text as verdict,
    statement_timestamp()::timestamptz as read_at,
    (select count(a.id) from added as a)::bigint as job_count,
    coalesce((select n.role from renewed as n) = @role::text, false)::boolean as leads
from (select @name::text as name) as wanted
left join jobs.schedule as s on wanted.name = s.name;

-- name: MarkSchedule :execrows
-- purpose: say on the row why a schedule does not fire, or that it would again.
-- callers: jobs.scheduler.dispatcher, when that begins, ends, or has another reason
-- tx: own autocommitted statement
-- locks: the row of the schedule, skip locked. Waits for nobody.
-- index: schedule_pkey
-- fence: revision, so that a change is not blamed for what was there before it; watermark, so that
--     nothing is said of an occurrence that another has fired
-- clock: statement_timestamp()
-- rows: 1, or 0 where it was said before, the schedule was changed or fired, or another session
--     holds it
-- cost: one heap-only update, or one probe
update /* jobs:mark_schedule */ jobs.schedule as s
set
    error = sqlc.narg('error')::text,
    error_at = case when sqlc.narg('error')::text is not null then statement_timestamp() end
where
    s.name = any(array(
        select held.name
        from jobs.schedule as held
        where
            held.name = @name::text
            and held.revision = @revision::bigint
            and held.watermark = @watermark::timestamptz
            and held.error is distinct from sqlc.narg('error')::text
        for update of held skip locked
    ));
