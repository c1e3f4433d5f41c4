-- select * is harmless here
select count(*) from jobs.job;

table jobs.job;
select j.id, j.* from jobs.job as j;
select (j).* from jobs.job as j;
select jobs.job.* from jobs.job;
select j.id from jobs.job as j where exists (select * from jobs.pause as p);
