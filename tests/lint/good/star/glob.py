"""Stars that are no columns: 2 * 3, *args, jobs.* and `count(*)`."""

PATTERN = "jobs.*"
# select * from a comment
COUNT = "select count(*) from jobs.job"
PRODUCT = "select a.b * 3"
