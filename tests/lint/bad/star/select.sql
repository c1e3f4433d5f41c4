select * from jobs.job;
select distinct * from jobs.job;
select /* a /* nested */ comment */ * from jobs.job;
select distinct on (queue) * from jobs.job;
