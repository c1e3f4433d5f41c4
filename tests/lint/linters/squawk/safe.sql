create table jobs.thing (
    id bigint generated always as identity,
    name text not null,
    constraint thing_pkey primary key (id)
);
create index thing_name_idx on jobs.thing (name);
alter table jobs.job add column if not exists mood text;
alter table jobs.job add constraint job_mood_check check (mood <> '') not valid;
