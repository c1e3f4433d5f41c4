create table thing (
    id serial,
    name varchar(20) not null,
    code char(3),
    made_at timestamp not null
);
alter table jobs.job add column mood text not null;
alter table jobs.job add column drawn double precision default random();
alter table jobs.job add constraint job_mood_check check (mood <> '');
alter table jobs.job add constraint job_run_key unique (run_id);
alter table jobs.job alter column name set not null;
alter table jobs.job alter column queue type varchar(10);
alter table jobs.job rename column queue to lane;
alter table jobs.job drop column worker;
alter table jobs.job rename to work;
create index job_worker_idx on jobs.job (worker);
create index concurrently job_name_idx on jobs.job (name);
drop index jobs.job_ready_idx;
drop table jobs.settled;
drop schema jobs cascade;
alter table jobs.job add constraint job_run_fkey foreign key (run_id) references jobs.settled (id);
