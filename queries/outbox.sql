-- name: StageJobs :one
-- purpose: write jobs into the outbox, for a relay to publish once the transaction of the caller
--     has committed, and wake a relay if none was told lately.
-- callers: jobs.staging (JobHandle.stage and stage_many)
-- tx: the transaction of the caller
-- locks: the new rows, whose ids are new: waits for nobody
-- index: outbox_pkey, outbox_waiting_idx, wake_queue_idx
-- fence: none, nobody publishes what is not committed
-- clock: clock_timestamp() for each row, in the order given, which is the order of publishing
-- rows: one, the number of rows written
-- cost: one heap insert and two index inserts a row, and one index probe; now and then another heap
--     insert with two index inserts. Linear in the rows.
-- notify: jobs_wake with an empty payload, which is no queue, as EnqueueJob does for a queue
with /* jobs:stage_jobs */ staged as (
    insert into jobs.outbox (
        id, run_id, queue, name, tenant, priority, run_at, delay, max_attempts, dead_letter,
        idempotency_scope, idempotency_key, concurrency_limit, when_busy, concurrency_key,
        traceparent, enqueued_by, input
    )
    select
        listed.id,
        listed.run_id,
        @queue::text,
        @name::text,
        listed.tenant,
        listed.priority,
        listed.run_at,
        listed.delay,
        @max_attempts::bigint,
        @dead_letter::boolean,
        @idempotency_scope::text,
        listed.idempotency_key,
        case
            when listed.concurrency_key is not null then sqlc.narg('concurrency_limit')::bigint
        end,
        case when listed.concurrency_key is not null then sqlc.narg('when_busy')::text end,
        listed.concurrency_key,
        sqlc.narg('traceparent')::text,
        sqlc.narg('enqueued_by')::text,
        listed.input::json
    from (
        select
            unnest(@ids::uuid[]) as id,
            unnest(@run_ids::uuid[]) as run_id,
            unnest(@tenants::text[]) as tenant,
            unnest(@priorities::smallint[]) as priority,
            unnest(@run_ats::timestamptz[]) as run_at,
            unnest(@delays::interval[]) as delay,
            unnest(@idempotency_keys::text[]) as idempotency_key,
            unnest(@concurrency_keys::text[]) as concurrency_key,
            unnest(@inputs::text[]) as input
    ) as listed
    returning id
),

