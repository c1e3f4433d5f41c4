create table jobs.a (
    id bigint not null,,
);
