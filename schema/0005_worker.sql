-- what:     the registry of worker processes, so that operators can look at them
-- lock:     none on existing objects
-- time:     constant
-- rollback: drop table jobs.worker, once no process that needs version 5 runs any more

-- One row a worker process, written by it twice a minute and deleted when it stops. It is for
-- looking at, and nothing else: no claim, renewal, settle or rescue reads it, and with the table
-- emptied by hand everything goes on as before. What a process holds is on the rows of its jobs.
--
-- Unlogged: a crash of the server empties the table, and half a minute later every live worker is
-- back in it. A standby cannot read it.
create unlogged table jobs.worker (
    id uuid not null,
    started_at timestamptz not null default now(),
    beat_at timestamptz not null default now(),
    expires_at timestamptz not null,
    claimed bigint not null default 0,
    completed bigint not null default 0,
    retried bigint not null default 0,
    ended bigint not null default 0,
    cancelled bigint not null default 0,
    buried bigint not null default 0,
    released bigint not null default 0,
    lost bigint not null default 0,
    in_flight bigint not null default 0,
    process bigint not null,
    state text not null,
    name text not null,
    host text not null,
    version text not null,
    queues text[] not null,
    slots bigint[] not null,
    running_ids uuid[] not null,
    running_names text[] not null,
    constraint worker_pkey primary key (id),
    constraint worker_state_check check (state in ('running', 'draining')),
    constraint worker_name_check check (octet_length(name) between 1 and 255),
    constraint worker_queues_check check (cardinality(queues) = cardinality(slots)),
    constraint worker_running_check check (
        cardinality(running_ids) = cardinality(running_names) and cardinality(running_ids) <= 100
    )
) with (
    -- a beat rewrites its row and no index holds what changes: room for it on the page
    fillfactor = 50,
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_cost_delay = 0,
    -- giving pages back takes an access exclusive lock
    vacuum_truncate = false
);

comment on table jobs.worker is 'Worker processes, for looking at. Rows expire and nothing relies on them.';
comment on column jobs.worker.id is 'Made anew at each start: two processes of one name are two rows.';
comment on column jobs.worker.started_at is 'When the process wrote the row first.';
comment on column jobs.worker.claimed is 'Claims since its start, rescued jobs included.';
comment on column jobs.worker.completed is 'Jobs that ended well here.';
comment on column jobs.worker.retried is 'Failed attempts that left the job ready for another.';
comment on column jobs.worker.ended is 'Jobs that ended as dead or failed by a settle of this process.';
comment on column jobs.worker.cancelled is 'Jobs that ended as cancelled by a settle of this process.';
comment on column jobs.worker.buried is 'Jobs of others that its claims ended because their last lease had lapsed.';
comment on column jobs.worker.released is 'Jobs handed back without using an attempt.';
comment on column jobs.worker.lost is 'Runs whose lease was lost, so that nothing of them was recorded.';
comment on column jobs.worker.state is 'running, or draining: it claims nothing more and waits for what runs.';
comment on column jobs.worker.host is 'Name of its host as it knows it.';
comment on column jobs.worker.queues is 'The queues it serves.';
comment on column jobs.worker.beat_at is 'When the process wrote the row last.';
comment on column jobs.worker.expires_at is 'After this instant the process is taken for gone and the row is removed.';
comment on column jobs.worker.in_flight is 'Jobs claimed and not settled yet.';
comment on column jobs.worker.process is 'Process id on its host.';
comment on column jobs.worker.name is 'Label of the process as on the rows of its jobs. Need not be unique.';
comment on column jobs.worker.version is 'Version of the library that it runs.';
comment on column jobs.worker.slots is 'How many jobs of the queue at the same place of queues may run at the same time.';
comment on column jobs.worker.running_ids is 'At most 100 of the jobs in flight, oldest claim first.';
comment on column jobs.worker.running_names is 'Their names, at the same places.';