noted as (
    insert into jobs.wake as n (queue)
    select ''::text
    where
        exists (select 1 from staged)
        and case
            when current_setting('jobs.wake', true) = 'off' then false
            when
                current_setting('transaction_isolation') <> 'serializable'
                and exists (
                    select 1
                    from jobs.wake as w
                    where
                        w.queue = ''
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

select count(*)::bigint as rows_staged from staged;

-- name: ClaimOutbox :many
-- purpose: read what is to be published next, in order, under the lease that only one relay has;
--     take the lease, or renew it, where there is anything to publish.
-- callers: jobs.relay.publisher, once a pass; twice where the lease has just been taken
-- tx: own autocommitted statement
-- locks: the row of jobs.relay, where the lease is taken or renewed. Waits only for a mark or a
--     claim of another relay, which are single statements, or one short transaction where outbox
--     and queue share a database.
-- index: outbox_waiting_idx, relay_pkey
-- fence: the lease: rows are read only by the relay whose token the row of jobs.relay has. A lease
--     that was just taken answers without rows: the snapshot may be older than the last mark of the
--     relay that had it, so they are read by the next statement. No mark of how far was read: a
--     row that commits late is found at its place.
-- clock: clock_timestamp()
-- rows: nothing where nothing waits and the lease is not held, or where another relay has it; else
--     at least one with the token, with an outbox row or, where there is none to publish, without
-- cost: one index probe while nothing waits; else one index range scan that stops at @most rows and
--     passes the entries of rows that were published since the last vacuum. An update of one small
--     row every third of the lease.
-- nullable: id, staged_at, wait, refusals, last_error, run_id, run_at, delay, max_attempts,
--     priority, dead_letter, queue, name, tenant, idempotency_scope, idempotency_key,
--     concurrency_limit, when_busy, concurrency_key, traceparent, enqueued_by, input
with /* jobs:claim_outbox */ waiting as materialized (
    select o.id
    from jobs.outbox as o
    where o.published_at is null and o.parked_at is null
    order by o.staged_at, o.id
    limit 1
),

founded as (
    insert into jobs.relay (name)
    select 'outbox'::text
    where
        exists (select 1 from waiting)
        and not exists (select 1 from jobs.relay as r where r.name = 'outbox')
    on conflict (name) do nothing /* for the next look, should somebody have emptied the table */
),

taken as (
    update jobs.relay as r
    set
        token = case when r.token = @token::bigint then r.token else r.token + 1 end,
        holder = @holder::text,
        expires_at = clock_timestamp() + @lease::interval
    where
        r.name = 'outbox'
        and exists (select 1 from waiting)
        and case
            when r.token = @token::bigint
                then r.expires_at < clock_timestamp() + @renew_within::interval
            else r.expires_at <= clock_timestamp()
        end
    returning r.token
),

held as (
    select
        t.token,
        t.token <> @token::bigint as fresh
    from taken as t
    union all
    select
        r.token,
        false as fresh
    from jobs.relay as r
    where
        r.name = 'outbox'
        and r.token = @token::bigint
        and r.expires_at > clock_timestamp()
        and not exists (select 1 from taken)
)

select
    h.token,
    h.fresh,
    next_up.id,
    next_up.staged_at,
    next_up.wait,
    next_up.refusals,
    next_up.last_error,
    next_up.run_id,
    next_up.run_at,
    next_up.delay,
    next_up.max_attempts,
    next_up.priority,
    next_up.dead_letter,
    next_up.queue,
    next_up.name,
    next_up.tenant,
    next_up.idempotency_scope,
    next_up.idempotency_key,
    next_up.concurrency_limit,
    next_up.when_busy,
    next_up.concurrency_key,
    next_up.traceparent,
    next_up.enqueued_by,
    next_up.input
from held as h
left join lateral (
    select
        o.id,
        o.staged_at,
        greatest(o.retry_at - clock_timestamp(), interval '0')::interval as wait,
        o.refusals,
        o.last_error,
        o.run_id,
        o.run_at,
        /* what is left of it: the target may have another clock */
        greatest(o.staged_at + o.delay - clock_timestamp(), interval '0')::interval as delay,
        o.max_attempts,
        o.priority,
        o.dead_letter,
        o.queue,
        o.name,
        o.tenant,
        o.idempotency_scope,
        o.idempotency_key,
        o.concurrency_limit,
        o.when_busy,
        o.concurrency_key,
        o.traceparent,
        o.enqueued_by,
        o.input::text as input
    from jobs.outbox as o
    where o.published_at is null and o.parked_at is null and not h.fresh
    order by o.staged_at, o.id
    limit @most::integer
) as next_up on true
order by next_up.staged_at, next_up.id;

-- name: MarkOutbox :one
-- purpose: record that rows have been published, by the relay that still has the lease.
-- callers: jobs.relay.publisher, after the publish of each batch or, where outbox and queue share
--     a database, in its transaction
-- tx: own autocommitted statement, or the transaction of the publish
-- locks: the row of jobs.relay for share, so that the lease cannot change hands before the commit;
--     the rows of the batch. Waits only for the claim of another relay, and for an operator who
--     changes one of the rows.
-- index: relay_pkey, outbox_pkey
-- fence: the token. The stamp of whoever published a row first stays.
-- clock: clock_timestamp()
-- rows: one: whether the lease is still held (otherwise nothing was written), and how many rows
--     were stamped
-- cost: one heap update a row, with the index entries of its new version
with /* jobs:mark_outbox */ fence as materialized (
    select r.token
    from jobs.relay as r
    where r.name = 'outbox' and r.token = @token::bigint
    for share of r
),

asked as (
    select
        unnest(@ids::uuid[]) as id,
        unnest(@outcomes::text[]) as outcome,
        unnest(@published_as::uuid[]) as published_as
),

marked as (
    update jobs.outbox as o
    set
        published_at = clock_timestamp(),
        published_by = @holder::text,
        outcome = a.outcome,
        published_as = a.published_as,
        retry_at = null,
        parked_at = null
    from asked as a
    where
        o.id = a.id /* without = any(): few rows are expected, so the key is probed for each */
        and o.published_at is null
        and exists (select 1 from fence)
    returning o.id
)

select
    (exists (select 1 from fence))::boolean as held,
    (select count(*) from marked)::bigint as rows_marked;

-- name: NoteOutboxFailure :one
-- purpose: write on a row why it could not be published, by the relay that still has the lease;
--     hold it back for a while, or set it aside.
-- callers: jobs.relay.publisher, after a publish that failed
-- tx: own autocommitted statement
-- locks: the row of jobs.relay for share; the row. Waits only for the claim of another relay, and
--     for an operator who changes the row.
-- index: relay_pkey, outbox_pkey
-- fence: the token
-- clock: clock_timestamp()
-- rows: one: whether the lease is still held, and whether the row was changed
-- cost: one heap update with the index entries of its new version
with /* jobs:note_outbox_failure */ fence as materialized (
    select r.token
    from jobs.relay as r
    where r.name = 'outbox' and r.token = @token::bigint
    for share of r
),

changed as (
    update jobs.outbox as o
    set
        last_error = @error::text,
        refusals = o.refusals + case when @refused::boolean then 1 else 0 end,
        retry_at = case
            when @refused::boolean and not @park::boolean then clock_timestamp() + @delay::interval
        end,
        parked_at = case when @refused::boolean and @park::boolean then clock_timestamp() end
    where
        o.id = any(array[@id::uuid])
        and o.published_at is null
        and exists (select 1 from fence)
    returning o.id
)

select
    (exists (select 1 from fence))::boolean as held,
    (exists (select 1 from changed))::boolean as changed;

-- name: ReleaseOutbox :execrows
-- purpose: give up the lease at the end of a relay, so that another need not wait for its expiry.
-- callers: jobs.relay.publisher, once in a drain
-- tx: own autocommitted statement
-- locks: the row of jobs.relay
-- index: relay_pkey
-- fence: the token
-- clock: clock_timestamp()
-- rows: one where the lease was still held, else none
-- cost: one heap-only update
update /* jobs:release_outbox */ jobs.relay as r
set expires_at = clock_timestamp()
where r.name = 'outbox' and r.token = @token::bigint and r.expires_at > clock_timestamp();

-- name: PruneOutbox :execrows
-- purpose: remove published rows that have been kept for audit long enough.
-- callers: jobs.relay.publisher, at most once a minute and not where it finds nothing to publish;
--     jobs.outbox.prune
-- tx: own autocommitted statement, or the transaction of the caller
-- locks: the old rows, skip locked. Waits for nobody.
-- index: outbox_published_idx
-- fence: only published rows
-- clock: now()
-- rows: how many were removed
-- cost: one walk from the old end that stops at @most rows, and their deletion
-- errors: serialization failure in a REPEATABLE READ transaction older than the newest change of a
--     row
delete /* jobs:prune_outbox */ from jobs.outbox as o
where
    o.id = any(array(
        select old.id
        from jobs.outbox as old
        where old.published_at is not null and old.published_at < now() - @keep::interval
        order by old.published_at
        limit @most::integer
        for update of old skip locked
    ));
