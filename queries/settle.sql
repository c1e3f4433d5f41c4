-- name: SettleJobs :many
-- purpose: end or give back a batch of running jobs, for the worker that still holds each of them.
--     Outcomes asked: completed, retry (ready again after the delay), dead (terminal error),
--     released (handed back, the attempt does not count), snoozed (the same, asked by the job),
--     refused (ended without an attempt), cancelled (stopped as an operator asked).
--     Where a cancel was requested, completed stays completed, because the work has happened, and
--     everything else ends as cancelled.
-- callers: jobs.worker.settler (batches), jobs.run.complete (one job, in the transaction of the
--     body)
-- tx: own autocommitted statement, or the transaction of the caller
-- locks: jobs.job rows for update, skip locked, held to commit. Waits for nobody. With @release
--     then the slots of jobs with a concurrency key (one that was left behind may be given up by a
--     sweep in the same moment, which is waited for), and those let out of the line of the key, no
--     key update, skip locked.
-- index: job_pkey, settled_pkey; for jobs with a key also slot_job_key, job_blocked_idx
-- fence: claims and worker, tested in the locking step
-- clock: clock_timestamp() for the next due time, so that an open transaction does not backdate it
-- rows: one for each pair asked, told by its place in the arrays, from 1 (the first one where a
--     pair repeats), in no order. landed, with the state
--     the job is in now; repeated (this settle had landed before, its reply was lost: a success
--     without a second effect, with the state where the job has ended with this claim); again
--     (the row is held by another statement: send it again); lost (taken away: the effect does
--     not count). Where a slot of a concurrency key was let go: the key, if fewer were let out
--     of its line than it has slots free now, so that it is to be promoted once this has
--     committed; and the queues of those let out.
-- cost: a completed job is one lock, one delete and one insert; a retry one lock and one update.
--     Counters are one insert a name and outcome. The batch is sorted in memory. A job with a key
--     costs one more delete, three probes, and one update for the job that it lets out of the line.
-- errors: serialization failure in a REPEATABLE READ transaction older than the newest renewal
-- nullable: @error_types, @results, state, vacant_key, promoted_queues
with /* jobs:settle_jobs */ recursive asked as (
    select distinct on (listed.id, listed.claims)
        listed.place,
        listed.id,
        listed.claims,
        listed.outcome,
        listed.delay,
        listed.error_type,
        listed.error_message,
        listed.traceback,
        listed.result
    from (
        select
            generate_subscripts(@ids::uuid[], 1) as place,
            unnest(@ids::uuid[]) as id,
            unnest(@claims::bigint[]) as claims,
            unnest(@outcomes::text[]) as outcome,
            unnest(@delays::interval[]) as delay,
            unnest(@error_types::text[]) as error_type,
            unnest(@error_messages::text[]) as error_message,
            unnest(@tracebacks::text[]) as traceback,
            unnest(@results::text[]) as result
    ) as listed
    order by listed.id, listed.claims, listed.place
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
        j.claimed_at,
        j.progress,
        j.progress_message,
        j.cancel_requested_at,
        j.cancel_reason,
        j.created_at,
        j.input,
        coalesce(
            a.error_type || ': ' || left(coalesce(a.error_message, ''), 1000), j.last_error
        ) as last_error,
        a.place,
        a.delay,
        a.error_type,
        a.error_message,
        a.traceback,
        a.result,
        case
            when a.outcome = 'completed' then 'completed'
            when j.cancel_requested_at is not null then 'cancelled'
            when a.outcome in ('released', 'snoozed', 'cancelled', 'refused') then a.outcome
            when (a.outcome = 'dead' or j.attempt >= j.max_attempts) and j.dead_letter then 'dead'
            when a.outcome = 'dead' or j.attempt >= j.max_attempts then 'failed'
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
                then 'cancelled' /* the waiting sibling does the work */
            else 'retry'
        end as outcome,
        case
            when a.outcome = 'completed' then null
            when a.outcome = 'cancelled' or j.cancel_requested_at is not null
                then 'cancel requested'
            when a.outcome = 'dead' then 'terminal'
            when a.outcome = 'refused' then 'refused'
            when a.outcome = 'retry' and j.attempt >= j.max_attempts then 'exhausted'
            when a.outcome = 'retry' then 'superseded'
        end as stop_reason
    from asked as a
    inner join jobs.job as j on a.id = j.id
    where j.claims = a.claims and j.worker = @worker::text
    for update of j skip locked
),

moved as (
    insert into jobs.settled (
        id, run_id, queue, name, tenant, priority, attempt, max_attempts, claims, revoked, state,
        stop_reason, worker, last_error, dead_letter, idempotency_scope, idempotency_key,
        concurrency_key, concurrency_limit, when_busy, traceparent, enqueued_by, claimed_at,
        progress, progress_message, cancel_requested_at, cancel_reason, created_at, input, result
    )
    select
        h.id,
        h.run_id,
        h.queue,
        h.name,
        h.tenant,
        h.priority,
        case h.outcome when 'refused' then greatest(h.attempt - 1, 0) else h.attempt end,
        h.max_attempts,
        h.claims,
        h.revoked,
        case h.outcome when 'refused' then 'failed' else h.outcome end,
        h.stop_reason,
        h.worker,
        h.last_error,
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
        h.cancel_requested_at,
        h.cancel_reason,
        h.created_at,
        h.input,
        case h.outcome when 'completed' then h.result::json end
    from held as h
    where h.outcome in ('completed', 'dead', 'failed', 'cancelled', 'refused')
    on conflict (id) do nothing /* one odd row must not fail its neighbours */
),

