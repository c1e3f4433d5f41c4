"""DDL that no careless splitter, pager or editor can misread (O-51): we send files whole, but a
DBA may not."""

from __future__ import annotations

from pathlib import Path

from pglast import ast

from tests.lint import sql
from tests.lint.tree import line_of

FILES = ("schema/**/*.sql",)


def problems(text: str, path: Path) -> list[str]:
    """Quotes and semicolons where they do not end anything, and statements not ended once."""
    try:
        found = [*_words(text), *_comment_on(text), *_terminators(text)]
    except sql.SqlError as error:
        found = [str(error)]
    for quote in "'\"":
        if text.count(quote) % 2:
            found.append(f"line 1: the file has an odd number of {quote}")
    return found


def _words(text: str) -> list[str]:
    found = []
    for token in sql.tokens(text):
        line = line_of(text, token.start)
        if token.kind in sql.COMMENTS:
            found += [f"line {line}: {name} in a comment" for name in _refused(token.text)]
        elif token.text.startswith(('"', 'U&"', 'u&"')):
            found.append(f"line {line}: quoted identifier {token.text}")
    return found


def _comment_on(text: str) -> list[str]:
    return [
        f"line {line_of(text, _start(text, statement))}: {name} in the text of a comment on"
        for statement in sql.parse(text)
        if isinstance(statement.stmt, ast.CommentStmt)
        for name in _refused(statement.stmt.comment or "")
    ]


def _refused(comment: str) -> list[str]:
    return [name for mark, name in (("'", "apostrophe"), (";", "semicolon")) if mark in comment]


def _terminators(text: str) -> list[str]:
    found = []
    ends = [token.start for token in sql.tokens(text) if token.kind == sql.SEMICOLON]
    parsed = sql.parse(text)
    for number, statement in enumerate(parsed):
        last = number + 1 == len(parsed)
        end = statement.stmt_location + statement.stmt_len if statement.stmt_len else len(text)
        following = len(text) if last else _start(text, parsed[number + 1])
        between = [place for place in ends if end <= place < following]
        if len(between) != 1:
            line = line_of(text, _start(text, statement))
            found.append(f"line {line}: a statement with {len(between)} terminators")
    if not parsed:
        found.append("line 1: no statement")
    elif stray := [place for place in ends if place < _start(text, parsed[0])]:
        found.append(f"line {line_of(text, stray[0])}: a terminator that ends nothing")
    return found


def _start(text: str, statement: ast.RawStmt) -> int:
    for token in sql.tokens(text):
        behind = token.start >= statement.stmt_location
        if behind and token.kind not in (*sql.COMMENTS, sql.SEMICOLON):
            return token.start
    return len(text)
