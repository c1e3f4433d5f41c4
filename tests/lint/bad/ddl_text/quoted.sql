create table jobs."Order" (
    id bigint not null
);
create table jobs.U&"\0061" (
    id bigint not null
);
