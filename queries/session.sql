-- name: ReadSession :one
-- purpose: whether the session is the worker alone: a pooler in between drops the settings that
--     were asked for at connection time, and announces another process than the one that answers.
--     And which schema version the database has, and what its clock shows.
-- callers: jobs.service.link, once after each connect
-- tx: own autocommitted statement
-- locks: none
-- index: migration_pkey
-- fence: none, it reads
-- rows: one
-- cost: one index probe
-- errors: undefined table where the schema is not installed
select /* jobs:read_session */
    pg_backend_pid()::integer as backend_pid,
    current_setting('plan_cache_mode')::text as plan_cache_mode,
    clock_timestamp()::timestamptz as read_at,
    coalesce(
        (
            select m.version
            from jobs.migration as m
            order by m.version desc
            limit 1
        ),
        0
    )::integer as schema_version;
