-- what:     the notifications of the last minute, so that not every enqueue has to notify
-- lock:     none on existing objects
-- time:     constant
-- rollback: drop table jobs.wake, once no process that needs version 2 runs any more

-- A commit that notifies queues behind every other one that does, in the whole server, so few may.
-- An enqueue notifies, and inserts a row here, only where it sees no young row of its queue. Rows
-- are inserted and read, never updated or locked, and so nobody waits for anybody here: a row of a
-- transaction that stays open is simply not seen.
--
-- Unlogged: a row means nothing after a quarter of a second, so a crash may empty the table. And as
-- a table without a key it must stay out of a publication for all tables, which would refuse the
-- deletes.
create unlogged table jobs.wake (
    at timestamptz not null default clock_timestamp(),
    queue text not null
) with (
    -- up to a dozen rows a second and busy queue come and go, whatever the size of the table
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 2000,
    autovacuum_vacuum_insert_threshold = -1,
    autovacuum_analyze_scale_factor = 0,
    autovacuum_analyze_threshold = 10000,
    -- vacuum of a hot, small table must finish, not be polite
    autovacuum_vacuum_cost_delay = 0,
    -- giving pages back takes an access exclusive lock, which every enqueue would wait for
    vacuum_truncate = false
);

-- Enqueue: is there one of this queue that is younger than a quarter of a second? The dead rows
-- that a held snapshot keeps are all older, so the probe never meets them.
create index wake_queue_idx on jobs.wake (queue, at);

-- Pruning walks it from the old end.
create index wake_at_idx on jobs.wake (at);

comment on table jobs.wake is 'One row for each notification sent on the channel jobs_wake. Pruned after a minute.';
comment on column jobs.wake.at is 'When the enqueue decided to notify, which is before its transaction committed.';
