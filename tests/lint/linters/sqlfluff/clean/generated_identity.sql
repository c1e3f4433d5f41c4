create table jobs.wake (
    id bigint generated always as identity,
    queue text not null,
    length bigint generated always as (octet_length(queue)) stored,
    constraint wake_pkey primary key (id)
);
