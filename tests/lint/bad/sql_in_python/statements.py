"""Statements that a runtime module must not hold. This docstring says: select id from jobs.job."""

from __future__ import annotations

TABLE = "jobs.job"
CLAIM = """
    with due as (select j.id from jobs.job as j for update skip locked)
    select d.id from due as d
"""
ADDED = "update " + TABLE + " set state = 'ready'"
JOINED = " ".join(["delete", "from", "jobs.job"])
LISTEN = "LISTEN jobs_wake"
SETTING = "set local lock_timeout = '1s'"
BYTES = b"select pg_notify('jobs_wake', '')"
NO_SPACE = "select(1)"
ENDED = "commit;"
CALL = "call jobs.f()"
BEGIN = "begin isolation level serializable"
CREATE = "create table thing (id bigint)"
VALUES = "values (1, 2)"


def formatted(column: str, where: str) -> list[str]:
    return [
        f"select {column} from {TABLE}",
        f"{where} and j.claims = %s",
        "where id = %(id)s".replace("id", "j.id"),
        f"{where + ' order by j.id'}",
        " for no key update of j",
        " on conflict do nothing",
        "%s::uuid[]",
        "select j.id, ",
        "limit %s",
        "insert into job values ",
        "delete from job where ",
        "update job set state = ",
        "drop table if exists ",
        " returning j.id",
        "select id from jobs.job where state = ",
        "for update nowait",
        "merge into jobs.job using ",
        "select queue, name, ",
        " skip locked",
        "rollback to savepoint mine",
    ]
