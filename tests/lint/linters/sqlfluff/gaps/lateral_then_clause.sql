select probe.id
from jobs.pause as p
cross join lateral (
    select j.id
    from jobs.job as j
    where j.queue = p.name
) as probe
limit 3;
