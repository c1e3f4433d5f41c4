select j.id
from jobs.job as j
where j.state = 'ready'
order by j.available_at, j.id
limit @max_jobs::integer
for update skip locked;
