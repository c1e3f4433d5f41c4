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
-- callers: jobs.worker.claimer and jobs.relay.publisher, at most once a minute, and not where they
--     find nothing to do
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
