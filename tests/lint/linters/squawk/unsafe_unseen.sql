truncate jobs.job;
lock table jobs.job in access exclusive mode;
