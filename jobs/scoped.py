"""Sessions of the application whose transactions carry the tenant of a run."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    AsyncExitStack,
    ExitStack,
)
from types import TracebackType
from typing import Any, Final, TypeAlias

from psycopg import AsyncConnection, Connection
from psycopg.pq import TransactionStatus

from jobs.errors import ConfigError
from jobs.faults import RunConnectionUnavailable
from jobs_sql.tenancy import set_tenant, set_tenant_async

logger = logging.getLogger("jobs")

TENANT_SETTING: Final = "jobs.tenant"
"""The setting that policies read, unless the worker is told another."""

Opens: TypeAlias = Callable[[], AbstractContextManager[Connection[Any]]]
OpensAsync: TypeAlias = Callable[[], AbstractAsyncContextManager[AsyncConnection[Any]]]

# PostgreSQL's own settings have no dot: a tenant must never become a role or a search path.
_SETTING: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_$]*(\.[A-Za-z_][A-Za-z0-9_$]*)+")


class Sessions:
    """Where the runs of a worker get sessions of the application from."""

    def __init__(
        self, pool: object = None, sync_pool: object = None, setting: str = TENANT_SETTING
    ) -> None:
        """
        Args:
            pool: A psycopg ``AsyncConnectionPool``, or a function without arguments that returns
                an asynchronous context manager of an ``AsyncConnection``; None for none.
            sync_pool: The same for synchronous sessions.
            setting: Name of the setting that carries the tenant.

        Raises:
            ConfigError: One of them cannot be used; the message names it.
        """
        self._open_async: OpensAsync | None = _opener("pool", pool)
        self._open: Opens | None = _opener("sync_pool", sync_pool)
        if not isinstance(setting, str) or not _SETTING.fullmatch(setting) or len(setting) > 63:
            raise ConfigError(
                f"tenant_setting is {setting!r:.200}, expected a name with a prefix of your own",
                fix='Write for example tenant_setting="app.tenant".',
            )
        self._setting = setting
        self._warned = False

    def open(self) -> AbstractContextManager[Connection[Any]]:
        """Take a synchronous session. Raises RunConnectionUnavailable."""
        if self._open is None:
            raise RunConnectionUnavailable(
                "run.connection() in `with`: the worker was given no sync_pool"
            )
        return self._open()

    def open_async(self) -> AbstractAsyncContextManager[AsyncConnection[Any]]:
        """Take an asynchronous session. Raises RunConnectionUnavailable."""
        if self._open_async is None:
            raise RunConnectionUnavailable(
                "run.connection() in `async with`: the worker was given no pool"
            )
        return self._open_async()

    def checked(self, conn: Connection[Any] | AsyncConnection[Any], tenant: str | None) -> Any:
        """Look at a session before its transaction begins; return what to set there."""
        if conn.info.transaction_status != TransactionStatus.IDLE:
            raise RunConnectionUnavailable(
                "run.connection() was handed a session that is in a transaction",
                fix="Have the pool hand out sessions between transactions only.",
            )
        if conn.info.parameter_status("is_superuser") == "on" and not self._warned:
            self._warned = True
            logger.warning(
                "run.connection() connects as %s, a superuser: row-level security does not bind it",
                conn.info.user,
                extra={"event": "jobs.tenancy.superuser"},
            )
        # Said also where there is none, so that nothing set for the session can shine through.
        return {"setting": self._setting, "tenant": tenant or ""}


def _opener(what: str, given: Any) -> Any:
    if given is None:
        return None
    opens = getattr(given, "connection", given)
    if not callable(opens):
        raise ConfigError(
            f"{what} is a {type(given).__qualname__}, expected a psycopg pool or a function that "
            "returns a context manager of a connection"
        )
    return opens


NO_SESSIONS: Final = Sessions()


class RunConnection:
    """One transaction on a session of the application, which carries the tenant of a run.

    Entered with ``async with`` or ``with``, once. It is committed at the end of the block and
    rolled back by an exception, and with it the tenant is gone from the session.
    """

    def __init__(self, sessions: Sessions, tenant: str | None) -> None:
        self._sessions = sessions
        self._tenant = tenant
        self._stack: ExitStack | None = None
        self._stack_async: AsyncExitStack | None = None

    def __enter__(self) -> Connection[Any]:
        with ExitStack() as stack:
            conn = stack.enter_context(self._sessions.open())
            what = self._sessions.checked(conn, self._tenant)
            stack.enter_context(conn.transaction())
            set_tenant(conn, **what)
            self._stack = stack.pop_all()
        return conn

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        stack, self._stack = self._stack, None
        if stack is not None:
            stack.__exit__(kind, error, trace)

    async def __aenter__(self) -> AsyncConnection[Any]:
        async with AsyncExitStack() as stack:
            conn = await stack.enter_async_context(self._sessions.open_async())
            what = self._sessions.checked(conn, self._tenant)
            await stack.enter_async_context(conn.transaction())
            await set_tenant_async(conn, **what)
            self._stack_async = stack.pop_all()
        return conn

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        stack, self._stack_async = self._stack_async, None
        if stack is not None:
            await stack.__aexit__(kind, error, trace)
