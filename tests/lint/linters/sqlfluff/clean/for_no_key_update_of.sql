select j.id
from jobs.job as j
inner join jobs.settled as s on j.run_id = s.run_id
where j.id = any(@ids::uuid[])
for no key update of j;
