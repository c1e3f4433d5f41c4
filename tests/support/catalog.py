"""Everything a schema consists of, as lines of text, to compare two databases."""

from __future__ import annotations

from typing import Any

from psycopg import Connection, RawCursor

_PARTS = (
    # The schema itself.
    """
    select format('schema %I comment=%L acl=%s', n.nspname, obj_description(n.oid), n.nspacl)
    from pg_namespace as n where n.nspname = $1::name
    """,
    # Tables, indexes, views, sequences, composite types.
    """
    select format(
        '%s %s persistence=%s rls=%s/%s options=%s toast=%s method=%s replica=%s comment=%L acl=%s',
        case c.relkind
            when 'r' then 'table' when 'i' then 'index' when 'v' then 'view'
            when 'm' then 'matview' when 'S' then 'sequence' when 'c' then 'type'
            when 'p' then 'partitioned' when 'f' then 'foreign' else c.relkind::text
        end,
        c.oid::regclass, c.relpersistence, c.relrowsecurity, c.relforcerowsecurity, c.reloptions,
        (select t.reloptions from pg_class as t where t.oid = c.reltoastrelid),
        (select a.amname from pg_am as a where a.oid = c.relam), c.relreplident,
        obj_description(c.oid, 'pg_class'), c.relacl
    )
    from pg_class as c
    where c.relnamespace = (select oid from pg_namespace where nspname = $1::name)
    """,
    # Columns, in their order.
    """
    select format(
        'column %s.%I #%s %s not_null=%s default=%s identity=%s generated=%s collation=%s '
        'storage=%s compression=%s statistics=%s options=%s comment=%L acl=%s',
        c.oid::regclass, a.attname,
        row_number() over (partition by c.oid order by a.attnum),
        format_type(a.atttypid, a.atttypmod), a.attnotnull,
        (
            select pg_get_expr(d.adbin, d.adrelid) from pg_attrdef as d
            where d.adrelid = a.attrelid and d.adnum = a.attnum
        ),
        a.attidentity, a.attgenerated,
        (select l.collname from pg_collation as l where l.oid = a.attcollation),
        a.attstorage, a.attcompression, a.attstattarget, a.attoptions,
        col_description(c.oid, a.attnum), a.attacl
    )
    from pg_class as c
    inner join pg_attribute as a on a.attrelid = c.oid
    where
        c.relnamespace = (select oid from pg_namespace where nspname = $1::name)
        and c.relkind in ('r', 'v', 'm', 'p', 'f', 'c') and a.attnum > 0 and not a.attisdropped
    """,
    # Constraints, also those of domains.
    """
    select format(
        'constraint %s.%I %s valid=%s comment=%L',
        coalesce(c.conrelid::regclass::text, c.contypid::regtype::text), c.conname,
        pg_get_constraintdef(c.oid), c.convalidated, obj_description(c.oid, 'pg_constraint')
    )
    from pg_constraint as c
    where c.connamespace = (select oid from pg_namespace where nspname = $1::name)
    """,
    """
    select format(
        'index %s valid=%s clustered=%s',
        pg_get_indexdef(i.indexrelid), i.indisvalid, i.indisclustered
    )
    from pg_index as i
    inner join pg_class as c on c.oid = i.indexrelid
    where c.relnamespace = (select oid from pg_namespace where nspname = $1::name)
    """,
    """
    select format('trigger %s enabled=%s', pg_get_triggerdef(t.oid), t.tgenabled)
    from pg_trigger as t
    inner join pg_class as c on c.oid = t.tgrelid
    where
        c.relnamespace = (select oid from pg_namespace where nspname = $1::name)
        and not t.tgisinternal
    """,
    """
    select format(
        'routine %s comment=%L acl=%s %s', p.oid::regprocedure, obj_description(p.oid, 'pg_proc'),
        p.proacl, case when p.prokind in ('f', 'p') then pg_get_functiondef(p.oid) end
    )
    from pg_proc as p
    where p.pronamespace = (select oid from pg_namespace where nspname = $1::name)
    """,
    """
    select format('view %s %s', c.oid::regclass, pg_get_viewdef(c.oid))
    from pg_class as c
    where
        c.relnamespace = (select oid from pg_namespace where nspname = $1::name)
        and c.relkind in ('v', 'm')
    """,
    """
    select format(
        'sequence %s %s start=%s increment=%s min=%s max=%s cache=%s cycle=%s',
        s.seqrelid::regclass, s.seqtypid::regtype, s.seqstart, s.seqincrement, s.seqmin, s.seqmax,
        s.seqcache, s.seqcycle
    )
    from pg_sequence as s
    inner join pg_class as c on c.oid = s.seqrelid
    where c.relnamespace = (select oid from pg_namespace where nspname = $1::name)
    """,
    """
    select format(
        'type %s kind=%s labels=%s base=%s not_null=%s default=%s comment=%L',
        t.oid::regtype, t.typtype,
        (
            select array_agg(e.enumlabel order by e.enumsortorder)
            from pg_enum as e where e.enumtypid = t.oid
        ),
        format_type(t.typbasetype, t.typtypmod), t.typnotnull, t.typdefault,
        obj_description(t.oid, 'pg_type')
    )
    from pg_type as t
    where t.typnamespace = (select oid from pg_namespace where nspname = $1::name)
    """,
    """
    select format(
        'policy %s.%I %s permissive=%s using=%s check=%s',
        p.polrelid::regclass, p.polname, p.polcmd, p.polpermissive,
        pg_get_expr(p.polqual, p.polrelid), pg_get_expr(p.polwithcheck, p.polrelid)
    )
    from pg_policy as p
    inner join pg_class as c on c.oid = p.polrelid
    where c.relnamespace = (select oid from pg_namespace where nspname = $1::name)
    """,
    """
    select format('statistics %s', pg_get_statisticsobjdef(s.oid))
    from pg_statistic_ext as s
    where s.stxnamespace = (select oid from pg_namespace where nspname = $1::name)
    """,
    """
    select format('default acl %s %s', d.defaclobjtype, d.defaclacl)
    from pg_default_acl as d
    where d.defaclnamespace = (select oid from pg_namespace where nspname = $1::name)
    """,
)


def dump(conn: Connection[Any], schema: str = "jobs") -> list[str]:
    """The definition of every object of a schema, sorted; empty where it does not exist.

    Owners are left out, granted rights are not. Names that the server makes up from numbers
    (constraint triggers, say) do not occur.
    """
    lines: list[str] = []
    with conn.transaction(force_rollback=True):
        # So that every name is printed with its schema.
        conn.execute("set local search_path = ''")
        cursor = RawCursor(conn)
        for part in _PARTS:
            cursor.execute(part.encode(), [schema])
            lines += [row[0] for row in cursor.fetchall()]
    return sorted(lines)
