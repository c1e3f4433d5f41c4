-- what:     schedules, declared ones and those made at run time, and the lease of the scheduler
-- lock:     none on existing objects
-- time:     constant
-- rollback: drop the two tables, once no process that needs version 3 runs any more

-- Up to where a schedule has been dealt with is its watermark. A fire moves it on, from the value
-- that the scheduler has read and in the statement that inserts the jobs. So each occurrence fires
-- at most once, however many schedulers there are.
create table jobs.schedule (
    watermark timestamptz not null default clock_timestamp(),
    last_occurrence timestamptz,
    last_fired_at timestamptz,
    catch_up_until timestamptz,
    error_at timestamptz,
    created_at timestamptz not null default clock_timestamp(),
    changed_at timestamptz not null default clock_timestamp(),
    revision bigint not null default 1,
    catch_up_left bigint,
    max_catch_up bigint not null default 10,
    anchor timestamptz,
    every interval,
    name text not null,
    source text not null,
    cron text,
    tz text not null,
    catch_up text not null default 'skip',
    job text,
    error text,
    input json,
    constraint schedule_pkey primary key (name),
    constraint schedule_name_check check (octet_length(name) between 1 and 255),
    constraint schedule_source_check check (source in ('declared', 'stored')),
    constraint schedule_job_check check (
        (source = 'stored') = (job is not null) and (source = 'stored') = (input is not null)
    ),
    constraint schedule_timing_check check ((cron is null) <> (every is null)),
    constraint schedule_catch_up_check check (
        catch_up in ('skip', 'run_once', 'run_all') and max_catch_up >= 1
    ),
    -- what Python cannot read would fail the reading of all the others
    constraint schedule_every_check check (every between '1 second' and '3650 days'),
    constraint schedule_time_check check (
        watermark between '1900-01-01 00:00+00' and '3000-01-01 00:00+00'
        and last_occurrence between '1900-01-01 00:00+00' and '9000-01-01 00:00+00'
        and last_fired_at between '1900-01-01 00:00+00' and '9000-01-01 00:00+00'
        and catch_up_until between '1900-01-01 00:00+00' and '9000-01-01 00:00+00'
        and error_at between '1900-01-01 00:00+00' and '9000-01-01 00:00+00'
        and created_at between '1900-01-01 00:00+00' and '9000-01-01 00:00+00'
        and changed_at between '1900-01-01 00:00+00' and '9000-01-01 00:00+00'
        and anchor between '1900-01-01 00:00+00' and '3000-01-01 00:00+00'
    )
) with (
    -- a fire changes the front of one row and no index: room for the new version on its page
    fillfactor = 50,
    -- a schedule of every second makes a dead row a second, in a table of a few pages
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 500,
    autovacuum_vacuum_cost_delay = 0,
    vacuum_truncate = false
);

comment on table jobs.schedule is 'Schedules and how far each has been dealt with.';
comment on column jobs.schedule.watermark is 'Occurrences up to here have fired or were dropped. Only a fire, or a change of the timing, moves it.';
comment on column jobs.schedule.last_occurrence is 'The newest occurrence that fired. The watermark may be past it.';
comment on column jobs.schedule.last_fired_at is 'When that was, by the clock of the database.';
comment on column jobs.schedule.catch_up_until is 'End of the catch-up under way: what was missed by then. Null where none is.';
comment on column jobs.schedule.catch_up_left is 'How many more missed occurrences that catch-up may fire.';
comment on column jobs.schedule.error_at is 'When the error began.';
comment on column jobs.schedule.error is 'Why the schedule does not fire. Null once it fires.';
comment on column jobs.schedule.revision is 'Rises with each change. A fire that was planned before one does nothing.';
comment on column jobs.schedule.source is 'declared: by a task in code. stored: made at run time, with job and input.';
comment on column jobs.schedule.cron is 'Five fields or an alias. Null where there is an interval.';
comment on column jobs.schedule.every is 'Time between two occurrences, counted from the anchor or from 1970. Null where there is a cron expression.';
comment on column jobs.schedule.anchor is 'An occurrence from which the interval is counted. Null with a cron expression.';
comment on column jobs.schedule.changed_at is 'When it was last created or changed, not fired.';
comment on column jobs.schedule.tz is 'Name of the zone in the IANA time zone database.';
comment on column jobs.schedule.catch_up is 'What becomes of missed occurrences: skip, run_once, run_all.';
comment on column jobs.schedule.max_catch_up is 'How many missed occurrences run_all fires at most.';
comment on column jobs.schedule.job is 'Name of the job that a stored schedule enqueues.';
comment on column jobs.schedule.input is 'Its payload as JSON text, kept to the byte.';

create table jobs.leader (
    expires_at timestamptz not null,
    lease interval not null,
    role text not null,
    holder text not null,
    constraint leader_pkey primary key (role)
) with (
    -- a few rows that are updated a few times a minute
    fillfactor = 10,
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 200,
    vacuum_truncate = false
);

comment on table jobs.leader is 'Who does what one process at a time should do. It saves work: nothing relies on it.';
comment on column jobs.leader.role is 'scheduler: and a digest of what it can fire, the names of its tasks and jobs. One leads of those that can fire the same.';
comment on column jobs.leader.holder is 'Label of the process.';
comment on column jobs.leader.expires_at is 'From then on another process takes over.';
comment on column jobs.leader.lease is 'How long before that it was taken or renewed. Tells a lease that was given under a clock set back since.';
