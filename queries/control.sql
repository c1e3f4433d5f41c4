-- name: CancelJobs :many
-- purpose: end jobs that wait, and ask for the end of those that run.
-- callers: jobs.control.cancelling, again for rows that others held
-- tx: own autocommitted statement, or the transaction of the caller
-- locks: jobs.job rows for update, skip locked, held to commit. Waits for nobody. Deletes those
--     that wait.
-- index: job_pkey, settled_pkey
-- fence: none, an operator may take any job. One that waits is held by nobody, so nothing is
--     revoked and a repeated settle of an earlier claim is still answered as one. A claim whose
--     lease has lapsed is revoked.
-- clock: statement_timestamp() for the lapse of a lease and for the time of the request
-- rows: one for each distinct id asked: cancelled (ended by this statement: it waited, or its lease
--     had lapsed); requested (it runs; its next renewal tells the worker, and its settle or lapse
--     ends it); finished (ended before, with the state); busy (another session holds the row: ask
--     again); unknown. Where a job ended that others of its concurrency key may have waited for,
--     the key: once this has committed it is to be promoted, or a worker does it within 5 s. The
--     slot of a lapsed claim is left to that, because nobody may wait for this transaction.
-- cost: a job that waits is one lock, one delete and one insert; one that runs a lock and one
--     heap-only update, or none where a cancel was requested before. Counters are one insert a
--     name.
-- errors: serialization failure in a REPEATABLE READ transaction older than the newest renewal
-- notify: jobs_wake with "cancel " and the worker's name, once a worker and transaction, so that it
--     renews at once instead of after up to a third of a lease. The flag on the row is what counts:
--     nothing is lost where nobody listens. Never while half of the notification queue of the
--     server is taken, nor where the setting jobs.wake is off.
-- nullable: @reason, state, vacant_key
with /* jobs:cancel_jobs */ asked as (
    select distinct listed.id
    from (select unnest(@ids::uuid[]) as id) as listed
),

held as materialized (
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
        j.created_at,
        j.input,
        j.state,
        case
            when j.state <> 'running' then 'cancelled'
            when j.lease_expires_at <= statement_timestamp() then 'lapsed'
            else 'requested'
        end as fate,
        'the lease ended at ' || j.lease_expires_at::text || ' without a settle' as message
    from asked as a
    inner join jobs.job as j on a.id = j.id
    for update of j skip locked
),

moved as (
    insert into jobs.settled (
        id, run_id, queue, name, tenant, priority, attempt, max_attempts, claims, revoked, state,
        stop_reason, worker, last_error, dead_letter, idempotency_scope, idempotency_key,
        concurrency_key, concurrency_limit, when_busy, traceparent, enqueued_by, claimed_at,
        progress, progress_message, cancel_requested_at, cancel_reason, created_at, input
    )
    select
        h.id,
        h.run_id,
        h.queue,
        h.name,
        h.tenant,
        h.priority,
        h.attempt,
        h.max_attempts,
        h.claims,
        case when h.fate = 'lapsed' then h.claims else h.revoked end,
        'cancelled',
        'cancel requested',
        h.worker,
        case when h.fate = 'lapsed' then 'LeaseLapsed: ' || h.message else h.last_error end,
        h.dead_letter,
        h.idempotency_scope,
        h.idempotency_key,
        h.concurrency_key,
        h.concurrency_limit,
        h.when_busy,
        h.traceparent,
        h.enqueued_by,
        h.claimed_at,
        h.progress,
        h.progress_message,
        coalesce(h.cancel_requested_at, statement_timestamp()),
        case
            when h.cancel_requested_at is null then sqlc.narg('reason')::text
            else h.cancel_reason
        end,
        h.created_at,
        h.input
    from held as h
    where h.fate <> 'requested'
    on conflict (id) do nothing /* one odd row must not fail its neighbours */
),

gone as (
    delete from jobs.job as j
    where j.id = any(array(select h.id from held as h where h.fate <> 'requested'))
),

