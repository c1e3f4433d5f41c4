-- name: LockJobs :many
-- purpose: fixture
-- callers: jobs.errors
-- locks: jobs.job rows. Waits for nobody.
-- index: none
-- fence: held by a row lock
-- cost: nothing
select /* jobs:lock_jobs */ j.id
from jobs.job as j
for update of j;

-- name: LockAll :many
-- purpose: fixture
-- callers: jobs.errors
-- locks: jobs.job rows, skip locked
-- index: none
-- fence: held by a row lock
-- cost: nothing
select /* jobs:lock_all */ j.id
from jobs.job as j
for no key update skip locked;

-- name: ReadOnly :many
-- purpose: fixture
-- callers: jobs.errors
-- locks: none
-- index: none
-- fence: held by a row lock
-- cost: nothing
with /* jobs:read_only */ gone as (
    delete from jobs.pause as p
    where p.kind = 'queue'
)

select 1 as one;
