"""Context managers of the application that are entered around every run."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable
from contextlib import AbstractAsyncContextManager, AbstractContextManager, AsyncExitStack
from typing import Any, TypeAlias, TypeVar

from jobs.callables import is_asynchronous
from jobs.errors import ConfigError
from jobs.run import Run

T = TypeVar("T")

Middleware: TypeAlias = Callable[
    [Run], AbstractAsyncContextManager[Any] | AbstractContextManager[Any]
]
"""A function of the `Run` that returns a context manager, asynchronous or not: for example one
decorated with ``contextlib.asynccontextmanager``. It is entered on the event loop before the job
function is called, wherever that runs, and left when the function has ended."""


def checked_middleware(where: str, given: object) -> tuple[Middleware, ...]:
    """Return a list of middleware as a tuple. Raises ConfigError for what is none."""
    if isinstance(given, (str, bytes)) or not isinstance(given, Iterable):
        raise ConfigError(
            f"{where} is {given!r:.200}, expected a list of functions of the run",
            fix=f"Write {where}=[...] with functions that return a context manager.",
        )
    found = tuple(given)
    for one in found:
        if not callable(one):
            raise ConfigError(f"{where} holds {one!r:.200}, expected functions of the run")
        if is_asynchronous(one):
            raise ConfigError(
                f"{where} holds {_name_of(one)}, which returns no context manager",
                fix="Decorate it with contextlib.asynccontextmanager, and yield once.",
            )
    return found


async def within(
    around: tuple[Middleware, ...], run: Run, body: Callable[[], Awaitable[T]]
) -> T | None:
    """Await ``body()`` inside the context managers, the first of them outermost.

    What one of them raises on the way in or out takes the place of what the body returned or
    raised. One that swallows an error ends the run well, with nothing returned.
    """
    async with AsyncExitStack() as stack:
        for middleware in around:
            entered: object = middleware(run)
            if isinstance(entered, AbstractAsyncContextManager):
                await stack.enter_async_context(entered)
            elif isinstance(entered, AbstractContextManager):
                stack.enter_context(entered)
            else:
                if inspect.iscoroutine(entered):
                    entered.close()
                raise ConfigError(
                    f"the middleware {_name_of(middleware)} returned a "
                    f"{type(entered).__qualname__} and no context manager",
                    fix="Decorate it with contextlib.asynccontextmanager.",
                )
        return await body()
    return None  # an error was swallowed


def _name_of(function: object) -> str:
    return str(getattr(function, "__qualname__", type(function).__qualname__))
