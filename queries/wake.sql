-- name: WakeQueue :exec
-- purpose: wake a worker for jobs that CopyJobs has just inserted, that a worker which stops has
--     handed back, or that an operator or a worker which does not serve their queue has let out of
--     the line of a concurrency key, if none was told of this queue lately.
-- callers: jobs.enqueue (JobHandle.copy_many), after the COPY and in its transaction;
--     jobs.worker.farewell, jobs.worker.slots, jobs.control.cancelling
-- tx: the transaction of the caller, or own autocommitted statement
-- locks: the new row of jobs.wake. Waits for nobody.
-- index: wake_queue_idx
-- fence: none, it changes no job
-- clock: clock_timestamp()
-- cost: one index probe; now and then one heap insert with two index inserts
-- notify: as EnqueueJob
insert /* jobs:wake_queue */ into jobs.wake as n (queue)
select @queue::text
where
    case
        when current_setting('jobs.wake', true) = 'off' then false
        when
            current_setting('transaction_isolation') <> 'serializable'
            and exists (
                select 1
                from jobs.wake as w
                where
                    w.queue = @queue::text
                    and w.at > (
                        select
                            clock_timestamp() - interval '50 milliseconds'
                            - interval '200 milliseconds' * sqrt(sqrt(random()))
                    )
                    and w.at <= (select clock_timestamp()) /* clocks are set back */
            )
            then false
        else pg_notification_queue_usage() < 0.5 /* a full one would fail the commit */
    end
returning pg_notify('jobs_wake', n.queue);

-- name: ListenWake :exec
-- purpose: hear of enqueues on this session from now on.
-- callers: jobs.service.listener, once after each connect of its own connection
-- tx: own autocommitted statement
-- locks: none
-- index: none
-- fence: none, it reads no table
-- cost: no table is read. The server sends every notification of the channel to the session.
-- errors: refused on a standby
listen /* jobs:listen_wake */ jobs_wake;

-- name: UnlistenWake :exec
-- purpose: take back a ListenWake that hears nothing, so that the server connection of a
--     pooler is not left with it.
-- callers: jobs.service.listener
-- tx: own autocommitted statement
-- locks: none
-- index: none
-- fence: none, it reads no table
-- cost: no table is read
unlisten /* jobs:unlisten_wake */ jobs_wake;

-- name: NotifyProbe :exec
-- purpose: prove that a listening session hears what others commit: the nonce must arrive there.
-- callers: jobs.service.listener, on the connection that claims, once after each ListenWake
-- tx: own autocommitted statement
-- locks: none
-- index: none
-- fence: none, it reads no table
-- cost: no table is read
-- notify: jobs_wake with the nonce as payload, which is no queue that anybody serves
select /* jobs:notify_probe */ pg_notify('jobs_wake', @nonce::text);

-- name: PruneWakes :execrows
-- purpose: remove rows of jobs.wake that no enqueue looks at any more.
-- callers: jobs.worker.claimer, at most once a minute, and not where it finds no jobs;
--     jobs.relay.publisher, likewise
-- tx: own autocommitted statement
-- locks: the old rows of jobs.wake, skip locked. Waits for nobody.
-- index: wake_at_idx
-- fence: none, it changes no job
-- clock: now()
-- rows: how many were removed
-- cost: one walk from the old end that stops at @most rows, and their deletion
delete /* jobs:prune_wakes */ from jobs.wake as w
where
    w.ctid = any(array(
        select old.ctid
        from jobs.wake as old
        where old.at < now() - interval '1 minute'
        order by old.at
        limit @most::integer
        for update of old skip locked
    ));
