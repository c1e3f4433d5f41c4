select id
fro jobs.job;
