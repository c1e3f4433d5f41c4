with moved as (
    update jobs.job as j
    set state = 'ready'
    where j.id = any(@ids::uuid[])
    returning
        j.id,
        j.queue
)

select
    m.queue,
    count(*) as jobs
from moved as m
group by m.queue;
