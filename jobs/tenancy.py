"""The tenant on whose behalf code runs: installed around a job's function, asked for anywhere."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar

_current: ContextVar[str | None] = ContextVar("jobs_current_tenant", default=None)


def current_tenant() -> str | None:
    """Return the tenant of the job that runs here, None for none.

    It is what the job's declaration derives from its input, and never what the enqueuer or the
    process happened to be: a job with `NO_TENANT` has none whatever was there before. Known in the
    job's function, in what that awaits, in tasks it makes, in its thread and in its process; not in
    threads that it starts by itself.
    """
    return _current.get()


@contextlib.contextmanager
def tenant_scope(tenant: str | None) -> Iterator[None]:
    """Let `current_tenant` answer ``tenant`` in the block, and what it answered before after it.

    For code outside a job that shares code with jobs: a request handler, a test.

    Args:
        tenant: The tenant, or None for none.
    """
    token = _current.set(tenant)
    try:
        yield
    finally:
        _current.reset(token)


def forget_tenant() -> None:
    """Let `current_tenant` answer None in this context from now on."""
    _current.set(None)
