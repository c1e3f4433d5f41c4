-- name: ReadOne :one
-- purpose: a header may have comment lines
select /* jobs:read_one */
    1 as one, -- dropped by sqlc
    -- dropped as well
    2 as two /* stays */;
-- belongs to the next statement

-- name: ReadTwo :one
select /* jobs:read_two */ 2 as two /* nested /* comment */ */; /* late */
