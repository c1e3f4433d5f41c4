"""What can be told of a function that was handed over, before it is called."""

from __future__ import annotations

import inspect
from collections.abc import Callable


def is_asynchronous(fn: Callable[..., object]) -> bool:
    """Whether calling it gives a coroutine: an asynchronous function, or an object like one."""
    return inspect.iscoroutinefunction(fn) or inspect.iscoroutinefunction(type(fn).__call__)


def is_generator(fn: Callable[..., object]) -> bool:
    """Whether calling it runs nothing, because it contains a yield."""
    return any(
        inspect.isgeneratorfunction(one) or inspect.isasyncgenfunction(one)
        for one in (fn, type(fn).__call__)
    )


def takes_one(fn: Callable[..., object]) -> bool:
    """Whether it can be called with one argument; a builtin that does not tell is believed."""
    try:
        inspect.signature(fn).bind(object())
    except ValueError:
        return True
    except TypeError:
        return False
    return True
