-- what:     live jobs, finished jobs, failed attempts, outcome counters, slots, pauses, applied
--           migrations
-- lock:     none on existing objects
-- time:     constant
-- rollback: drop the seven tables

create table jobs.migration (
    version integer not null,
    name text not null,
    checksum text not null,
    applied_at timestamptz not null default clock_timestamp(),
    applied_by text not null default current_user,
    constraint migration_pkey primary key (version)
);

comment on table jobs.migration is 'Schema files applied to this database, with the SHA-256 of the bytes that were sent.';

-- Live jobs only. The settle moves a finished job to jobs.settled, so this table and its indexes
-- stay as small as the backlog, whatever the history.
--
-- Column order is chosen for the write-ahead log: what changes during a job comes first, what is
-- written once comes last and the payload at the very end. An update that stays on its page logs
-- only the bytes between the first and the last change, so no claim, renewal or retry logs the
-- payload again. The fill factor leaves that room. Where wal_level is logical the server logs whole
-- rows, and only payloads that are large enough to be stored apart (about 2 kB) are spared.
create table jobs.job (
    id uuid not null,
    available_at timestamptz not null default clock_timestamp(),
    claimed_at timestamptz,
    lease_expires_at timestamptz,
    rescue_at timestamptz,
    cancel_requested_at timestamptz,
    waiting_since timestamptz,
    claims bigint not null default 0,
    revoked bigint not null default 0,
    attempt bigint not null default 0,
    progress real,
    state text not null default 'ready',
    worker text,
    progress_message text,
    cancel_reason text,
    last_error text,
    unique_key bytea,
    run_id uuid not null,
    created_at timestamptz not null default clock_timestamp(),
    max_attempts bigint not null,
    priority smallint not null default 0,
    dead_letter boolean not null default true,
    ahead boolean not null default false,
    queue text not null,
    name text not null,
    tenant text not null default '',
    idempotency_scope text not null default 'live',
    idempotency_key text,
    concurrency_limit bigint,
    when_busy text,
    concurrency_key text,
    traceparent text,
    enqueued_by text,
    input json not null,
    constraint job_pkey primary key (id),
    constraint job_state_check check (state in ('ready', 'running', 'suspended', 'blocked')),
    constraint job_holder_check check (
        (state = 'running') = (worker is not null)
        and (state = 'running') = (lease_expires_at is not null)
        and (state = 'running') = (rescue_at is not null)
    ),
    -- Only a running row has a request, but a check that also names the state would fail the cancel
    -- whose snapshot has missed the claim: constraints are tested on the old version first.
    constraint job_cancel_check check (cancel_reason is null or cancel_requested_at is not null),
    constraint job_fence_check check (revoked >= 0 and claims >= revoked),
    constraint job_attempt_check check (attempt >= 0 and max_attempts >= 1),
    constraint job_progress_check check (progress between 0 and 1),
    constraint job_concurrency_check check (
        (concurrency_key is null) = (concurrency_limit is null)
        and (concurrency_key is null) = (when_busy is null)
        and concurrency_limit >= 1
        and when_busy in ('wait', 'fail')
        -- with the name of a queue it fits into an entry of an index
        and octet_length(concurrency_key) between 1 and 1800
    ),
    constraint job_priority_check check (priority between 0 and 3),
    -- what Python cannot read would fail the whole claim that returns it, for all the others in it
    constraint job_time_check check (
        available_at between '0001-01-02 00:00+00' and '9999-12-30 00:00+00'
        and created_at between '0001-01-02 00:00+00' and '9999-12-30 00:00+00'
    ),
    constraint job_scope_check check (idempotency_scope in ('live', 'waiting')),
    constraint job_unique_key_check check (unique_key is null or idempotency_key is not null),
    constraint job_queue_check check (octet_length(queue) between 1 and 255),
    constraint job_name_check check (octet_length(name) between 1 and 255),
    constraint job_tenant_check check (octet_length(tenant) <= 255)
) with (
    -- room for the new version that a claim writes beside the old one, see above
    fillfactor = 50,
    -- a queue turns its whole table over, so a share of the table is the wrong trigger
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_threshold = 2000,
    autovacuum_analyze_scale_factor = 0.05,
    autovacuum_analyze_threshold = 2000,
    -- vacuum of a hot, small table must finish, not be polite
    autovacuum_vacuum_cost_delay = 0,
    -- giving pages back takes an access exclusive lock and they are needed again at once
    vacuum_truncate = false
);

-- Claim: one ordered probe for each requested queue and priority.
create index job_ready_idx on jobs.job (queue, priority, available_at, id) where state = 'ready';

-- Claim of a worker that tells tenants apart: a walk from tenant to tenant, then one ordered probe
-- for each. Jobs without a tenant have no entry and pay nothing for it.
create index job_ready_tenant_idx on jobs.job (queue, priority, tenant, available_at, id)
where state = 'ready' and tenant <> '';

