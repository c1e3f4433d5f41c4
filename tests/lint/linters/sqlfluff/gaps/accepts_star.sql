select (j).* from jobs.job as j;
delete from jobs.job as j
where j.claims = 1
returning *;
