-- name: FoldCounters :one
-- purpose: fold the deltas of outcomes into sums: of a minute once it is ten minutes old, of an
--     hour after two days, of a day after sixty.
-- callers: jobs.worker.claimer, at most once a minute, and not where it finds no jobs
-- tx: own autocommitted statement
-- locks: the old rows of jobs.counter for update, skip locked. Waits for nobody: two that fold at
--     once take different rows, and none is summed twice.
-- index: counter_bucket_idx
-- fence: none, it changes no job
-- clock: now()
-- rows: how many were folded away. A transaction that was open for longer adds its deltas later,
--     and they are folded by themselves: sums of one bucket may be several.
-- cost: one walk a tier from its old end that stops at @most rows, their deletion, and one insert a
--     bucket, name and outcome
with /* jobs:fold_counters */ step as (
    select
        unnest(array[0, 1, 2]::bigint[]) as tier,
        unnest(
            array[interval '10 minutes', interval '2 days', interval '60 days']::interval[]
        ) as age,
        unnest(array['minute', 'hour', 'day']::text[]) as unit
),

old as materialized (
    select found.place
    from step as s
    cross join lateral (
        select c.ctid as place
        from jobs.counter as c
        where
            c.tier = s.tier
            and c.bucket < date_trunc(s.unit, now() - s.age, 'UTC')
        order by c.bucket
        limit @most::integer
        for update of c skip locked
    ) as found
),

gone as (
    delete from jobs.counter as c
    where c.ctid = any(array(select o.place from old as o))
    returning
        c.tier,
        c.bucket,
        c.name,
        c.outcome,
        c.amount
),

folded as (
    insert into jobs.counter (bucket, amount, tier, name, outcome)
    select
        date_trunc(s.unit, g.bucket, 'UTC'),
        sum(g.amount),
        g.tier + 1,
        g.name,
        g.outcome
    from gone as g
    inner join step as s on g.tier = s.tier
    group by s.unit, date_trunc(s.unit, g.bucket, 'UTC'), g.tier, g.name, g.outcome
)

select count(*)::bigint as folded
from gone;
