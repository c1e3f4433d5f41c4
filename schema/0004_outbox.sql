-- what:     staged enqueues, and the lease of the relay that publishes them
-- lock:     none on existing objects
-- time:     constant
-- rollback: drop the two tables, once nothing is staged any more and no process needs version 4

-- A job written here belongs to the transaction that wrote it and to no queue yet. A relay
-- publishes it after the commit: to the queue of this or another database, or to a message broker.
create table jobs.outbox (
    id uuid not null,
    staged_at timestamptz not null default clock_timestamp(),
    published_at timestamptz,
    retry_at timestamptz,
    parked_at timestamptz,
    refusals bigint not null default 0,
    last_error text,
    outcome text,
    published_as uuid,
    published_by text,
    run_id uuid not null,
    run_at timestamptz,
    delay interval not null default interval '0',
    max_attempts bigint not null,
    priority smallint not null default 0,
    dead_letter boolean not null default true,
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
    constraint outbox_pkey primary key (id),
    constraint outbox_published_check check (
        (published_at is null) = (outcome is null)
        and (published_at is null) = (published_as is null)
        and (published_at is null or parked_at is null)
    ),
    constraint outbox_outcome_check check (outcome in ('created', 'existing', 'sent')),
    constraint outbox_refusals_check check (refusals >= 0),
    constraint outbox_max_attempts_check check (max_attempts >= 1),
    constraint outbox_delay_check check (delay between interval '0' and interval '3650 days'),
    constraint outbox_concurrency_check check (
        (concurrency_key is null) = (concurrency_limit is null)
        and (concurrency_key is null) = (when_busy is null)
        and concurrency_limit >= 1
        and when_busy in ('wait', 'fail')
    ),
    constraint outbox_priority_check check (priority between 0 and 3),
    -- what Python cannot read would fail the whole batch that holds it
    constraint outbox_time_check check (
        staged_at between '0001-01-02 00:00+00' and '9999-12-30 00:00+00'
        and run_at between '0001-01-02 00:00+00' and '9999-12-30 00:00+00'
    ),
    constraint outbox_scope_check check (idempotency_scope in ('live', 'waiting')),
    constraint outbox_queue_check check (octet_length(queue) between 1 and 255),
    constraint outbox_name_check check (octet_length(name) between 1 and 255),
    constraint outbox_tenant_check check (octet_length(tenant) <= 255)
) with (
    -- every row is written twice and then read by nobody until it is pruned
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_threshold = 2000,
    autovacuum_analyze_scale_factor = 0.05,
    autovacuum_analyze_threshold = 2000,
    -- vacuum must keep up with the entries of published rows at the head of outbox_waiting_idx
    autovacuum_vacuum_cost_delay = 0,
    -- giving pages back takes an access exclusive lock, which every stage would wait for
    vacuum_truncate = false
);

-- Relay: what waits, in the order in which it is published.
create index outbox_waiting_idx on jobs.outbox (staged_at, id)
where published_at is null and parked_at is null;

-- Operators: what was set aside. Few, or somebody should look.
create index outbox_parked_idx on jobs.outbox (staged_at, id) where parked_at is not null;

-- Pruning walks it from the old end. Appended to on the right.
create index outbox_published_idx on jobs.outbox (published_at) where published_at is not null;

comment on table jobs.outbox is 'Staged enqueues: those that wait for a relay, and the published ones until they are pruned.';
comment on column jobs.outbox.id is 'Id of the job to be, and of the message to a broker. The same in each repeat.';
comment on column jobs.outbox.staged_at is 'When it was staged, which is before its transaction committed.';
comment on column jobs.outbox.published_at is 'When a relay first recorded that it was published. Never changed afterwards.';
comment on column jobs.outbox.retry_at is 'A refused row, and all behind it, are not tried again before this instant.';
comment on column jobs.outbox.parked_at is 'When it was set aside after too many refusals. It waits for an operator, and the others go on.';
comment on column jobs.outbox.refusals is 'How often the target refused this very row.';
comment on column jobs.outbox.last_error is 'Why it could not be published the last time that it could not.';
comment on column jobs.outbox.outcome is 'created: a new job. existing: a job with its id or its idempotency key was there. sent: to a broker.';
comment on column jobs.outbox.published_as is 'Id of the job that does the work: its own, or that of the job which had the idempotency key.';
comment on column jobs.outbox.published_by is 'Label of the relay.';
comment on column jobs.outbox.run_at is 'Not before this instant, as the caller asked.';
comment on column jobs.outbox.delay is 'How long after staged_at it is due, where run_at is null.';

create table jobs.relay (
    -- above every token that a row which was deleted can have had
    token bigint not null default (extract(epoch from clock_timestamp()) * 1000000)::bigint,
    expires_at timestamptz not null default clock_timestamp(),
    holder text,
    name text not null,
    constraint relay_pkey primary key (name)
) with (
    -- one row, updated a few times a minute
    fillfactor = 10
);

comment on table jobs.relay is 'The lease under which one relay at a time publishes the outbox.';
comment on column jobs.relay.token is 'Fencing token: raised whenever the lease changes hands, never reset.';
comment on column jobs.relay.expires_at is 'End of the lease. Anybody may take it afterwards.';
comment on column jobs.relay.holder is 'Label of the relay that took it last.';

insert into jobs.relay (name) values ('outbox');
