-- an odd " and an odd '
create table jobs.a (
    id bigint not null
);
