table jobs.job;
