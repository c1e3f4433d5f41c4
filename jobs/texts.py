"""Texts of what somebody else raised or wrote: told whatever they do, and fit to be stored."""

from __future__ import annotations

import traceback


def text_of(error: BaseException) -> str:
    """Return what an error says. Never raises: one whose text raises is still an error."""
    try:
        return str(error)
    except BaseException as broken:
        return f"<str() of the error raised {type(broken).__name__}>"


def trace_of(error: BaseException) -> str:
    """Return the traceback of an error, with what it was raised from. Never raises."""
    try:
        return "".join(traceback.format_exception(error))
    except BaseException as broken:
        return f"<formatting the traceback raised {type(broken).__name__}>"


def replaced(text: str) -> str:
    """Return a text with what PostgreSQL cannot hold (NUL, lone surrogates) replaced."""
    return text.replace("\x00", "\ufffd").encode("utf-8", "replace").decode()


def escaped(text: str) -> str:
    """Return a text with what PostgreSQL cannot hold (NUL, lone surrogates) written out."""
    return text.replace("\0", "\\0").encode("utf-8", "backslashreplace").decode()
