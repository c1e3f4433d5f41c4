select j.id
from jobs.job as j
where j.id = = 1;
