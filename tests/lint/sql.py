"""Tokens and parse trees of our SQL files, from PostgreSQL's own parser.

sqlc's parameters are read as ``$1``, at the same place, so that positions stay those of the file.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from pglast import ast, parse_sql
from pglast.parser import ParseError, scan

from codegen.sqlc_gen_python.errors import GenerationError
from codegen.sqlc_gen_python.headers import parse_header, parse_source

from .tree import line_of

COMMENTS = ("SQL_COMMENT", "C_COMMENT")
SEMICOLON = "ASCII_59"
_NAME_LINE = re.compile(r"^--\s*name:\s*(\w+)\s+:(\w+)\s*$", re.MULTILINE)


class SqlError(Exception):
    """Raised with a line and PostgreSQL's message for text that it cannot parse."""

    def __init__(self, line: int, message: str) -> None:
        self.line = line
        self.what = f"PostgreSQL cannot read this: {message}"
        super().__init__(f"line {line}: {self.what}")


@dataclass(frozen=True, slots=True)
class Token:
    """A lexical unit; `end` is the position behind it."""

    kind: str
    text: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Parameter:
    """An occurrence of `@name` or of a sqlc function that stands for a parameter."""

    form: str
    start: int
    end: int
    cast: bool


@dataclass(frozen=True, slots=True)
class Statement:
    """A named statement of a query file; `start` is where its text begins in the file."""

    name: str
    command: str
    line: int
    start: int
    text: str
    header: dict[str, str]
    fault: str


@lru_cache(maxsize=512)
def tokens(text: str) -> tuple[Token, ...]:
    """All tokens, comments included. Raises SqlError."""
    try:
        return tuple(
            Token(found.name, text[found.start : found.end + 1], found.start, found.end + 1)
            for found in scan(text)
        )
    except ParseError as error:
        raise _unreadable(text, error) from None


@lru_cache(maxsize=512)
def parameters(text: str) -> tuple[Parameter, ...]:
    """Every occurrence of a parameter, in order. Raises SqlError."""
    code = [token for token in tokens(text) if token.kind not in COMMENTS]
    found = []
    for at, token in enumerate(code):
        following = [part.text for part in code[at : at + 6]]
        if token.text == "@" and at + 1 < len(code) and code[at + 1].start == token.end:
            last, form = at + 1, "@"
        elif following[:2] == ["sqlc", "."] and following[3:4] == ["("]:
            last, form = at + 5, following[2]
        else:
            continue
        cast = last + 1 < len(code) and code[last + 1].kind == "TYPECAST"
        found.append(Parameter(form, token.start, code[last].end, cast))
    return tuple(found)


@lru_cache(maxsize=512)
def parse(text: str) -> tuple[ast.RawStmt, ...]:
    """The statements of the text. Raises SqlError."""
    plain = text
    for found in parameters(text):
        width = found.end - found.start
        plain = plain[: found.start] + "$1".ljust(width) + plain[found.end :]
    try:
        return tuple(parse_sql(plain))
    except ParseError as error:
        raise _unreadable(text, error) from None


@lru_cache(maxsize=128)
def statements(text: str) -> tuple[Statement, ...]:
    """The named statements of a query file; `fault` says what is wrong with a header."""
    headers = parse_source(text)
    names = list(_NAME_LINE.finditer(text))
    found = []
    for number, match in enumerate(names):
        end = names[number + 1].start() if number + 1 < len(names) else len(text)
        lines = headers[match[1]][1]
        start = match.end() + 1 + sum(len(line) + 1 for line in lines)
        try:
            header, fault = parse_header(match[1], lines), ""
        except GenerationError as error:
            header, fault = {}, str(error).splitlines()[0]
        line = line_of(text, match.start())
        body = text[start:end]
        found.append(Statement(match[1], match[2], line, start, body, header, fault))
    return tuple(found)


def without_comments(text: str) -> str:
    """The text with comments, nested ones too, as spaces; text that is no SQL is left alone."""
    try:
        comments = [token for token in tokens(text) if token.kind in COMMENTS]
    except SqlError:
        return text
    for token in comments:
        blank = re.sub(r"[^\n]", " ", token.text)
        text = text[: token.start] + blank + text[token.end :]
    return text


def walk(node: object) -> Iterator[ast.Node]:
    """Every node of a parse tree, the given one first."""
    if isinstance(node, ast.Node):
        yield node
        for name in node:
            yield from walk(getattr(node, name))
    elif isinstance(node, tuple | list):
        for part in node:
            yield from walk(part)


def names(node: object) -> list[str]:
    """The words of a dotted name given as a list of strings, or of a type's or object's name."""
    if isinstance(node, ast.TypeName):
        return names(node.names)
    if isinstance(node, ast.ObjectWithArgs):
        return names(node.objname)
    if isinstance(node, ast.String):
        return [node.sval]
    if isinstance(node, tuple | list):
        return [word for part in node for word in names(part)]
    return []


def position(node: object) -> int:
    """Where a node starts, or -1 where the parser does not tell."""
    places = [getattr(found, "location", -1) for found in walk(node)]
    return min((place for place in places if place is not None and place >= 0), default=-1)


def _unreadable(text: str, error: ParseError) -> SqlError:
    message, *place = error.args
    where = place[0] if place and isinstance(place[0], int) else len(text.rstrip())
    return SqlError(line_of(text, where), str(message))