flagged as (
    update jobs.job as j
    set
        cancel_requested_at = statement_timestamp(),
        cancel_reason = sqlc.narg('reason')::text
    where
        j.id = any(array(
            select h.id
            from held as h
            where h.fate = 'requested' and h.cancel_requested_at is null /* the first one stands */
        ))
    returning
        case
            when current_setting('jobs.wake', true) = 'off' then null
            when pg_notification_queue_usage() < 0.5 /* a full one would fail the commit */
                then pg_notify('jobs_wake', 'cancel ' || j.worker)
        end /* computed for each row, read or not; the server sends equal ones once */
),

noted as (
    insert into jobs.attempt (job_id, claims, attempt, worker, error_type, error_message)
    select
        h.id,
        h.claims,
        h.attempt,
        h.worker,
        'LeaseLapsed',
        h.message
    from held as h
    where h.fate = 'lapsed'
    on conflict do nothing
),

counted as (
    insert into jobs.counter (bucket, name, outcome, amount)
    select
        date_trunc('minute', statement_timestamp()),
        h.name,
        'cancelled',
        count(*)
    from held as h
    where h.fate <> 'requested'
    group by h.name
)

select
    h.id,
    (case when h.fate = 'requested' then 'requested' else 'cancelled' end)::text as verdict,
    (case when h.fate = 'requested' then 'running' else 'cancelled' end)::text as state,
    (case when h.fate <> 'requested' and h.state <> 'blocked' then h.concurrency_key end)::text
        as vacant_key
from held as h
union all
select
    a.id,
    (case
        when j.id is not null then 'busy'
        when s.id is not null then 'finished'
        else 'unknown'
    end)::text,
    s.state,
    null
from asked as a
left join jobs.job as j on a.id = j.id
left join jobs.settled as s on a.id = s.id
where a.id not in (select h.id from held as h);

-- name: RequeueJobs :many
-- purpose: make finished jobs live again, ready for a first attempt, and wake a worker for each
--     queue if none was told of it lately.
-- callers: jobs.control.requeueing, again for rows that others held
-- tx: own autocommitted statement, or the transaction of the caller
-- locks: jobs.settled rows for update, skip locked, in order of id; then the new rows in jobs.job,
--     in order of (name, tenant, key digest, id) by their bytes as PublishJobs and FireSchedule do,
--     and in jobs.wake.
--     Waits as EnqueueJob does: only for an open transaction that inserts, or is ending, a job of
--     the same (name, tenant, idempotency key).
-- index: settled_pkey, job_pkey, job_unique_idx, wake_queue_idx
-- fence: claims and revoked go along, so that the next claim has a token no one has ever held and
--     a repeated settle of an earlier one is answered as before
-- clock: clock_timestamp() for the due time, so that a long transaction does not backdate it
-- rows: one for each distinct id asked: requeued; duplicate (a live job has its idempotency key,
--     with its id where this statement sees it); completed (and that was not asked for); live (it
--     has not ended, with its state); busy (another session holds the row: ask again); unknown.
-- cost: one lock, one delete and one enqueue a job. Its failed attempts stay where they are.
-- errors: lock timeout, deadlock or serialization failure while waiting for the same key;
--     serialization failure in a REPEATABLE READ transaction older than the newest requeue
-- notify: as EnqueueJob, once a queue
-- nullable: state, holder
with /* jobs:requeue_jobs */ asked as (
    select distinct listed.id
    from (select unnest(@ids::uuid[]) as id) as listed
),

held as materialized (
    select
        s.id,
        s.run_id,
        s.queue,
        s.name,
        s.tenant,
        s.priority,
        s.max_attempts,
        s.claims,
        s.revoked,
        s.state,
        s.dead_letter,
        s.idempotency_scope,
        s.idempotency_key,
        sha256(convert_to(s.idempotency_key, 'UTF8')) as unique_key,
        s.concurrency_key,
        s.concurrency_limit,
        s.when_busy,
        s.traceparent,
        s.enqueued_by,
        s.last_error,
        s.claimed_at,
        s.created_at,
        s.input
    from asked as a
    inner join jobs.settled as s on a.id = s.id
    order by s.id
    for update of s skip locked
),

