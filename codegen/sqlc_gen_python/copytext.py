"""The COPY statement a `:copyfrom` is turned into."""

from __future__ import annotations

import re

from .model import CopyTarget


def copy_text(target: CopyTarget, insert: str) -> str:
    """Write the COPY for the target, with the name comment of the insert it comes from."""
    columns = ", ".join(identifier(name) for name in target.columns)
    comment = re.match(r"\s*insert\s+(/\*.*?\*/)", insert, re.IGNORECASE | re.DOTALL)
    table = f"{identifier(target.schema)}.{identifier(target.table)}"
    return f"copy {comment[1] + ' ' if comment else ''}{table} ({columns}) from stdin"


def identifier(name: str) -> str:
    """Quote a SQL name where it needs quotes."""
    plain = re.fullmatch(r"[a-z_][a-z0-9_]*", name) and name not in _SQL_RESERVED
    return name if plain else '"' + name.replace('"', '""') + '"'


# What a column name must not be without quotes (PostgreSQL's reserved words).
_WORDS = """
all analyse analyze and any array as asc asymmetric authorization binary both case cast check
collate collation column concurrently constraint create cross current_catalog current_date
current_role current_schema current_time current_timestamp current_user default deferrable
desc distinct do else end except false fetch for foreign freeze from full grant group having
ilike in initially inner intersect into is isnull join lateral leading left like limit
localtime localtimestamp natural not notnull null offset on only or order outer overlaps
placing primary references returning right select session_user similar some symmetric
system_user table tablesample then to trailing true union unique user using variadic verbose
when where window with
"""
_SQL_RESERVED = frozenset(_WORDS.split())
