"""SQL as nested tokens: enough structure to find select lists, sources and function calls."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

_TOKEN = re.compile(
    r"""
      (?P<skip>\s+|--[^\n]*|/\*(?:[^*]|\*(?!/))*\*/)
    | (?P<string>[eE]?'(?:[^'\\]|''|\\.)*'|'(?:[^']|'')*'|\$(?P<tag>[A-Za-z_]\w*|)\$.*?\$(?P=tag)\$)
    | (?P<quoted>"(?:[^"]|"")*")
    | (?P<word>[^\W\d]\w*)
    | (?P<number>\d[\d.]*(?:[eE][+-]?\d+)?)
    | (?P<param>\$\d+)
    | (?P<op>::|->>|->|\#>>|\#>|[()\[\],.;:]|[-+*/<>=~!@\#%^&|`?]+)
    """,
    re.VERBOSE | re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class Token:
    """
    A token. `kind` is one of word (lower-cased), name (was quoted), string, number, param, op.
    """

    kind: str
    text: str

    @property
    def is_name(self) -> bool:
        """Whether it can name a column, table or function."""
        return self.kind in ("word", "name")


@dataclass(frozen=True, slots=True)
class Group:
    """What stands between two parentheses."""

    items: tuple[Node, ...]


Node: TypeAlias = Token | Group
Nodes: TypeAlias = Sequence[Node]


def parse(text: str) -> tuple[Node, ...]:
    """Read a statement; text that does not scan ends the result early."""
    return _read(_tokens(text))


def word(nodes: Nodes, at: int) -> str:
    """The unquoted word or operator at a position, empty if there is something else."""
    if 0 <= at < len(nodes):
        node = nodes[at]
        if isinstance(node, Token) and node.kind in ("word", "op"):
            return node.text
    return ""


def split(nodes: Nodes, *separators: str) -> list[Nodes]:
    """Split at the separators of this level."""
    parts: list[Nodes] = []
    start = 0
    for at in range(len(nodes)):
        if word(nodes, at) in separators:
            parts.append(nodes[start:at])
            start = at + 1
    parts.append(nodes[start:])
    return parts


def find(nodes: Nodes, *words: str, start: int = 0) -> int:
    """The position of the first of the words at this level (calls aside), or the end."""
    for at in range(start, len(nodes)):
        if word(nodes, at) in words and not is_call(nodes, at):
            return at
    return len(nodes)


def is_call(nodes: Nodes, at: int) -> bool:
    """Whether a word that is also a keyword stands there as a function's name: `left(...)`."""
    called = at + 1 < len(nodes) and isinstance(nodes[at + 1], Group)
    return called and word(nodes, at) in ("left", "right")


def _tokens(text: str) -> Iterator[Token]:
    at = 0
    while match := _TOKEN.match(text, at):
        at = match.end()
        kind = match.lastgroup if match.lastgroup != "tag" else "string"
        if kind == "skip" or kind is None:
            continue
        if kind == "word":
            yield Token(kind, match[0].lower())
        elif kind == "quoted":
            yield Token("name", match[0][1:-1].replace('""', '"'))
        else:
            yield Token(kind, match[0])


def _read(tokens: Iterator[Token]) -> tuple[Node, ...]:
    nodes: list[Node] = []
    for token in tokens:
        if token.text == "(" and token.kind == "op":
            nodes.append(Group(_read(tokens)))
        elif token.text == ")" and token.kind == "op":
            break
        else:
            nodes.append(token)
    return tuple(nodes)
