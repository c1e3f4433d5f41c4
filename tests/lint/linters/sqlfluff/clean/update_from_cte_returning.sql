with asked as (
    select unnest(@ids::uuid[]) as id
)

update jobs.job as j
set state = 'ready'
from asked as a
where j.id = a.id
returning j.id;
