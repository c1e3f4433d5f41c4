select 'thing'::regclass, 'jobs.thing'::regclass, nextval('thing_id'), nextval('jobs.thing_id');
select currval('thing_id');
select setval('thing_id', 1);
select to_regclass('thing');
select pg_relation_size('thing');
select has_table_privilege('thing', 'select');
