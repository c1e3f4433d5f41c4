-- name: RecordWorker :one
-- purpose: tell the registry that a worker process lives and what it does, remove the rows of those
--     that are gone, and say whether anything is due in its queues, so that an idle worker may
--     leave out one look at them.
-- callers: jobs.worker.register: after the first claim of a worker, then twice a minute
-- tx: own autocommitted statement
-- locks: its own row of jobs.worker, then rows that have expired, skip locked. Waits for nobody but
--     one that removes its own row as expired in the same moment.
-- index: worker_pkey, job_ready_idx, job_running_idx, job_blocked_idx, pause_pkey
-- fence: none, it changes no job and nothing relies on what it writes
-- clock: now(), for the expiry too, so that no clock of a host matters
-- rows: one: whether a job of these queues is due, or runs under a lease that has lapsed, or any
--     job waits for a concurrency key. A look, not a promise: another process may have it by now.
-- cost: one heap-only update of an unlogged row, one probe a queue and priority that stops at the
--     first row, one a queue for lapsed leases. Where @prune is set (at the start, and every tenth
--     time), also a walk through jobs.worker, which has as many rows as there are processes.
-- nullable: -due
with /* jobs:record_worker */ beaten as (
    insert into jobs.worker as w (
        id, expires_at, claimed, completed, retried, ended, cancelled, buried, released, lost,
        in_flight, process, state, name, host, version, queues, slots, running_ids, running_names
    )
    values (
        @id::uuid,
        now() + @lifetime::interval,
        @claimed::bigint,
        @completed::bigint,
        @retried::bigint,
        @ended::bigint,
        @cancelled::bigint,
        @buried::bigint,
        @released::bigint,
        @lost::bigint,
        @in_flight::bigint,
        @process::bigint,
        @state::text,
        @name::text,
        @host::text,
        @version::text,
        @queues::text[],
        @slots::bigint[],
        @running_ids::uuid[],
        @running_names::text[]
    )
    on conflict (id) do update
        set
            beat_at = now(),
            expires_at = excluded.expires_at,
            claimed = excluded.claimed,
            completed = excluded.completed,
            retried = excluded.retried,
            ended = excluded.ended,
            cancelled = excluded.cancelled,
            buried = excluded.buried,
            released = excluded.released,
            lost = excluded.lost,
            in_flight = excluded.in_flight,
            state = excluded.state,
            running_ids = excluded.running_ids,
            running_names = excluded.running_names
    returning w.id
),

gone as (
    delete from jobs.worker as w
    where
        w.id = any(array(
            select old.id
            from jobs.worker as old
            where @prune::boolean and old.expires_at < now() and old.id <> @id::uuid
            limit 100
            for update of old skip locked
        ))
        and (select count(*) from beaten) >= 0 /* its own row first: no ring of waits */
),

open as (
    select asked.queue
    from (select unnest(@looked_at::text[]) as queue) as asked
    where not exists (
        select 1 from jobs.pause as p where p.kind = 'queue' and p.name = asked.queue
    )
)

select
    (
        exists (
            select 1
            from open as o
            cross join generate_series(0, 3) as p (priority)
            cross join
                lateral (
                    select 1
                    from jobs.job as j
                    where
                        j.queue = o.queue
                        and j.priority = p.priority
                        and j.state = 'ready'
                        and j.available_at <= now()
                    limit 1 /* without it a join would read all that is due */
                ) as ready
        )
        or exists (
            select 1
            from open as o
            cross join
                lateral (
                    select 1
                    from jobs.job as j
                    where
                        j.queue = o.queue
                        and j.state = 'running'
                        and j.rescue_at <= now()
                        and j.lease_expires_at <= now()
                    limit 1
                ) as lapsed
        )
        or exists (
            select 1
            from (
                select 1
                from jobs.job as j
                where j.state = 'blocked'
                limit 1
            ) as parked /* a claim also looks after lines */
        )
    )::boolean as due;

-- name: MarkWorker :exec
-- purpose: tell the registry that a worker process drains, and that it still lives.
-- callers: jobs.worker.register: when a worker begins to drain, then twice a minute
-- tx: own autocommitted statement
-- locks: its own row of jobs.worker
-- index: worker_pkey
-- fence: none, nothing relies on what it writes
-- clock: now()
-- cost: one heap-only update of an unlogged row
update /* jobs:mark_worker */ jobs.worker as w
set
    state = 'draining',
    beat_at = now(),
    expires_at = now() + @lifetime::interval,
    in_flight = @in_flight::bigint,
    running_ids = @running_ids::uuid[],
    running_names = @running_names::text[]
where w.id = @id::uuid;

-- name: RemoveWorker :exec
-- purpose: take a worker process out of the registry because it stops.
-- callers: jobs.worker.register, last of all statements of a worker
-- tx: own autocommitted statement
-- locks: its own row of jobs.worker
-- index: worker_pkey
-- fence: none, nothing relies on the row
-- cost: one deletion by primary key
delete /* jobs:remove_worker */ from jobs.worker as w
where w.id = @id::uuid;

-- name: ListWorkers :many
-- purpose: the worker processes that have been heard of lately, and what they do.
-- callers: jobs.fleet and jobs.inspect (list_workers)
-- tx: any
-- locks: none
-- index: none
-- fence: none, it reads
-- clock: now()
-- rows: one a process that has not expired, at most @most of them, in order of name and start
-- cost: reads all of jobs.worker and sorts it in memory
select /* jobs:list_workers */
    w.id,
    w.name,
    w.state,
    w.host,
    w.process,
    w.version,
    w.started_at,
    w.beat_at,
    w.expires_at,
    extract(epoch from now() - w.beat_at)::double precision as silent_seconds,
    w.queues,
    w.slots,
    w.in_flight,
    w.running_ids,
    w.running_names,
    w.claimed,
    w.completed,
    w.retried,
    w.ended,
    w.cancelled,
    w.buried,
    w.released,
    w.lost
from jobs.worker as w
where w.expires_at >= now()
order by w.name, w.started_at, w.id
limit @most::integer;

-- name: FindLostClaims :many
-- purpose: the jobs of a claim whose answer never arrived, because the connection was lost: the
--     database has given them to this process, and the process does not know.
-- callers: jobs.worker.strays, after a claim that has failed, under a name that is this process's
--     alone
-- tx: own autocommitted statement
-- locks: none
-- index: job_running_idx
-- fence: none, it reads. What it finds is run under the claim number that it returns, as if the
--     claim had been answered; renewals and settles test it as ever.
-- clock: now(); @within is how long ago the claim was sent
-- rows: running jobs of these queues under the worker's name and a live lease, claimed within so
--     long, at most @most, with the columns of ClaimJobs. The caller leaves out what it holds.
-- cost: a walk through the running rows of the queues. Sent after lost connections only.
-- nullable: traceparent, enqueued_by, concurrency_key
select /* jobs:find_lost_claims */
    j.id,
    j.run_id::text as run_id,
    j.queue,
    j.name,
    j.tenant,
    j.priority,
    j.attempt,
    j.max_attempts,
    j.claims,
    date_part('epoch', j.available_at) as available_epoch,
    date_part('epoch', j.created_at) as created_epoch,
    j.traceparent,
    j.enqueued_by,
    j.input::text as input,
    j.concurrency_key
from jobs.job as j
where
    j.queue = any(@queues::text[])
    and j.state = 'running'
    and j.worker = @worker::text
    and j.lease_expires_at > now()
    and j.claimed_at >= now() - @within::interval
order by j.id
limit @most::integer;
