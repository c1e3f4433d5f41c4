SELECT j.id -- noqa
from jobs.job as j;
