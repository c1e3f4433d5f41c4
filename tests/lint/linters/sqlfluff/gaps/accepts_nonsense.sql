select j.id
from jobs.job as j
limit limit 3;
