"""The form of a named statement: what sqlc, the compiler and pg_stat_statements rely on."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from codegen.sqlc_gen_python.naming import snake
from tests.lint import sql
from tests.lint.tree import line_of

FILES = ("queries/**/*.sql",)
_PARAMETER = re.compile(r"(?<!\w)@[a-z_]\w*|sqlc\.\w+\(")
# A reader of pg_stat_statements sees what a statement does. New verbs are welcome, nouns are not.
_VERB = (
    "Acquire|Add|Advance|Append|Arm|Begin|Cancel|Change|Check|Choose|Claim|Commit|Copy|Count|Create"
    "|Delete|Discard|Enqueue|Find|Fire|Fold|Get|Insert|Keep|List|Listen|Lock|Mark|Move|Note"
    "|Notify|Pause|Prepare|Promote|Prune|Publish|Read|Record|Register|Release|Remove|Renew"
    "|Replace|Requeue|Rescue|Resign|Resume|Retry|Save|Set|Settle|Stage|Start|Stop|Store|Suspend"
    "|Sweep|Tick|Undo|Unlisten|Update|Wait|Wake|Write"
)
_NAME = re.compile(rf"(?:{_VERB})(?:[A-Z][a-z0-9]+)+")


def problems(text: str, path: Path) -> list[str]:
    """Name lines, name comments, parameters and comments that are not where they belong."""
    found = []
    statements = sql.statements(text)
    if not statements or text[: text.index("-- name:")].strip():
        found.append("line 1: the file must begin with a name line, `-- name: VerbNoun :command`")
    for statement in statements:
        try:
            for at, what in _faults(statement):
                line = statement.line if at < 0 else line_of(text, statement.start + at)
                found.append(f"line {line}: {what}")
        except sql.SqlError as error:
            line = line_of(text, statement.start) + error.line - 1
            found.append(f"line {line}: {error.what}")
    return found


def _faults(statement: sql.Statement) -> Iterator[tuple[int, str]]:
    if not _NAME.fullmatch(statement.name):
        yield -1, f"{statement.name} is no CamelCase verb and noun"
    tokens = sql.tokens(statement.text)
    code = [token for token in tokens if token.kind not in sql.COMMENTS]
    ends = [token.start for token in code if token.kind == sql.SEMICOLON]
    if len(ends) != 1 or (code and code[-1].kind != sql.SEMICOLON):
        yield -1, f"{statement.name} must be one statement with its semicolon"
    yield from _comments(statement, tokens)
    yield from _parameters(statement, tokens)


def _comments(statement: sql.Statement, tokens: tuple[sql.Token, ...]) -> Iterator[tuple[int, str]]:
    comments = [token for token in tokens if token.kind in sql.COMMENTS]
    ends = [token.start for token in tokens if token.kind == sql.SEMICOLON]
    for comment in comments:
        if ends and comment.start > ends[-1]:
            yield comment.start, "sqlc gives a comment behind the semicolon to the next statement"
        elif comment.kind == "SQL_COMMENT":
            yield comment.start, "sqlc drops this comment: write an end-of-line /* why */"
        elif comment.text.count("/*") > 1:
            yield comment.start, "sqlc refuses nested comments"
    if statement.command == "copyfrom":
        return
    wanted = f"/* jobs:{snake(statement.name)} */"
    second = tokens[1].text if len(tokens) > 1 else ""
    named = [comment.text for comment in comments if "jobs:" in comment.text]
    if second != wanted or named != [wanted]:
        yield 0, f"the first keyword must be followed by {wanted}, and nothing else named so"


def _parameters(
    statement: sql.Statement, tokens: tuple[sql.Token, ...]
) -> Iterator[tuple[int, str]]:
    for found in sql.parameters(statement.text):
        name = statement.text[found.start : found.end]
        if found.form not in ("@", "narg"):
            yield found.start, f"{name}: write @name, or sqlc.narg for what may be null"
        elif not found.cast and statement.command != "copyfrom":
            yield found.start, f"{name} has no cast, write {name}::type"
    for token in tokens:
        if token.kind == "SCONST" and (inside := _PARAMETER.search(token.text)):
            yield token.start, f"the string hides {inside[0]}, which no parameter reaches"
        elif token.kind == "Op" and token.text.endswith("@") and token.text != "@":
            yield token.start, f"sqlc reads {token.text} as an operator: write a space before @"
