-- name: ReadSession :one
-- purpose: whether the settings that a worker asks for at connection time took effect (a pooler in
--     between drops them), and which schema version the database has.
-- callers: jobs.worker.link, once after each connect
-- tx: own autocommitted statement
-- locks: none
-- index: migration_pkey
-- fence: none, it reads
-- rows: one
-- cost: one index probe
-- errors: undefined table where the schema is not installed
select /* jobs:read_session */
    current_setting('plan_cache_mode')::text as plan_cache_mode,
    coalesce(
        (
            select m.version
            from jobs.migration as m
            order by m.version desc
            limit 1
        ),
        0
    )::integer as schema_version;
