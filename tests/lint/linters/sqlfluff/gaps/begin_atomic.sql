create function jobs.live(asked text) returns bigint
language sql
stable
begin atomic
    select count(*) from jobs.job as j where j.queue = asked;
end;
