delete from jobs.job as j where j.id = $1 returning *;
with gone as (delete from jobs.job as j where j.id = $1 returning j.*)
select g.id from gone as g;