-- Rescue: rescue_at is the first expiry of a lease. A renewal moves lease_expires_at, which no
-- index holds, and so stays heap-only. Jobs that end within one lease are never looked at.
create index job_running_idx on jobs.job (queue, rescue_at) where state = 'running';

-- Idempotency: the holder of a key. A job of scope waiting lets go of it when it starts.
create unique index job_unique_idx on jobs.job (name, tenant, unique_key)
where unique_key is not null;

-- Keyed concurrency. Jobs without a key are in neither index. Blocked: the line of a key, apart for
-- each queue, because a queue that is paused or served by nobody must not hold up the others of a
-- shared key.
create index job_blocked_idx on jobs.job (concurrency_key, queue, priority, waiting_since, id)
where state = 'blocked';

-- Those of a key that are ready: to count whom a free slot is promised to, and to park newcomers.
create index job_keyed_idx on jobs.job (concurrency_key, queue, priority, available_at, id)
where state = 'ready' and concurrency_key is not null;

comment on table jobs.job is 'Live jobs: ready (due or not), running, suspended, blocked. Finished ones are moved to jobs.settled.';
comment on column jobs.job.id is 'UUID version 7 made by the enqueuing process, or supplied by the caller.';
comment on column jobs.job.available_at is 'Not claimed before this instant. Due time, delay and retry in one column.';
comment on column jobs.job.claimed_at is 'When the newest claim was made.';
comment on column jobs.job.lease_expires_at is 'End of the lease of the running job as last renewed. Null unless running.';
comment on column jobs.job.rescue_at is 'End of the lease as first given. No rescue looks at the row before it. Null unless running.';
comment on column jobs.job.cancel_requested_at is 'When an operator asked to cancel the running job. It never becomes ready again.';
comment on column jobs.job.cancel_reason is 'Why, as the operator put it.';
comment on column jobs.job.claims is 'How often the job was claimed. Never reset: the fencing token of the newest claim.';
comment on column jobs.job.revoked is 'The newest claim that was taken from its holder by anything but its own settle.';
comment on column jobs.job.attempt is 'Attempts begun and not given back. Compared with max_attempts.';
comment on column jobs.job.worker is 'Label of the process that holds the lease. Null unless running.';
comment on column jobs.job.progress is 'How far the run says it is, from 0 to 1. Kept over attempts until it says otherwise.';
comment on column jobs.job.progress_message is 'What the run says of its progress.';
comment on column jobs.job.concurrency_limit is 'As declared when the job was enqueued.';
comment on column jobs.job.concurrency_key is 'Jobs of one key run at most concurrency_limit at a time in the fleet. Null for no limit.';
comment on column jobs.job.waiting_since is 'Its place in the line of its key: the due time with which it was parked first. Null for one that was never parked, or failed since: it stands behind those that wait.';
comment on column jobs.job.when_busy is 'wait: blocked until the key has room. fail: ended as refused.';
comment on column jobs.job.last_error is 'Type and message of the newest failed attempt. The whole of it is in jobs.attempt.';
comment on column jobs.job.unique_key is 'SHA-256 of the idempotency key while this job holds it.';
comment on column jobs.job.run_id is 'Identity of the run, kept over retries.';
comment on column jobs.job.priority is '0 runs first, 3 last.';
comment on column jobs.job.dead_letter is 'Exhausted jobs end as dead, or as failed where this is false.';
comment on column jobs.job.ahead is 'Claimed by a pass that asked for more than could begin at once. Whether it had begun when its lease lapsed is not known, and that attempt does not count.';
comment on column jobs.job.tenant is 'Tenant the job was enqueued for. Empty for none.';
comment on column jobs.job.idempotency_scope is 'live: one live job a key. waiting: one job a key that has not started.';
comment on column jobs.job.traceparent is 'W3C trace parent of the enqueue.';
comment on column jobs.job.enqueued_by is 'Who asked, for audit. Never an authority.';
comment on column jobs.job.input is 'Payload as JSON text, kept to the byte.';

-- Finished jobs, append only but for retention.
create table jobs.settled (
    id uuid not null,
    settled_at timestamptz not null default clock_timestamp(),
    claims bigint not null,
    revoked bigint not null,
    attempt bigint not null,
    state text not null,
    stop_reason text,
    progress real,
    progress_message text,
    cancel_requested_at timestamptz,
    cancel_reason text,
    worker text,
    last_error text,
    run_id uuid not null,
    created_at timestamptz not null,
    claimed_at timestamptz,
    max_attempts bigint not null,
    priority smallint not null,
    dead_letter boolean not null,
    queue text not null,
    name text not null,
    tenant text not null,
    idempotency_scope text not null,
    idempotency_key text,
    concurrency_limit bigint,
    when_busy text,
    concurrency_key text,
    traceparent text,
    enqueued_by text,
    input json not null,
    result json,
    constraint settled_pkey primary key (id),
    constraint settled_state_check check (state in ('completed', 'failed', 'dead', 'cancelled'))
) with (
    -- mostly inserts: vacuum now and then so that index-only reads stay index-only
    autovacuum_vacuum_insert_scale_factor = 0.1,
    autovacuum_analyze_scale_factor = 0.1
);

