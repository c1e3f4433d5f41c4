"""Just enough SQL scanning to look outside strings and comments."""

from __future__ import annotations

import re

_SKIP = re.compile(
    r"""
      --[^\n]*                                  # line comment
    | /\*(?:[^*]|\*(?!/))*\*/                   # block comment (sqlc refuses nested ones)
    | \b[eE]'(?:[^'\\]|''|\\.)*'                # escape string
    | '(?:[^']|'')*'                            # string
    | "(?:[^"]|"")*"                            # quoted identifier
    | \$(?P<tag>[A-Za-z_]\w*|)\$.*?\$(?P=tag)\$ # dollar-quoted string
    """,
    re.VERBOSE | re.DOTALL,
)
_PLACEHOLDER = re.compile(r"(?<!\w)\$(\d+)")
_LEFTOVER = re.compile(r"(?<![@<\w])@([A-Za-z_]\w*)")
_CAST = re.compile(r"\s*::\s*[A-Za-z_\"]")


def blank(text: str) -> str:
    """Return the text with strings, quoted names and comments as spaces, positions kept."""
    return _SKIP.sub(lambda match: " " * len(match[0]), text)


def placeholders(text: str) -> list[int]:
    """The numbers of `$n` in order of first appearance."""
    return list(dict.fromkeys(int(match[1]) for match in _PLACEHOLDER.finditer(blank(text))))


def uncast(text: str) -> list[int]:
    """The numbers of those `$n` that have an occurrence without a cast right behind it."""
    code = blank(text)
    bare = {
        int(match[1]) for match in _PLACEHOLDER.finditer(code) if not _CAST.match(code, match.end())
    }
    return sorted(bare)


def leftovers(text: str) -> list[str]:
    """`@name` that sqlc took for an operator and did not replace (as in `a=@b`)."""
    return [match[1] for match in _LEFTOVER.finditer(blank(text))]
