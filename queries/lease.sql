-- name: RenewLeases :many
-- purpose: extend the leases of the jobs that a worker process is running, in one statement.
-- callers: jobs.worker.renewer (a thread of its own, every third of a lease)
-- tx: own autocommitted statement
-- locks: jobs.job rows, no key update, skip locked. Waits for nobody.
-- index: job_pkey
-- fence: claims and worker
-- clock: now()
-- rows: one for each pair asked: renewed; cancel (renewed as well, and an operator has asked to
--     cancel it: stop the run, then settle it as cancelled); busy (ours, but somebody holds the
--     row, an open completion for instance: ask again); lost (rescued, settled or removed: stop the
--     run).
-- cost: one primary key probe and one heap-only update a job, no index is written
with /* jobs:renew_leases */ asked as (
    select
        unnest(@ids::uuid[]) as id,
        unnest(@claims::bigint[]) as claims
),

held as materialized (
    select
        j.id,
        j.claims
    from asked as a
    inner join jobs.job as j on a.id = j.id
    where j.claims = a.claims and j.worker = @worker::text
    for no key update of j skip locked
),

renewed as (
    update jobs.job as j
    set lease_expires_at = now() + @lease::interval
    where j.id = any(array(select h.id from held as h))
    returning
        j.id,
        j.claims,
        j.cancel_requested_at is not null as cancelling
)

select
    a.id::uuid as id,
    a.claims::bigint as claims,
    (case
        when (a.id, a.claims) in (
            select
                r.id,
                r.claims
            from renewed as r
            where r.cancelling
        ) then 'cancel'
        when (a.id, a.claims) in (
            select
                r.id,
                r.claims
            from renewed as r
        ) then 'renewed'
        when exists (
            select 1
            from jobs.job as j
            where j.id = a.id and j.claims = a.claims and j.worker = @worker::text
        ) then 'busy'
        else 'lost'
    end)::text as verdict
from asked as a;
