select found.id
from jobs.pause as p
cross join lateral (
    select j.id
    from jobs.job as j
    where j.queue = p.name
    order by j.available_at
    limit greatest(1, @free::integer)
    for no key update of j skip locked
) as found;
