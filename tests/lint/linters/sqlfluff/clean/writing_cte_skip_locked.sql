with held as materialized (
    select j.id
    from jobs.job as j
    where j.claims = @claims::bigint
    for update of j skip locked
),

gone as (
    delete from jobs.job as j
    where j.id = any(array(select h.id from held as h))
    returning j.id
),

kept as (
    insert into jobs.settled (id)
    select g.id
    from gone as g
    on conflict (id) do nothing
    returning id
)

select k.id
from kept as k;
