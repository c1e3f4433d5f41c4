"""The migration may send files, and nothing it wrote itself."""

from psycopg import Connection
from psycopg.sql import SQL, Literal


def migrate(conn: Connection, name: str) -> None:
    conn.execute("checkpoint")
    conn.execute(f"checkpoint {name}")
    print(SQL, Literal)
