-- sqlfluff:rules:LT05:ignore_comment_lines:True
-- squawk-ignore-file
SELECT 1 as one; -- noqa: CP01
-- @sqlc-vet-disable
-- squawk-ignore ban-drop-table
drop table jobs.job;
