select 'thing'::regclass, 'jobs.thing'::regclass, nextval('thing_id'), nextval('jobs.thing_id');
