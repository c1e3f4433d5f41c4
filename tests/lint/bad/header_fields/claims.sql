-- name: ReadNothing :one
-- purpose: read
-- callers: jobs.errors, jobs.nowhere, jobs.errors.missing (never)
-- locks: none
-- index: job_pkey, job_imagined_idx for the rest
-- fence: none
-- cost: nothing
select /* jobs:read_nothing */ 1 as one;

-- name: ReadLittle :one
-- purpose: read
-- callers: the worker
-- locks: none
-- index: the primary key
-- fence: none because it reads
-- cost: nothing
select /* jobs:read_little */ 1 as one;

-- name: EnqueueJob :one
-- purpose: enqueue, as the real one does, but without its callers
-- callers: jobs.errors
-- locks: none
-- index: catalog
-- fence: none, it reads
-- cost: nothing
select /* jobs:enqueue_job */ 1 as one;
