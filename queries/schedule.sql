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

-- name: ArmSchedules :one
-- purpose: note the tasks that a process declares. One that is seen for the first time is armed:
--     dealt with up to now, so that it never fires in the past; so is one whose timing was changed.
-- callers: jobs.scheduler.leading, when a scheduler starts, begins to lead, or is left alone
-- tx: own autocommitted statement
-- locks: the rows it changes, skip locked; then those it inserts, in order of name. Waits only for
--     an open transaction that makes a schedule of such a name.
-- index: schedule_pkey
-- fence: stored schedules of the same name are left alone
-- clock: statement_timestamp(). The watermark only moves forward.
-- rows: one: how many were new or changed (armed), and how many are still to be changed, because
--     another session holds them (busy)
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
),

stale as materialized (
    select s.name
    from declared as d
    inner join jobs.schedule as s on d.name = s.name
    where
        @replace::boolean /* a leader's declarations count */
        and s.source = 'declared'
        and (s.cron, s.every, s.anchor, s.tz, s.catch_up, s.max_catch_up)
        is distinct from (d.cron, d.every, d.anchor, d.tz, d.catch_up, d.max_catch_up)
),

held as materialized (
    select s.name
    from declared as d
    inner join jobs.schedule as s on d.name = s.name
    where
        s.name = any(array(select t.name from stale as t))
        and s.source = 'declared' /* as it is now, and not as it was */
        and (s.cron, s.every, s.anchor, s.tz, s.catch_up, s.max_catch_up)
        is distinct from (d.cron, d.every, d.anchor, d.tz, d.catch_up, d.max_catch_up)
    for update of s skip locked
),

changed as (
    update jobs.schedule as s
    set
        cron = d.cron,
        every = d.every,
        anchor = d.anchor,
        tz = d.tz,
        catch_up = d.catch_up,
        max_catch_up = d.max_catch_up,
        watermark = case
            when
                (s.cron, s.every, s.anchor, s.tz)
                is distinct from (d.cron, d.every, d.anchor, d.tz)
                then greatest(s.watermark, statement_timestamp())
            else s.watermark
        end,
        catch_up_left = null,
        catch_up_until = null,
        error = null,
        error_at = null,
        revision = s.revision + 1,
        changed_at = statement_timestamp()
    from declared as d
    where
        s.name = any(array(select h.name from held as h))
        and d.name = s.name
    returning s.name
),

added as (
    insert into jobs.schedule (
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
    where not exists (select 1 from jobs.schedule as s where s.name = d.name)
    order by d.name
    on conflict (name) do nothing
    returning name
)

select
    ((select count(*) from changed) + (select count(*) from added))::bigint as armed,
    ((select count(*) from stale) - (select count(*) from changed))::bigint as busy;

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
-- errors: serialization failure in a REPEATABLE READ transaction older than the newest change of a
--     row
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
-- locks: the row of the schedule. Waits for a fire of it, and for an open transaction that changes
--     or removes it.
-- index: schedule_pkey
-- fence: revision, so that of two changes at once neither undoes the other unseen
-- clock: statement_timestamp(). Only where it is asked does the watermark move back.
-- rows: 1, or 0 where it is gone or was changed meanwhile
-- cost: one update
-- errors: serialization failure in a REPEATABLE READ transaction older than the newest change of a
--     row
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
-- locks: the rows it deletes. Waits for a fire of the schedule, and for an open transaction that
--     changes, removes or resumes it.
-- index: schedule_pkey, pause_pkey
-- fence: none, whoever fires meanwhile finds it gone or still there
-- rows: 1, or 0 where there is none of that name
-- cost: two deletes
-- errors: serialization failure in a REPEATABLE READ transaction older than the newest change of a
--     row
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
-- locks: the new row. Waits for an open transaction that pauses or resumes the same schedule.
-- index: pause_pkey
-- fence: none, a fire looks at the pause in its own statement
-- rows: 1, or 0 where it was paused already
-- cost: one insert
-- errors: serialization failure in a REPEATABLE READ transaction older than the newest change of a
--     row
insert /* jobs:pause_task */ into jobs.pause (kind, name, paused_by)
values ('task', @name::text, sqlc.narg('paused_by')::text)
on conflict (kind, name) do nothing;

-- name: ResumeTask :execrows
-- purpose: let a paused schedule fire again.
-- callers: jobs.control.scheduling (resume_task)
-- tx: own autocommitted statement, or the transaction of the caller
-- locks: the row it deletes. Waits for an open transaction that resumes or removes it.
-- index: pause_pkey
-- fence: none, as its pause
-- rows: 1, or 0 where it was not paused
-- cost: one delete
-- errors: serialization failure in a REPEATABLE READ transaction older than the newest change of a
--     row
delete /* jobs:resume_task */ from jobs.pause as p
where p.kind = 'task' and p.name = @name::text;
