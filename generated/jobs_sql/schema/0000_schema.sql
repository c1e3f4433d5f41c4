-- what:     the schema that holds everything. Sent only where it does not exist yet, because
--           a plain create schema asks for CREATE on the database even when it does.
-- lock:     none on existing objects
-- time:     constant
-- rollback: drop schema jobs

create schema if not exists jobs;