-- Retention walks it from the old end. Appended to on the right, so nearly free.
create index settled_settled_at_idx on jobs.settled (settled_at);

-- Dead letters and failures are few among many, and operators look for them: by state in order of
-- id, and counted by queue without a look at the table.
create index settled_unsuccessful_idx on jobs.settled (state, id, queue) where state <> 'completed';

comment on table jobs.settled is 'Finished jobs. The settle inserts the row in the statement that deletes it from jobs.job.';
comment on column jobs.settled.state is 'completed, failed (exhausted, no dead letter wanted), dead (exhausted or terminal), cancelled.';
comment on column jobs.settled.stop_reason is 'Why a job that did not complete was ended: exhausted, terminal, refused, lease lapsed, superseded, cancel requested.';
comment on column jobs.settled.progress is 'As last said by the run, from 0 to 1.';
comment on column jobs.settled.progress_message is 'What the run last said of its progress.';
comment on column jobs.settled.concurrency_key is 'The key that limited how many ran at a time, if any.';
comment on column jobs.settled.concurrency_limit is 'As declared when the job was enqueued. For a requeue.';
comment on column jobs.settled.when_busy is 'As declared when the job was enqueued. For a requeue.';
comment on column jobs.settled.result is 'What the function of a completed job returned, as JSON text. Null where it returned nothing.';
comment on column jobs.settled.cancel_requested_at is 'When a cancel was asked for, if ever. A job that completed all the same keeps it.';

-- One row for each failed attempt.
create table jobs.attempt (
    job_id uuid not null,
    claims bigint not null,
    attempt bigint not null,
    failed_at timestamptz not null default clock_timestamp(),
    worker text,
    error_type text not null,
    error_message text not null,
    traceback text,
    constraint attempt_pkey primary key (job_id, claims)
);

comment on table jobs.attempt is 'One row for each failed attempt, written by the statement that settles or rescues it.';
comment on column jobs.attempt.claims is 'Fencing token of the claim that failed.';

-- Outcomes are inserted as deltas, because one hot counter row grows with every update that a held
-- snapshot keeps alive. Readers sum them.
create table jobs.counter (
    bucket timestamptz not null,
    amount bigint not null,
    tier bigint not null default 0,
    name text not null,
    outcome text not null,
    constraint counter_tier_check check (tier between 0 and 3)
);

-- By tier first, so that folding finds the oldest of each and never what it has folded before.
create index counter_bucket_idx on jobs.counter (tier, bucket, name, outcome);

comment on table jobs.counter is 'Deltas of outcomes by job name and minute, inserted by the settling statement. Sum amount.';
comment on column jobs.counter.bucket is 'Start of the minute, in higher tiers of the minute, hour or day, in UTC.';
comment on column jobs.counter.tier is '0 deltas of a minute, 1 sums of a minute, 2 of an hour, 3 of a day.';
comment on column jobs.counter.outcome is 'completed, retried, failed, dead, cancelled, refused, rescued.';

-- Keyed concurrency: a running job with a key holds one slot of it. The primary key is what keeps a
-- limit, nobody counts and then acts. A slot has no expiry: it lives and dies with the lease of its
-- job. Only autocommitted statements of the library write here, so that nobody waits for a
-- transaction of somebody else.
create table jobs.slot (
    slot bigint not null,
    job_id uuid not null,
    concurrency_key text not null,
    constraint slot_pkey primary key (concurrency_key, slot),
    constraint slot_job_key unique (job_id),
    constraint slot_number_check check (slot >= 1)
) with (
    -- as many rows as keyed jobs run, all of them new every time
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 2000,
    autovacuum_vacuum_insert_threshold = -1,
    autovacuum_analyze_scale_factor = 0,
    autovacuum_analyze_threshold = 10000,
    -- vacuum of a hot, small table must finish, not be polite
    autovacuum_vacuum_cost_delay = 0,
    -- giving pages back takes an access exclusive lock, which every claim would wait for
    vacuum_truncate = false
);

comment on table jobs.slot is 'One row for each slot of a concurrency key that is held. Its job is running, or has just ended.';
comment on column jobs.slot.slot is 'From 1 to the limit.';
comment on column jobs.slot.job_id is 'The holder, through rescues and renewals until its settle or burial.';

create table jobs.pause (
    kind text not null,
    name text not null,
    paused_at timestamptz not null default clock_timestamp(),
    paused_by text,
    constraint pause_pkey primary key (kind, name),
    constraint pause_kind_check check (kind in ('queue', 'task'))
);

comment on table jobs.pause is 'A paused queue or task is a row. Claims leave paused queues alone.';
