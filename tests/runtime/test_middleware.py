"""Context managers around a run."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

import jobs
from jobs.middleware import checked_middleware, within
from jobs.run import Run


def a_run() -> Run:
    """One to run in."""
    return Run(jobs.uuid7(), jobs.uuid7(), "n", "q", 1, 3, None, 1, "w", datetime.now(UTC))


def noting(name: str, events: list[str]) -> Any:
    """One that notes when it is entered and left, and with what."""

    @contextlib.asynccontextmanager
    async def middleware(run: Run) -> AsyncIterator[None]:
        events.append(f"in {name} {run.name}")
        try:
            yield
        except BaseException as error:
            events.append(f"{name} saw {type(error).__name__}")
            raise
        finally:
            events.append(f"out {name}")

    return middleware


async def test_the_first_is_outermost() -> None:
    events: list[str] = []

    async def body() -> int:
        events.append("body")
        return 5

    both = (noting("a", events), noting("b", events))
    assert await within(both, a_run(), body) == 5
    assert events == ["in a n", "in b n", "body", "out b", "out a"]


async def test_ordinary_context_managers_will_do() -> None:
    events: list[str] = []

    @contextlib.contextmanager
    def plain(_: Run) -> Iterator[None]:
        events.append("in")
        yield
        events.append("out")

    async def body() -> None:
        events.append("body")

    await within((plain,), a_run(), body)
    assert events == ["in", "body", "out"]


async def test_an_error_of_the_body_passes_through_all_of_them() -> None:
    events: list[str] = []

    async def body() -> None:
        raise KeyError("x")

    with pytest.raises(KeyError):
        await within((noting("a", events), noting("b", events)), a_run(), body)
    assert events[2:] == ["b saw KeyError", "out b", "a saw KeyError", "out a"]


async def test_an_error_on_the_way_in_keeps_the_body_from_running() -> None:
    events: list[str] = []

    @contextlib.asynccontextmanager
    async def broken(_: Run) -> AsyncIterator[None]:
        raise ValueError("no session")
        yield

    async def body() -> None:
        events.append("body")

    with pytest.raises(ValueError, match="no session"):
        await within((noting("a", events), broken), a_run(), body)
    assert events == ["in a n", "a saw ValueError", "out a"]


async def test_an_error_on_the_way_out_takes_the_place_of_what_was_returned() -> None:
    @contextlib.asynccontextmanager
    async def broken(_: Run) -> AsyncIterator[None]:
        yield
        raise ValueError("no commit")

    async def body() -> int:
        return 5

    with pytest.raises(ValueError, match="no commit"):
        await within((broken,), a_run(), body)


async def test_one_that_swallows_an_error_ends_the_run_well() -> None:
    async def body() -> int:
        raise KeyError("x")

    assert await within((lambda _: contextlib.suppress(KeyError),), a_run(), body) is None


async def test_one_that_is_none_is_an_error_that_says_so() -> None:
    async def middleware(_: Run) -> None: ...

    async def body() -> None: ...

    def nothing(_: Run) -> Any:
        return None

    with pytest.raises(jobs.ConfigError, match=r"nothing returned a NoneType and no context"):
        await within((nothing,), a_run(), body)
    with pytest.raises(jobs.ConfigError, match=r"middleware returned a coroutine"):
        await within((middleware,), a_run(), body)  # type: ignore[arg-type]


def test_an_asynchronous_function_that_is_none_is_refused_where_it_is_given() -> None:
    async def middleware(_: Run) -> None: ...

    class Called:
        async def __call__(self, _: Run) -> None: ...

    for one in (middleware, Called()):
        with pytest.raises(jobs.ConfigError, match="returns no context manager"):
            checked_middleware("middleware", [one])


@pytest.mark.parametrize("given", ["x", 5, None, [5], ["x"]], ids=repr)
def test_what_is_no_list_of_them_is_refused(given: Any) -> None:
    with pytest.raises(jobs.ConfigError, match="JOB_CONFIG_INVALID"):
        checked_middleware("middleware", given)
    with pytest.raises(jobs.ConfigError, match="middleware"):
        jobs.Registry.of(middleware=given)


def test_a_registry_keeps_them_in_order() -> None:
    events: list[str] = []
    one, two = noting("a", events), noting("b", events)
    assert jobs.Registry.of(middleware=[one, two]).middleware == (one, two)
    assert jobs.Registry.of().middleware == ()
