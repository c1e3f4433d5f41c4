-- name: DeleteAll :exec
-- purpose: fixture
-- callers: jobs.errors
-- locks: rows
-- index: none
-- fence: held by a row lock
-- cost: nothing
delete /* jobs:delete_all */ from jobs.pause;

-- name: FinishJobs :exec
-- purpose: fixture
-- callers: jobs.errors
-- locks: rows
-- index: none
-- fence: held by a row lock
-- cost: nothing
update /* jobs:finish_jobs */ jobs.job as j
set state = 'ready'
where j.id = any(@ids::uuid[]) and j.state = 'running';

-- name: FinishRead :exec
-- purpose: fixture
-- callers: jobs.errors
-- locks: rows
-- index: none
-- fence: held by a row lock
-- cost: nothing
with /* jobs:finish_read */ found as (
    select j.id
    from jobs.job as j
    where j.state = 'running'
)

delete from jobs.job as j
where j.id = any(array(select f.id from found as f));

-- name: FinishMixed :exec
-- purpose: fixture
-- callers: jobs.errors
-- locks: rows
-- index: none
-- fence: held by a row lock
-- cost: nothing
with /* jobs:finish_mixed */ held as (
    select j.id
    from jobs.job as j
    for update of j skip locked
),

other as (
    select s.id
    from jobs.settled as s
)

update jobs.job as j
set state = 'ready'
from held as h, other as o
where j.id = o.id;

-- name: MergeJobs :exec
-- purpose: fixture
-- callers: jobs.errors
-- locks: rows
-- index: none
-- fence: held by a row lock
-- cost: nothing
merge /* jobs:merge_jobs */ into jobs.job as j
using jobs.settled as s on j.id = s.id
when matched then delete;
