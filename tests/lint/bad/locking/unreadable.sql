-- name: ReadOne :one
-- purpose: fixture
-- callers: jobs.errors
-- locks: rows
-- index: none
-- fence: held by a row lock
-- cost: nothing
select /* jobs:read_one */ 1 as one fro;

-- name: DeleteAll :exec
-- purpose: fixture
-- callers: jobs.errors
-- locks: rows
-- index: none
-- fence: held by a row lock
-- cost: nothing
delete /* jobs:delete_all */ from jobs.pause;
