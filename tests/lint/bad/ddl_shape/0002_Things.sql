-- what: things
-- time: constant
create table jobs.thing (
    id bigint primary key,
    amount integer not null,
    priority smallint not null,
    version smallint not null,
    kind bigint references jobs.kind (id),
    constraint amount_positive check (amount > 0),
    constraint thing_amount_key unique (amount),
    constraint thing_kind unique (kind),
    exclude using gist (kind with =),
    check (kind > 0)
);
create index amount_idx on jobs.thing (amount);
create index thing_kind on jobs.thing (kind);
alter table jobs.thing add column more int;
alter table jobs.thing add constraint thing_more foreign key (more) references jobs.thing (id);
