-- name: ReadResult :one
-- purpose: whether a job has ended, how, and what its function returned.
-- callers: jobs.awaiting (JobHandle.result, again with back-off until the job has ended)
-- tx: any
-- locks: none
-- index: job_pkey, settled_pkey
-- fence: none, it reads
-- rows: the job, or nothing. Live and finished rows are read under one snapshot, so a job that is
--     just being moved is seen exactly once.
-- cost: two unique probes. Of a finished job the result is read, never the payload.
-- nullable: stop_reason, last_error, result
select /* jobs:read_result */
    both_tables.name,
    both_tables.state,
    both_tables.settled,
    both_tables.stop_reason,
    both_tables.last_error,
    both_tables.result
from (
    select
        j.name,
        j.state,
        false as settled,
        null::text as stop_reason,
        j.last_error,
        null::text as result
    from jobs.job as j
    where j.id = @id::uuid
    union all
    select
        s.name,
        s.state,
        true,
        s.stop_reason,
        s.last_error,
        s.result::text
    from jobs.settled as s
    where s.id = @id::uuid
) as both_tables
limit 1;
