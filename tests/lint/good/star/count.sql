-- select * and returning *
/* select * /* returning * */ */
select
    count(*) as jobs,
    2 * 3 as six,
    'select * from jobs.job' as text
from jobs.job as j;
