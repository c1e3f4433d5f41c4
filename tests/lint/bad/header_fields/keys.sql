-- name: ReadOne :one
-- purpose: read
-- callers: jobs.errors
-- locks: none
-- index: none
-- cost: nothing
select /* jobs:read_one */ 1 as one;

-- name: ReadTwo :one
-- purpose: read
-- author: somebody
select /* jobs:read_two */ 2 as two;

-- name: ReadThree :one
-- purpose: read
-- purpose: read again
select /* jobs:read_three */ 3 as three;

-- name: ReadFour :one
-- a remark without a key
select /* jobs:read_four */ 4 as four;
