"""Python names for SQL names. Deterministic: the same SQL gives the same names everywhere."""

from __future__ import annotations

import keyword
import re
import unicodedata

TUPLE_METHODS = frozenset({"count", "index"})
# Names that generated code uses in annotations and bodies, which a field, parameter or function
# of the same name would hide.
RESERVED = frozenset(
    {
        "bool", "bytearray", "bytes", "conn", "cur", "dt", "float", "int", "list", "memoryview",
        "object", "str", "tuple",
    }
)  # fmt: skip
# What other names stand for in enum values: readable and one to one.
_SYMBOLS = {
    "=": "eq", "<": "lt", ">": "gt", "!": "not", "+": "plus", "-": "minus", "*": "star",
    "/": "slash", "%": "percent", "&": "and", "|": "or", "^": "caret", "~": "tilde", "#": "hash",
    "@": "at", "?": "question", ".": "dot", ",": "comma", ":": "colon", ";": "semicolon",
    "(": "lparen", ")": "rparen", "[": "lbracket", "]": "rbracket", "{": "lbrace", "}": "rbrace",
    "'": "quote", '"': "dquote", "`": "backtick", "\\": "backslash", "$": "dollar",
}  # fmt: skip


def snake(camel: str) -> str:
    """`ClaimJobs` -> `claim_jobs`, `GetHTTPJob` -> `get_http_job`."""
    name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", camel)
    return name.lower()


def camel(name: str) -> str:
    """`job_state` -> `JobState`."""
    return "".join(part[:1].upper() + part[1:] for part in re.split(r"[^A-Za-z0-9]+", name) if part)


def is_plain(name: str) -> bool:
    """Whether the name can stand in Python source as it is and means the same there."""
    return name.isidentifier() and unicodedata.normalize("NFKC", name) == name


def safe(name: str) -> str:
    """Return the name, with a trailing underscore if Python or generated code needs it."""
    return name + "_" if keyword.iskeyword(name) or name in RESERVED else name


def field(name: str) -> str | None:
    """
    The NamedTuple field (or keyword parameter) for a SQL name, None if there is no good one.

    None for: no name, a leading underscore, characters Python has no place for, and the tuple
    methods `count` and `index` (checked by the caller where it matters).
    """
    if name[:1].isdigit():
        name = f"column_{name}"
    name = re.sub(r"[ \-]", "_", name)
    if not name or name.startswith("_") or not is_plain(name):
        return None
    return safe(name)


def enum_member(value: str) -> str:
    """
    The member name of an enum value: upper case, symbols spelled (`<=` -> `LT_EQ`), a leading
    digit behind an underscore-free prefix (`2nd` -> `VALUE_2ND`), the empty value `EMPTY`.
    """
    parts: list[str] = []
    word = ""
    if re.fullmatch(r"[^\W_]+(?:[-_ .][^\W_]+)*", value):
        parts = re.split(r"[-_ .]", value)
    else:
        for char in value:
            if char.isalnum():
                word += char
                continue
            if word:
                parts.append(word)
                word = ""
            if char not in "_ ":
                parts.append(_SYMBOLS.get(char, f"U{ord(char):04X}"))
        if word:
            parts.append(word)
    name = "_".join(parts).upper() or "EMPTY"
    if not is_plain(name):
        name = f"VALUE_{name}"
    if not is_plain(name):
        name = "VALUE_" + "_".join(f"U{ord(char):04X}" for char in value)
    return f"{name}_" if keyword.iskeyword(name) or name in ("NONE", "TRUE", "FALSE") else name
