-- what: a
-- lock: b
-- time: c
-- rollback: d

create tabel jobs.a (a bigint);
