-- name: ReadSchemaStatus :one
-- purpose: what is installed and where, to decide whether there is anything to do.
-- callers: jobs.migrate (check, migrate, render)
-- tx: any
-- locks: none
-- index: pg_namespace_nspname_index, pg_class_relname_nsp_index
-- fence: none, it reads
-- rows: one. writable is false on a standby and in a read-only transaction; migration_exists says
--     whether jobs.migration can be read at all.
-- cost: catalog look-ups
-- nullable: -schema_exists, -migration_exists
select /* jobs:read_schema_status */
    current_user::text as role_name,
    pg_catalog.current_database()::text as database_name,
    pg_catalog.current_setting('server_version_num')::integer as server_version,
    pg_catalog.current_setting('transaction_read_only')::text = 'off' as writable,
    (n.oid is not null)::boolean as schema_exists,
    (c.oid is not null)::boolean as migration_exists
from (select 'jobs'::pg_catalog.name as nspname) as wanted
left join pg_catalog.pg_namespace as n on wanted.nspname = n.nspname
left join pg_catalog.pg_class as c
    on n.oid = c.relnamespace and c.relname = 'migration' and c.relkind = 'r';

-- name: ListMissingRights :many
-- purpose: which rights the role lacks to read what is installed and to install the rest, before
--     anything is tried. By name and with the grant that gives each, names quoted by the server.
-- callers: jobs.migrate (check, migrate, render)
-- tx: any
-- locks: none
-- index: pg_namespace_nspname_index, pg_class_relname_nsp_index
-- fence: none, it reads
-- rows: one for each right that is missing, in the order in which they are needed; none where all
--     are there. to_read marks those that even a check needs.
-- cost: catalog look-ups
with /* jobs:list_missing_rights */ installed as (
    select
        n.oid as schema_oid,
        c.oid as migration_oid,
        c.relowner as owner_oid
    from pg_catalog.pg_namespace as n
    left join pg_catalog.pg_class as c
        on n.oid = c.relnamespace and c.relname = 'migration' and c.relkind = 'r'
    where n.nspname = 'jobs'
),

named as (
    select
        pg_catalog.format('%I', current_user) as role_name,
        pg_catalog.format('%I', pg_catalog.current_database()) as database_name
),

needed as (
    select
        1 as place,
        false as to_read,
        'create on database ' || n.database_name as right_name,
        'grant create on database ' || n.database_name || ' to ' || n.role_name as remedy,
        pg_catalog.has_database_privilege(
            current_user, pg_catalog.current_database(), 'create'
        ) as held
    from named as n
    where not exists (select 1 from installed)
    union all
    select
        2 as place,
        true as to_read,
        'usage on schema jobs' as right_name,
        'grant usage on schema jobs to ' || n.role_name as remedy,
        pg_catalog.has_schema_privilege(current_user, i.schema_oid, 'usage') as held
    from named as n
    cross join installed as i
    union all
    select
        3 as place,
        false as to_read,
        'create on schema jobs' as right_name,
        'grant create on schema jobs to ' || n.role_name as remedy,
        pg_catalog.has_schema_privilege(current_user, i.schema_oid, 'create') as held
    from named as n
    cross join installed as i
    union all
    select
        4 as place,
        true as to_read,
        'select on table jobs.migration' as right_name,
        'grant select on table jobs.migration to ' || n.role_name as remedy,
        pg_catalog.has_table_privilege(current_user, i.migration_oid, 'select') as held
    from named as n
    cross join installed as i
    where i.migration_oid is not null
    union all
    select
        5 as place,
        false as to_read,
        'membership in ' || pg_catalog.format('%I', owner.rolname)
        || ', which owns the tables' as right_name,
        'grant ' || pg_catalog.format('%I', owner.rolname) || ' to ' || n.role_name as remedy,
        pg_catalog.pg_has_role(current_user, owner.oid, 'usage') as held
    from named as n
    cross join installed as i
    inner join pg_catalog.pg_roles as owner on i.owner_oid = owner.oid
)

select
    n.right_name::text as right_name,
    n.remedy::text as remedy,
    n.to_read::boolean as to_read
