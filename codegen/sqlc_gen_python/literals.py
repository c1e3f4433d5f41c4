"""Python source for text, laid out the way ruff format leaves alone."""

from __future__ import annotations

import textwrap

WIDTH = 100


def string(value: str) -> str:
    """A one-line literal, in double quotes unless single ones need fewer escapes."""
    quote = "'" if '"' in value and value.count('"') > value.count("'") else '"'
    out = []
    for char in value:
        if char in ("\\", quote):
            out.append("\\" + char)
        elif char == "\n":
            out.append("\\n")
        elif char.isprintable():
            out.append(char)
        else:
            out.append(f"\\u{ord(char):04x}" if ord(char) < 0x10000 else f"\\U{ord(char):08x}")
    return quote + "".join(out) + quote


def block(value: str) -> str:
    """A triple-quoted literal that begins on its own line and is the value, byte for byte."""
    body = value.replace("\\", "\\\\").replace('"""', '\\"\\"\\"')
    if body.endswith('"'):
        body = body[:-1] + '\\"'
    lines = [_visible(line) for line in body.split("\n")]
    return '"""\\\n' + "\n".join(lines) + '"""'


def docstring(lines: list[str], indent: str) -> list[str]:
    """A docstring with its quotes on lines of their own."""
    body = [line.replace("\\", "\\\\").replace('"""', "'''") for line in lines]
    return [f'{indent}"""', *(f"{indent}{line}".rstrip() for line in body), f'{indent}"""']


def wrap(text: str, indent: str, hanging: str) -> list[str]:
    """Wrap prose to the width that fits a docstring one level deep."""
    return textwrap.wrap(
        text,
        width=WIDTH - 4,
        initial_indent=indent,
        subsequent_indent=hanging,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _visible(line: str) -> str:
    # Trailing blanks and control characters would not survive an editor.
    stripped = line.rstrip(" \t")
    tail = "".join("\\x20" if char == " " else "\\t" for char in line[len(stripped) :])
    return (
        "".join(
            char if char.isprintable() else "\\t" if char == "\t" else f"\\u{ord(char):04x}"
            for char in stripped
        )
        + tail
    )
