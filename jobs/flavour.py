"""One body for synchronous and asynchronous connections.

A *plan* is a generator that yields the statements it wants sent and returns its result. It is
written once; `drive` sends its statements through the flavour of the connection that is given.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Generator
from typing import Any, Concatenate, NamedTuple, ParamSpec, TypeAlias, TypeVar, overload

from psycopg import AsyncConnection, Connection

P = ParamSpec("P")
T = TypeVar("T")


class Step(NamedTuple):
    """One statement that a plan wants sent, in both flavours. Made by `call`."""

    send: Callable[[Connection[Any]], Any]
    send_async: Callable[[AsyncConnection[Any]], Awaitable[Any]]


Plan: TypeAlias = Generator[Step, Any, T]


def call(
    function: Callable[Concatenate[Connection[Any], P], T],
    function_async: Callable[Concatenate[AsyncConnection[Any], P], Awaitable[T]],
    *args: P.args,
    **kwargs: P.kwargs,
) -> Plan[T]:
    """Send one statement: ``rows = yield from call(list_x, list_x_async, key=1)``.

    The connection is added in front of the arguments. What the statement raises is raised here.
    """
    result: T = yield Step(
        lambda conn: function(conn, *args, **kwargs),
        lambda conn: function_async(conn, *args, **kwargs),
    )
    return result


@overload
def drive(conn: Connection[Any], plan: Plan[T]) -> T: ...
@overload
def drive(conn: AsyncConnection[Any], plan: Plan[T]) -> Coroutine[Any, Any, T]: ...
def drive(
    conn: Connection[Any] | AsyncConnection[Any], plan: Plan[T]
) -> T | Coroutine[Any, Any, T]:
    """Run a plan: its result on a synchronous connection, on an asynchronous one an awaitable.

    Exceptions of the statements pass through the plan, which may catch them.
    Nothing is committed or rolled back.
    """
    if isinstance(conn, AsyncConnection):
        return _drive_async(conn, plan)
    try:
        step = plan.send(None)
        while True:
            try:
                answer = step.send(conn)
            except BaseException as error:
                step = plan.throw(error)
            else:
                step = plan.send(answer)
    except StopIteration as end:
        result: T = end.value
        return result


async def _drive_async(conn: AsyncConnection[Any], plan: Plan[T]) -> T:
    try:
        step = plan.send(None)
        while True:
            try:
                answer = await step.send_async(conn)
            except BaseException as error:
                step = plan.throw(error)
            else:
                step = plan.send(answer)
    except StopIteration as end:
        result: T = end.value
        return result
