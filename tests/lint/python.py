"""String literals of Python files, put together the way they would reach a server."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

HOLE = "$1"


@dataclass(frozen=True, slots=True)
class Literal:
    """A string of the source: adjacent, added, joined and formatted parts are one, holes `$1`."""

    line: int
    text: str
    is_doc: bool


@lru_cache(maxsize=512)
def tree(text: str) -> ast.Module:
    """The syntax tree of a file."""
    return ast.parse(text)


@lru_cache(maxsize=512)
def literals(text: str) -> tuple[Literal, ...]:
    """Every string of the file that is not part of a longer one."""
    return tuple(_literals(tree(text), is_doc=False))


def text_of(node: ast.AST) -> str | None:
    """The text of an expression that makes a string, with `$1` for what is filled in, or None."""
    folded = _fold(node)
    return folded[0] if folded else None


def _literals(node: ast.AST, *, is_doc: bool) -> Iterator[Literal]:
    folded = _fold(node)
    if folded is None:
        for child in ast.iter_child_nodes(node):
            yield from _literals(child, is_doc=isinstance(node, ast.Expr))
        return
    yield Literal(getattr(node, "lineno", 0), folded[0], is_doc)
    for hole in folded[1]:
        yield from _literals(hole, is_doc=False)


def _fold(node: ast.AST) -> tuple[str, list[ast.AST]] | None:
    match node:
        case ast.Constant(value=str() as value):
            return value, []
        case ast.Constant(value=bytes() as raw):
            return raw.decode("latin-1"), []
        case ast.JoinedStr(values=parts):
            return _together("", parts)
        case ast.BinOp(op=ast.Add(), left=left, right=right) if _fold(left) or _fold(right):
            return _together("", [left, right])
        case ast.Call(
            func=ast.Attribute(value=ast.Constant(value=str() as glue), attr="join"),
            args=[ast.List(elts=parts) | ast.Tuple(elts=parts)],
        ):
            return _together(glue, parts)
    return None


def _together(glue: str, parts: list[ast.expr]) -> tuple[str, list[ast.AST]]:
    texts: list[str] = []
    holes: list[ast.AST] = []
    for part in parts:
        folded = _fold(part)
        texts.append(folded[0] if folded else HOLE)
        holes += folded[1] if folded else [part]
    return glue.join(texts), holes
