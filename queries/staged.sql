-- name: ListOutbox :many
-- purpose: a page of the outbox in the order of publishing: what waits, what was set aside.
-- callers: jobs.outbox.list_staged
-- tx: any
-- locks: none
-- index: outbox_waiting_idx, outbox_parked_idx
-- fence: none, it reads
-- clock: now()
-- rows: at most @most, those behind (@after_at, @after_id) where that is given
-- cost: one index range scan a state asked for, that stops at @most rows
-- nullable: @after_at, @after_id
select /* jobs:list_outbox */
    page.id,
    page.staged_at,
    page.state::text as state,
    page.queue,
    page.name,
    page.tenant,
    page.refusals,
    page.retry_at,
    page.last_error
from (
    (
        select
            o.id,
            o.staged_at,
            case when o.retry_at > now() then 'held back' else 'waiting' end as state,
            o.queue,
            o.name,
            o.tenant,
            o.refusals,
            o.retry_at,
            o.last_error
        from jobs.outbox as o
        where
            @waiting::boolean
            and o.published_at is null
            and o.parked_at is null
            and (o.staged_at, o.id) > (
                coalesce(sqlc.narg('after_at')::timestamptz, '-infinity'::timestamptz),
                coalesce(
                    sqlc.narg('after_id')::uuid, '00000000-0000-0000-0000-000000000000'::uuid
                )
            )
        order by o.staged_at, o.id
        limit @most::integer
    )
    union all
    (
        select
            o.id,
            o.staged_at,
            'parked' as state,
            o.queue,
            o.name,
            o.tenant,
            o.refusals,
            o.retry_at,
            o.last_error
        from jobs.outbox as o
        where
            @parked::boolean
            and o.parked_at is not null
            and (o.staged_at, o.id) > (
                coalesce(sqlc.narg('after_at')::timestamptz, '-infinity'::timestamptz),
                coalesce(
                    sqlc.narg('after_id')::uuid, '00000000-0000-0000-0000-000000000000'::uuid
                )
            )
        order by o.staged_at, o.id
        limit @most::integer
    )
) as page
order by page.staged_at, page.id
limit @most::integer;

-- name: GetStaged :one
-- purpose: one row of the outbox, published or not.
-- callers: jobs.outbox.get_staged
-- tx: any
-- locks: none
-- index: outbox_pkey
-- fence: none, it reads
-- clock: now()
-- rows: one, or none
-- cost: one unique probe
select /* jobs:get_staged */
    o.id,
    o.run_id,
    o.staged_at,
    (case
        when o.published_at is not null then 'published'
        when o.parked_at is not null then 'parked'
        when o.retry_at > now() then 'held back'
        else 'waiting'
    end)::text as state,
    o.queue,
    o.name,
    o.tenant,
    o.priority,
    o.run_at,
    o.delay,
    o.idempotency_key,
    o.traceparent,
    o.enqueued_by,
    o.refusals,
    o.retry_at,
    o.parked_at,
    o.last_error,
    o.published_at,
    o.published_by,
    o.outcome,
    o.published_as,
    o.input::text as input
from jobs.outbox as o
where o.id = @id::uuid;

-- name: ReadOutboxStats :one
-- purpose: how much waits, since when and why; how much was set aside; and who publishes.
-- callers: jobs.outbox.outbox_stats
-- tx: any
-- locks: none
-- index: outbox_waiting_idx, outbox_parked_idx, relay_pkey
-- fence: none, it reads
-- clock: now()
-- rows: one
-- cost: counts up to @most waiting and @most parked rows by their indexes, plus one probe
-- nullable: oldest_wait, head_id, head_error, head_retry_at, holder, lease_left
select /* jobs:read_outbox_stats */
    (
        select count(*)
        from (
            select 1
            from jobs.outbox as o
            where o.published_at is null and o.parked_at is null
            order by o.staged_at, o.id
            limit @most::integer
        ) as w
    )::bigint as waiting,
    (
        select count(*)
        from (
            select 1
            from jobs.outbox as o
            where o.parked_at is not null
            order by o.staged_at, o.id
            limit @most::integer
        ) as p
    )::bigint as parked,
    (now() - head.staged_at)::interval as oldest_wait,
    head.id as head_id,
    head.last_error as head_error,
    head.retry_at as head_retry_at,
    r.holder,
    (case when r.expires_at > now() then r.expires_at - now() end)::interval as lease_left
from jobs.relay as r
left join lateral (
    select
        o.id,
        o.staged_at,
        o.last_error,
        o.retry_at
    from jobs.outbox as o
    where o.published_at is null and o.parked_at is null
    order by o.staged_at, o.id
    limit 1
) as head on true
where r.name = 'outbox';

-- name: RetryStaged :many
-- purpose: have refused rows tried again at once, with a clean slate: those held back and those set
--     aside. The last error stays on them until they are published.
-- callers: jobs.outbox.retry
-- tx: own autocommitted statement, or the transaction of the caller
-- locks: the rows, in order of id. Waits only for a relay that marks them.
-- index: outbox_pkey
-- fence: only rows that are not published
-- rows: one for each id that exists, with the state it has now: waiting or published
-- cost: one heap update a row
-- errors: serialization failure in a REPEATABLE READ transaction older than the newest change of a
--     row
with /* jobs:retry_staged */ held as materialized (
    select
        o.id,
        o.published_at
    from jobs.outbox as o
    where o.id = any(@ids::uuid[])
    order by o.id
    for update of o
),

changed as (
    update jobs.outbox as o
    set
        refusals = 0,
        retry_at = null,
        parked_at = null
    where
        o.id = any(array(select h.id from held as h where h.published_at is null))
    returning o.id
)

select
    h.id,
    (case when h.published_at is null then 'waiting' else 'published' end)::text as state
from held as h
where h.published_at is not null or h.id in (select c.id from changed as c);

-- name: DiscardStaged :many
-- purpose: remove rows that were set aside, which will so never be published.
-- callers: jobs.outbox.discard
-- tx: own autocommitted statement, or the transaction of the caller
-- locks: the rows. Waits for an operator who retries them.
-- index: outbox_pkey
-- fence: only rows that are set aside and not published
-- rows: the ids that were removed
-- cost: one unique probe and one deletion a row
-- errors: serialization failure in a REPEATABLE READ transaction older than the newest change of a
--     row
delete /* jobs:discard_staged */ from jobs.outbox as o
where
    o.id = any(@ids::uuid[])
    and o.parked_at is not null
    and o.published_at is null
returning o.id;