added as (
    insert into jobs.job (
        id, run_id, queue, name, tenant, priority, available_at, max_attempts, claims, revoked,
        dead_letter, idempotency_scope, idempotency_key, unique_key, concurrency_key,
        concurrency_limit, when_busy, traceparent, enqueued_by, last_error, claimed_at, created_at,
        input
    )
    select
        h.id,
        h.run_id,
        h.queue,
        h.name,
        h.tenant,
        h.priority,
        coalesce(sqlc.narg('run_at')::timestamptz, clock_timestamp() + @delay::interval),
        h.max_attempts,
        h.claims,
        h.revoked,
        h.dead_letter,
        h.idempotency_scope,
        h.idempotency_key,
        h.unique_key,
        h.concurrency_key,
        h.concurrency_limit,
        h.when_busy,
        h.traceparent,
        h.enqueued_by,
        h.last_error,
        h.claimed_at,
        h.created_at,
        h.input
    from held as h
    where h.state <> 'completed' or @completed::boolean
    /* as a relay, a fire and a bulk enqueue do */
    order by convert_to(h.name, 'UTF8'), convert_to(h.tenant, 'UTF8'), h.unique_key, h.id
    on conflict do nothing
    returning id, queue, name, tenant, unique_key, available_at
),

gone as (
    delete from jobs.settled as s
    where s.id = any(array(select n.id from added as n))
),

told as (
    insert into jobs.wake as t (queue)
    select due.queue
    from (
        select distinct n.queue
        from added as n
        where n.available_at <= clock_timestamp() + interval '5 seconds'
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
    returning pg_notify('jobs_wake', t.queue) /* computed for each row, read or not */
)

select
    h.id,
    (case
        when h.id in (select n.id from added as n) then 'requeued'
        when h.state = 'completed' and not @completed::boolean then 'completed'
        else 'duplicate'
    end)::text as verdict,
    (case when h.id in (select n.id from added as n) then null else h.state end)::text as state,
    holder.id as holder
from held as h
left join lateral (
    select j.id
    from jobs.job as j
    where j.name = h.name and j.tenant = h.tenant and j.unique_key = h.unique_key
    union all
    select n.id
    from added as n
    where n.name = h.name and n.tenant = h.tenant and n.unique_key = h.unique_key and n.id <> h.id
    limit 1
) as holder on true
union all
select
    a.id,
    (case
        when j.id is not null then 'live'
        when s.id is not null then 'busy'
        else 'unknown'
    end)::text,
    coalesce(j.state, s.state),
    null
from asked as a
left join jobs.job as j on a.id = j.id
left join jobs.settled as s on a.id = s.id
where a.id not in (select h.id from held as h);

-- name: PauseQueue :execrows
-- purpose: keep workers from claiming jobs of a queue.
-- callers: jobs.control.pausing (pause)
-- tx: own autocommitted statement, or the transaction of the caller
-- locks: the new row. Waits for an open transaction that pauses or resumes the same queue.
-- index: pause_pkey
-- fence: none, no job is touched. Those that run go on, are renewed and settle.
-- rows: 1, or 0 where it was paused already
-- cost: one insert. Every later claim of the queue stops at its pause row.
-- errors: serialization failure in a REPEATABLE READ transaction older than the newest change of a
--     row
insert /* jobs:pause_queue */ into jobs.pause (kind, name, paused_by)
values ('queue', @queue::text, sqlc.narg('paused_by')::text)
on conflict (kind, name) do nothing;

-- name: ResumeQueue :execrows
-- purpose: let workers claim jobs of a paused queue again.
-- callers: jobs.control.pausing (resume)
-- tx: own autocommitted statement, or the transaction of the caller
-- locks: the row it deletes. Waits for an open transaction that resumes the same queue.
-- index: pause_pkey
-- fence: none, no job is touched
-- rows: 1, or 0 where it was not paused
-- cost: one delete
-- errors: serialization failure in a REPEATABLE READ transaction older than the newest change of a
--     row
delete /* jobs:resume_queue */ from jobs.pause as p
where p.kind = 'queue' and p.name = @queue::text;

-- name: ListPauses :many
-- purpose: what is paused, since when and by whom.
-- callers: jobs.control.pausing (pauses)
-- tx: any
-- locks: none
-- index: pause_pkey
-- fence: none, it reads
-- rows: one a pause, in order of kind and name
-- cost: reads all of jobs.pause, which holds what is paused now
-- nullable: paused_by
select /* jobs:list_pauses */
    p.kind,
    p.name,
    p.paused_at,
    p.paused_by
from jobs.pause as p
order by p.kind, p.name;
