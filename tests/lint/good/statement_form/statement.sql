-- name: ReadJob :one
-- purpose: any comment lines
--     with continuations
with /* jobs:read_job */ found as (
    select j.id
    from jobs.job as j
    where
        j.id = @id::uuid
        and j.queue = sqlc.narg('queue')::text /* null for every queue */
        and j.worker <> 'someone@example.org'
        and j.input::jsonb @> @part::jsonb
)

select f.id
from found as f;

-- name: CopyJobs :copyfrom
insert into jobs.job (id, run_id) values (@id, @run_id);
