-- name: FinishHeld :exec
-- purpose: fixture
-- callers: jobs.errors
-- locks: jobs.job rows, skip locked
-- index: job_pkey
-- fence: claims, in the locking step
-- cost: nothing
with /* jobs:finish_held */ held as (
    select j.id
    from jobs.job as j
    where j.claims = any(@claims::bigint[])
    for update of j skip locked
),

chosen as (
    select h.id
    from held as h
)

delete from jobs.job as j
where j.id = any(array(select c.id from chosen as c));

-- name: FinishFenced :exec
-- purpose: fixture
-- callers: jobs.errors
-- locks: jobs.job row. Waits for whoever holds it.
-- index: job_pkey
-- fence: claims
-- cost: nothing
update /* jobs:finish_fenced */ jobs.job as j
set state = 'ready'
where j.id = @id::uuid and j.claims = @claims::bigint;

-- name: FinishAny :exec
-- purpose: fixture
-- callers: jobs.errors
-- locks: jobs.job row. Waits for whoever holds it.
-- index: job_pkey
-- fence: none, an operator asked for it
-- cost: nothing
delete /* jobs:finish_any */ from jobs.job as j
where j.id = @id::uuid;

-- name: LockJob :one
-- purpose: fixture
-- callers: jobs.errors
-- locks: jobs.job row. Waits for the worker that settles it.
-- index: job_pkey
-- fence: none, it reads
-- cost: nothing
select /* jobs:lock_job */ j.id
from jobs.job as j
where j.id = @id::uuid
for update of j;
