-- name: ReadJob :one
select /* jobs:read_job */ j.id
from jobs.job as j
where
    j.id = @id
    and j.queue = sqlc.arg('queue')::text
    and j.name = sqlc.narg('name')
    and j.tenant = sqlc.narg(tenant)::text
    and j.claims =@claims::bigint
    and j.created_at > now() - interval '@seconds seconds'
    and j.worker like 'sqlc.narg(x)'
    and j.state = any(sqlc.slice('states')::text[])
    and j.attempt >= @attempt ::bigint
    and j.enqueued_by <> 'someone@example'
    and j.input::jsonb @> @part::jsonb;

-- name: CopyJobs :copyfrom
insert into jobs.job (id, run_id) values (@id, @run_id);
