-- name: ReadOne :one
select /* jobs:read_one */ 'open;
