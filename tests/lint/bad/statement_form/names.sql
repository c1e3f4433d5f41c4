-- purpose: before the first name line
-- name: Claim :many
select /* jobs:claim */ 1 as one;

-- name: claim_jobs :many
select /* jobs:claim_jobs */ 1 as one;

-- name: QueueStats :many
select /* jobs:queue_stats */ 1 as one;

-- name: ClaimJobs :many
select 1 as one;

-- name: ClaimMoreJobs :many
/* jobs:claim_more_jobs */ select 1 as one;

-- name: ClaimFewJobs :many
select /* jobs:claim_some_jobs */ 1 as one;

-- name: ClaimAllJobs :many
select /* jobs:claim_all_jobs */ 1 as one /* jobs:other */;

-- name: ClaimTwice :many
select /* jobs:claim_twice */ 1 as one;
select 2 as two;

-- name: ClaimOpen :many
select /* jobs:claim_open */ 1 as one
