select
    exists (select 1 from jobs.job) as busy,
    not exists (select 1 from jobs.job) as idle;
