"""The migration sends schema files whole."""

from psycopg import Connection
from psycopg.sql import Literal


def migrate(conn: Connection, text: str) -> str:
    conn.execute(text)
    return Literal(text).as_string(conn)