from needed as n
where not n.held
order by n.place;

-- name: ListMigrations :many
-- purpose: the schema files applied to this database.
-- callers: jobs.migrate (check, migrate, render)
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
    m.applied_at,
    m.applied_by
from jobs.migration as m
order by m.version;

-- name: BeginMigration :exec
-- purpose: open the migrating transaction of a printed script.
-- callers: jobs.migrate (render, as text; while migrating itself the driver sends the same)
-- tx: opens it
-- locks: none
-- index: none
-- fence: none, it changes nothing
-- cost: one call
begin /* jobs:begin_migration */ transaction;

-- name: PrepareMigration :one
-- purpose: settings of the migrating transaction: a search path without traps, strings read by the
--     standard, and a short lock timeout, so that a change of a table that waits for a long reader
--     does not hold up everybody behind it.
-- callers: jobs.migrate (migrate, render)
-- tx: the migration; the settings end with it
-- locks: none
-- index: none
-- fence: none, it changes settings of its own transaction
-- rows: the settings as set
-- cost: three calls
select /* jobs:prepare_migration */
    pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true) as search_path,
    pg_catalog.set_config('standard_conforming_strings', 'on', true) as conforming,
    pg_catalog.set_config('lock_timeout', @lock_timeout::text, true) as lock_timeout;

-- name: LockMigrations :exec
-- purpose: let one process migrate at a time.
-- callers: jobs.migrate (migrate, render), only when something is pending
-- tx: the migration; released at its end
-- locks: transaction-level advisory lock of the given key. Waits for another migration, at most the
--     lock timeout.
-- index: none
-- fence: none, it is the lock
-- cost: one call
-- errors: lock timeout
select /* jobs:lock_migrations */ pg_catalog.pg_advisory_xact_lock(@lock_key::bigint);

-- name: RecordMigration :exec
-- purpose: note a schema file as applied.
-- callers: jobs.migrate (migrate, render), in the transaction that sent the file
-- tx: the migration
-- locks: the new row
-- index: migration_pkey
-- fence: the primary key, and the advisory lock of LockMigrations
-- cost: one insert
insert /* jobs:record_migration */ into jobs.migration (version, name, checksum)
values (@version::integer, @name::text, @checksum::text);

-- name: CommitMigration :exec
-- purpose: end the migrating transaction of a printed script.
-- callers: jobs.migrate (render, as text; while migrating itself the driver sends the same)
-- tx: commits it
-- locks: releases them
-- index: none
-- fence: none, the advisory lock of LockMigrations is held until here
-- cost: one call
commit /* jobs:commit_migration */ transaction;

-- name: ListLockHolders :many
-- purpose: who stands in the way of a migration that gave up waiting, for its error message.
-- callers: jobs.migrate (migrate), after the last attempt
-- tx: its own
-- locks: none
-- index: none
-- fence: none, it reads
-- clock: clock_timestamp() for how long the transaction has been open
-- rows: sessions with a lock on a table of the schema or with the lock of LockMigrations, the
--     longest transaction first. What the role may not see of others is null.
-- cost: the lock table of the server, once
-- nullable: role_name, application, state, open_for, -pid
select /* jobs:list_lock_holders */
    a.pid::integer as pid,
    a.usename::text as role_name,
    a.application_name::text as application,
    a.state::text as state,
    (pg_catalog.clock_timestamp() - a.xact_start)::interval as open_for
from pg_catalog.pg_stat_activity as a
where
    a.pid <> pg_catalog.pg_backend_pid()
    and a.datname = pg_catalog.current_database()
    and exists (
        select 1
        from pg_catalog.pg_locks as l
        left join pg_catalog.pg_class as c
            on l.relation = c.oid and l.locktype = 'relation'
        left join pg_catalog.pg_namespace as n on c.relnamespace = n.oid
        where
            l.pid = a.pid
            and l.granted
            and (
                n.nspname = 'jobs'
                or (
                    l.locktype = 'advisory'
                    and l.objsubid = 1
                    and (l.classid::bigint << 32) + l.objid::bigint = @lock_key::bigint
                )
            )
    )
order by a.xact_start asc nulls last
limit 5;
