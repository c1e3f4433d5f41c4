"""Ways to send a text that is no file of queries/."""

from __future__ import annotations

import psycopg
import psycopg.sql
from psycopg import Connection, sql
from psycopg.sql import SQL, Literal


def send(conn: Connection, text: str) -> None:
    conn.execute("checkpoint")
    conn.execute(text)
    with conn.cursor() as cursor:
        cursor.executemany(text, [])
        cursor.copy("jobs.job")
    cursor.stream(text)
    cursor.mogrify(text)
    conn.pgconn.send_query(text.encode())
    conn.pgconn.send_query_params(text.encode(), [])
    conn.pgconn.send_prepare(b"", text.encode())
    conn.pgconn.exec_(text.encode())
    conn.pgconn.exec_params(text.encode(), [])
    conn.pgconn.exec_prepared(text.encode(), [])
    conn.execute(psycopg.sql.SQL(text))
    dict(a=1).copy()
    print(sql, SQL, Literal)
