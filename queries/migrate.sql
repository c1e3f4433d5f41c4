-- name: LockMigrations :exec
-- purpose: let one process migrate at a time.
-- callers: jobs.migrate
-- tx: the migration; released at its end
-- locks: transaction-level advisory lock of the given key. Waits for another migration, at most the
--     lock timeout.
-- index: none
-- fence: none
-- cost: one call
-- errors: lock timeout
select /* jobs:lock_migrations */ pg_advisory_xact_lock(@lock_key::bigint);

-- name: PrepareMigration :one
-- purpose: settings of the migrating transaction: an empty search path, so that no unqualified name
--     can hit a trap, and a short lock timeout, so that a waiting change of a table never holds up
--     its readers and writers.
-- callers: jobs.migrate
-- tx: the migration; the settings end with it
-- locks: none
-- index: none
-- fence: none
-- rows: the settings as set
-- cost: two calls
select /* jobs:prepare_migration */
    set_config('search_path', 'pg_catalog', true)::text as search_path,
    set_config('lock_timeout', @lock_timeout::text, true)::text as lock_timeout;

-- name: SchemaStatus :one
-- purpose: what is installed, and which rights the role lacks to install the rest.
-- callers: jobs.migrate
-- tx: any
-- locks: none
-- index: catalog
-- fence: none, it reads
-- rows: one
-- cost: catalog look-ups
select /* jobs:schema_status */
    current_user::text as role_name,
    current_database()::text as database_name,
    current_setting('server_version_num')::integer as server_version,
    exists (select 1 from pg_catalog.pg_namespace as n where n.nspname = 'jobs') as schema_exists,
    exists (
        select 1
        from pg_catalog.pg_class as c
        inner join pg_catalog.pg_namespace as n on c.relnamespace = n.oid
        where n.nspname = 'jobs' and c.relname = 'migration' and c.relkind = 'r'
    ) as migration_exists,
    has_database_privilege(current_user, current_database(), 'CREATE')::boolean as may_create_schema,
    coalesce(
        (
            select has_schema_privilege(current_user, n.oid, 'CREATE')
            from pg_catalog.pg_namespace as n
            where n.nspname = 'jobs'
        ),
        false
    )::boolean as may_create_tables;

-- name: ListMigrations :many
-- purpose: the schema files applied to this database.
-- callers: jobs.migrate
-- tx: any
-- locks: none
-- index: migration_pkey
-- fence: none, it reads
-- rows: one a file, in order of version
-- cost: some rows
select /* jobs:list_migrations */
    m.version,
    m.name,
    m.checksum,
    m.applied_at
from jobs.migration as m
order by m.version;

-- name: RecordMigration :exec
-- purpose: note a schema file as applied.
-- callers: jobs.migrate, in the transaction that sent the file
-- tx: the migration
-- locks: the new row
-- index: migration_pkey
-- fence: the primary key, and the advisory lock of LockMigrations
-- cost: one insert
insert /* jobs:record_migration */ into jobs.migration (version, name, checksum)
values (@version::integer, @name::text, @checksum::text);
