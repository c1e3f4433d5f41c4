-- name: WriteProgress :many
-- purpose: write how far running jobs say they are, for the worker that still holds each of them.
-- callers: jobs.worker.reporter (at most once a second, and before the settle of a job whose newest
--     progress is not written yet), jobs.run (complete, in the transaction of the body)
-- tx: own autocommitted statement, or the transaction of the caller
-- locks: jobs.job rows, no key update, skip locked. Waits for nobody.
-- index: job_pkey
-- fence: claims and worker, tested in the locking step
-- rows: one for each pair asked (the ids asked are distinct): landed; busy (ours, but somebody
--     holds the row, a renewal for instance: send it again); lost (rescued, settled or removed).
-- cost: one primary key probe and one heap-only update a job, no index is written
-- errors: serialization failure in a REPEATABLE READ transaction older than the newest renewal
-- nullable: @messages
with /* jobs:write_progress */ asked as (
    select
        unnest(@ids::uuid[]) as id,
        unnest(@claims::bigint[]) as claims,
        unnest(@fractions::real[]) as fraction,
        unnest(@messages::text[]) as message
),

held as materialized (
    select
        j.id,
        j.claims,
        a.fraction,
        a.message
    from asked as a
    inner join jobs.job as j on a.id = j.id
    where j.claims = a.claims and j.worker = @worker::text
    for no key update of j skip locked
),

written as (
    update jobs.job as j
    set
        progress = h.fraction,
        progress_message = h.message
    from held as h
    where j.id = h.id
    returning
        j.id,
        j.claims
)

select
    a.id::uuid as id,
    a.claims::bigint as claims,
    (case
        when (a.id, a.claims) in (
            select
                w.id,
                w.claims
            from written as w
        ) then 'landed'
        when exists (
            select 1
            from jobs.job as j
            where j.id = a.id and j.claims = a.claims and j.worker = @worker::text
        ) then 'busy'
        else 'lost'
    end)::text as verdict
from asked as a;