gone as (
    delete from jobs.job as j
    where
        j.id = any(array(
            select h.id
            from held as h
            where h.outcome in ('completed', 'dead', 'failed', 'cancelled', 'refused')
        ))
),

kept as (
    update jobs.job as j
    set
        state = 'ready',
        worker = null,
        lease_expires_at = null,
        rescue_at = null,
        available_at = clock_timestamp()
        + least(greatest(h.delay, interval '0'), interval '3650 days'),
        attempt = case
            when h.outcome in ('released', 'snoozed') then greatest(j.attempt - 1, 0)
            else j.attempt
        end,
        /* one that is handed back for at once has passed the line, the others join it anew */
        waiting_since = case
            when
                h.concurrency_key is not null
                and h.outcome = 'released'
                and coalesce(h.delay, '0') <= interval '0'
                then coalesce(j.waiting_since, j.available_at)
        end,
        last_error = h.last_error
    from held as h
    where j.id = h.id and h.outcome in ('retry', 'released', 'snoozed')
),

noted as (
    insert into jobs.attempt (
        job_id, claims, attempt, worker, error_type, error_message, traceback
    )
    select
        h.id,
        h.claims,
        h.attempt,
        h.worker,
        h.error_type,
        coalesce(h.error_message, ''),
        h.traceback
    from held as h
    where h.error_type is not null
    on conflict do nothing
),

counted as (
    insert into jobs.counter (bucket, name, outcome, amount)
    select
        date_trunc('minute', now()),
        h.name,
        case h.outcome when 'retry' then 'retried' else h.outcome end,
        count(*)
    from held as h
    where h.outcome not in ('released', 'snoozed')
    group by h.name, h.outcome
),

freed as (
    delete from jobs.slot as s
    where
        s.job_id = any(array(
            select h.id
            from held as h
            where @release::boolean and h.concurrency_key is not null
            union all
            select a.id
            from asked as a
            where
                @release::boolean /* left by the transaction in which this settle has landed */
                and a.id not in (select h.id from held as h)
                and (select j.state from jobs.job as j where j.id = a.id)
                is distinct from 'running'
        ))
    returning s.job_id, s.concurrency_key
),

room as materialized (
    select
        f.concurrency_key,
        count(*) as freed,
        count(*) filter (
            where f.job_id not in (
                /* one that is handed back for at once goes ahead of the line */
                select h.id
                from held as h
                where h.outcome = 'released' and coalesce(h.delay, '0') <= interval '0'
            )
        ) as amount
    from freed as f
    group by f.concurrency_key
),

lane as (
    select
        r.concurrency_key,
        r.amount,
        (
            select j.queue
            from jobs.job as j
            where j.state = 'blocked' and j.concurrency_key = r.concurrency_key
            order by j.queue
            limit 1
        ) as queue
    from room as r
    union all
    select
        l.concurrency_key,
        l.amount,
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

heir as (
    select found.id
    from lane as l
    cross join
        lateral (
            select j.id
            from jobs.job as j
            where
                j.state = 'blocked' and j.concurrency_key = l.concurrency_key and j.queue = l.queue
            order by j.priority, j.waiting_since, j.id
            limit l.amount
            for no key update of j skip locked
        ) as found
    where l.queue is not null
),

promoted as (
    update jobs.job as j
    set
        state = 'ready',
        available_at = clock_timestamp()
    where j.id = any(array(select h.id from heir as h))
    returning j.concurrency_key, j.queue
),

let_go as (
    select
        f.job_id,
        (case
            when
                r.freed > (
                    select count(*) from promoted as p where p.concurrency_key = r.concurrency_key
                )
                then r.concurrency_key
        end)::text as vacant_key,
        array(
            select distinct p.queue from promoted as p where p.concurrency_key = r.concurrency_key
        )::text[] as promoted_queues
    from freed as f
    inner join room as r on f.concurrency_key = r.concurrency_key
)

select
    h.place::integer as place,
    'landed'::text as verdict,
    (case
        when h.outcome in ('retry', 'released', 'snoozed') then 'ready'
        when h.outcome = 'refused' then 'failed'
        else h.outcome
    end)::text as state,
    f.vacant_key,
    f.promoted_queues
from held as h
left join let_go as f on h.id = f.job_id
union all
select
    a.place,
    coalesce(
        (
            select
                case
                    when j.claims = a.claims and j.worker = @worker::text then 'again'
                    when
                        a.claims > j.revoked
                        and (a.claims < j.claims or (a.claims = j.claims and j.state <> 'running'))
                        then 'repeated'
                    else 'lost'
                end
            from jobs.job as j
            where j.id = a.id
        ),
        (
            select
                case
                    when a.claims > s.revoked and a.claims <= s.claims then 'repeated'
                    else 'lost'
                end
            from jobs.settled as s
            where s.id = a.id
        ),
        'lost'
    )::text,
    (
        select s.state
        from jobs.settled as s
        where s.id = a.id and s.claims = a.claims and a.claims > s.revoked
    ),
    f.vacant_key,
    f.promoted_queues
from asked as a
left join let_go as f on a.id = f.job_id
where a.place not in (select h.place from held as h);
