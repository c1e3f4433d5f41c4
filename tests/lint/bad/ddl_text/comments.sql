-- it's here; really
create table jobs.a (
    id bigint not null /* nested /* ; */ */
);
comment on table jobs.a is 'The owner''s table';
comment on column jobs.a.id is 'First; second';
